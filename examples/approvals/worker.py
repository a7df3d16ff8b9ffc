"""One process that carries the refunds on, any number of which may run.

    STORE=sqlite:///refunds.db python worker.py

Stop it in whatever way, and start it again. SIGTERM and Ctrl-C stop it between two steps.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which all examples use

from graph import NAME, Desk, refunds
from killing.worker import run, say
from model import clerk_model
from payments import Provider, Wait
from shop import ORDERS

import graphkeep

__all__ = ('make_desk',)


def make_desk(ledger: Path, wait: Wait) -> Desk:
    """What the steps work with."""
    return Desk(
        model=clerk_model(wait),
        provider=Provider(ledger, wait),
        orders=ORDERS,
        begins=lambda step: say('begins', step),
    )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long the outside world takes, and where it does not answer at all."""

    factor: float
    stall: str | None

    async def wait(self, place: str, seconds: float) -> None:
        """Take these seconds at a place such as 'pay A-1004'."""
        say('reaches', place)
        if place == self.stall:
            say('stalled', place)
            await asyncio.sleep(60.0)
        await asyncio.sleep(seconds * self.factor)


async def main() -> None:
    parser = argparse.ArgumentParser(description='Carries refunds on.')
    parser.add_argument('name', nargs='?', default=NAME, help='what their runs are recorded under')
    parser.add_argument('--ledger', type=Path, default=Path('ledger.db'), metavar='FILE')
    parser.add_argument('--pace', type=float, default=1.0, help='how slow the world is; 0: not')
    parser.add_argument('--stall', metavar='PLACE', help="where to hang, as in 'pay A-1004'")
    parser.add_argument('--quiet', action='store_true', help='no warnings about the store')
    args = parser.parse_args()
    if args.quiet:
        logging.getLogger('graphkeep').setLevel(logging.ERROR)
    desk = make_desk(args.ledger, Pace(factor=args.pace, stall=args.stall).wait)
    # By the environment: a URL may hold a password, and arguments show in every list of processes.
    url = os.environ.get('STORE') or 'sqlite:///refunds.db'
    async with graphkeep.open_store(url, lease=6.0, heartbeat=2.0) as store:
        say('works', args.name)
        await graphkeep.Worker(store, {args.name: refunds}, deps=desk).run()
    say('stopped', args.name)


if __name__ == '__main__':
    run(main)
