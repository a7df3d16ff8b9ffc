"""How long the world outside takes, and where it does not answer at all."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ('Pace',)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of one process."""

    factor: float = 1.0
    """How slow the world is; 0: not."""
    stalls: Sequence[str] = ()
    """Where it hangs: there the demo kills it."""
    trace: bool = False
    """Whether it says on stderr where it is, so that it can be counted."""

    async def wait(self, place: str, seconds: float) -> None:
        """Take these seconds at a place such as 'ask_carrier'."""
        if self.trace and place != 'a word':
            print(place, file=sys.stderr, flush=True)
        if place in self.stalls:
            await asyncio.Event().wait()
        await asyncio.sleep(seconds * self.factor)

    @classmethod
    def options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options of which `of` makes one."""
        parser.add_argument('--pace', type=float, default=1.0, help='how slow the world is; 0: not')
        parser.add_argument(
            '--stall', action='append', default=[], help="where to hang, as in 'ask_carrier'"
        )
        parser.add_argument('--trace', action='store_true', help='say on stderr what is called')
        parser.add_argument('--quiet', action='store_true', help='no warnings about the store')

    @classmethod
    def of(cls, args: argparse.Namespace) -> Pace:
        """The pace that the arguments ask for."""
        return cls(factor=args.pace, stalls=args.stall, trace=args.trace)
