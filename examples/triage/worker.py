"""One process that works through the tickets, or goes on where another one stopped.

    STORE=sqlite:///triage.db python worker.py my-run

Stop it in whatever way, and start it again: it does not know, and need not, whether it is the
first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which both examples use

from company import load_company
from graph import Desk, Report, State, first_node, triage
from killing.worker import parse, run, say
from model import recorded_model
from outbox import Outbox
from tickets import load_tickets

import graphkeep


async def work(store: graphkeep.Store, run_id: str, desk: Desk) -> Report:
    """Start the run or go on with it, to its end."""
    state = State(tickets=load_tickets())
    while True:
        try:
            result = await graphkeep.resume(
                triage,
                store.persistence(run_id),
                deps=desk,
                start=first_node(state),
                state=state,
            )
        except graphkeep.RunBusyError as busy:
            # Linux tells at once that the process which had the run is dead. Elsewhere, and for
            # another machine, only the lease does: it is not renewed, and passes.
            say('waiting', str(busy))
            await asyncio.sleep(1.0)
        else:
            return result.output


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long the outside world takes, and where it does not answer at all."""

    factor: float
    stall: str | None

    async def wait(self, place: str, seconds: float) -> None:
        """Take these seconds at a place such as 'Research T-1007'."""
        if place == self.stall:
            say('stalled', place)
            await asyncio.sleep(60.0)
        await asyncio.sleep(seconds * self.factor)


async def main() -> None:
    parser = argparse.ArgumentParser(description='Works through the tickets, or goes on with them.')
    parser.add_argument('--outbox', type=Path, default=Path('outbox.jsonl'), metavar='FILE')
    parser.add_argument('--stall', metavar='PLACE', help="where to hang, as in 'Research T-1007'")
    args = parse(parser, store='sqlite:///triage.db')
    pace = Pace(factor=args.pace, stall=args.stall)
    desk = Desk(
        model=recorded_model(pace.wait),
        company=load_company(),
        outbox=Outbox(args.outbox, pace.wait),
        begins=lambda place: say('begins', place),
    )
    async with graphkeep.open_store(args.store, lease=6.0, heartbeat=2.0) as store:
        report = await work(store, args.run_id, desk)
    say('done', f'{report.tickets} tickets')


if __name__ == '__main__':
    run(main)
