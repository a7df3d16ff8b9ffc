"""Times that can be compared: taken in turns, so that what disturbs one disturbs the other too."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

__all__ = ('Calls', 'gaps', 'in_turns', 'one_by_one')

Calls = Callable[[int], Awaitable[Sequence[float]]]
"""Makes so many calls and gives how long each took, in seconds."""


async def in_turns(
    sides: Mapping[str, Calls], *, rounds: int, each: int, warm: int = 1
) -> dict[str, float]:
    """The median seconds of a call of each side.

    Args:
        sides: What is compared.
        rounds: How often each side has its turn.
        each: Calls in a turn.
        warm: Rounds before these that are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm + rounds):
        # Each side comes first as often as the others do.
        names = list(sides)
        if number % 2:
            names.reverse()
        for name in names:
            taken = await sides[name](each)
            if number >= warm:
                times[name] += taken
    return {name: median(taken) for name, taken in times.items()}


def one_by_one(call: Callable[[], Awaitable[object]], *, tidy: bool = False) -> Calls:
    """Calls that are made one after the other.

    Args:
        call: The call.
        tidy: Collect garbage before each, so that none pays for what others have left.
    """

    async def calls(count: int) -> list[float]:
        taken: list[float] = []
        for _ in range(count):
            if tidy:
                gc.collect()
            started = perf_counter()
            await call()
            taken.append(perf_counter() - started)
        return taken

    return calls


def gaps(moments: Sequence[float]) -> list[float]:
    """Seconds between moments that follow each other."""
    return [b - a for a, b in pairwise(moments)]
