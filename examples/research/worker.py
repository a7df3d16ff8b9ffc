"""One process that reads the texts, or goes on where another one stopped.

    STORE=sqlite:///research.db python worker.py my-run

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

from graph import Desk, Progress, research
from killing.worker import parse, run, say
from model import reading_model
from texts import load_texts

import graphkeep


async def work(store: graphkeep.Store, run_id: str, desk: Desk) -> str:
    """Start the run or go on with it, to its end; gives the report."""
    while True:
        try:
            return await research.run(
                state=Progress(),
                deps=desk,
                inputs=list(desk.texts),
                persistence=store.persistence(run_id, if_exists='resume'),
            )
        except graphkeep.RunBusyError as busy:
            # Linux tells at once that the process which had the run is dead. Elsewhere, and for
            # another machine, only the lease does: it is not renewed, and passes.
            say('waiting', str(busy))
            await asyncio.sleep(1.0)


@dataclass(kw_only=True)
class Pace:
    """How long the model takes, and after how many texts it does not answer any more."""

    factor: float
    stall_after: int | None
    asked: int = 0

    async def wait(self, title: str, seconds: float) -> None:
        """Take these seconds for this text."""
        self.asked += 1
        if self.stall_after is not None and self.asked > self.stall_after:
            say('stalled', title)
            await asyncio.sleep(60.0)
        await asyncio.sleep(seconds * self.factor)


async def main() -> None:
    parser = argparse.ArgumentParser(description='Reads the texts, or goes on reading.')
    parser.add_argument('--report', type=Path, default=Path('report.md'), metavar='FILE')
    parser.add_argument('--stall-after', type=int, metavar='N', help='hang after so many texts')
    args = parse(parser, store='sqlite:///research.db')
    pace = Pace(factor=args.pace, stall_after=args.stall_after)
    desk = Desk(
        model=reading_model(pace.wait),
        texts=load_texts(),
        begins=lambda step: say('begins', step),
    )
    async with graphkeep.open_store(args.store, lease=6.0, heartbeat=2.0) as store:
        report = await work(store, args.run_id, desk)
    # After the run: it is kept, so that this can be done again.
    args.report.write_text(report, encoding='utf-8')
    say('done', str(args.report))


if __name__ == '__main__':
    run(main)
