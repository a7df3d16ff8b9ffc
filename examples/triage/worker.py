"""One process that works through the tickets, or goes on where another one stopped.

    STORE=sqlite:///triage.db python worker.py my-run

Stop it in whatever way, and start it again: it does not know, and need not, whether it is the
first.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from company import load_company
from graph import Desk, Report, State, first_node, triage
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


def say(event: str, text: str) -> None:
    """Tell who started this process."""
    print(event, text, flush=True)


async def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description='Works through the tickets, or goes on with them.')
    parser.add_argument('run_id')
    parser.add_argument('--outbox', type=Path, default=Path('outbox.jsonl'), metavar='FILE')
    parser.add_argument('--pace', type=float, default=1.0, help='how slow everything is; 0: not')
    parser.add_argument('--stall', metavar='PLACE', help="where to hang, as in 'Research T-1007'")
    parser.add_argument('--quiet', action='store_true', help='no warnings about the store')
    args = parser.parse_args(argv)
    if args.quiet:
        logging.getLogger('graphkeep').setLevel(logging.ERROR)
    pace = Pace(factor=args.pace, stall=args.stall)
    desk = Desk(
        model=recorded_model(pace.wait),
        company=load_company(),
        outbox=Outbox(args.outbox, pace.wait),
        begins=lambda place: say('begins', place),
    )
    # By the environment: a URL may hold a password, and arguments show in every list of processes.
    url = os.environ.get('STORE') or 'sqlite:///triage.db'
    async with graphkeep.open_store(url, lease=6.0, heartbeat=2.0) as store:
        report = await work(store, args.run_id, desk)
    say('done', f'{report.tickets} tickets')


if __name__ == '__main__':
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except graphkeep.GraphkeepError as error:
        sys.exit(f'{type(error).__name__}: {error}')
