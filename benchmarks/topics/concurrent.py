"""64 runs in one process: what sharing transactions gives them."""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter

from benchmarks.bench import NAMES, Bench
from benchmarks.classic_graphs import Counter, Tick, counters
from benchmarks.commits import Committer
from benchmarks.far import further_away
from benchmarks.report import Line, Target, at_least
from benchmarks.topics.append import step_payload
from graphkeep import Store, open_store

__all__ = ('measure',)

_RUNS = 64
_TARGETS = {'sqlite': 5, 'postgres': 8}
_AWAY = 4.0
"""Milliseconds to a database on another machine and back."""


async def measure(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    payload = await step_payload()
    for name, url in bench.stores('sqlite', 'postgres', 'redis').items():
        lines += await _compare(bench, NAMES[name], url, payload, target=_TARGETS.get(name))
    # On the same machine a commit costs little more than the Python around it.
    for name, url in bench.stores('postgres', 'redis').items():
        with further_away(url, ms=_AWAY / 2) as far:
            what = f'{NAMES[name]} {_AWAY:g} ms away'
            lines += await _compare(bench, what, far, payload, target=_TARGETS['postgres'])
    return lines


async def _compare(
    bench: Bench, where: str, url: str, payload: bytes, *, target: float | None
) -> list[Line]:
    steps = bench.n(60, 3)
    async with open_store(url) as store:
        committers = [
            await Committer.start(store, f'commits-{bench.number()}', payload) for _ in range(_RUNS)
        ]
        rates: dict[str, list[float]] = {'append': [], 'runs': [], 'one': []}
        for _ in range(bench.n(5, 1)):
            rates['append'].append(await _appends(committers, steps))
            rates['runs'].append(await _runs(bench, store, _RUNS, steps))
            rates['one'].append(await _runs(bench, store, 1, 4 * steps))
    append, runs, one = (median(rates[key]) for key in ('append', 'runs', 'one'))
    what = f'{where}: {_RUNS} runs'
    least = None if target is None else at_least(target)
    return [
        _rate(what, runs, append, of='the appends alone', target=at_least(0.6)),
        _rate(what, runs, one, of='one run', target=least),
    ]


def _rate(what: str, rate: float, other: float, *, of: str, target: Target | None) -> Line:
    return Line(
        what=what,
        measured=f'{rate:,.0f} steps/s',
        baseline=f'{other:,.0f}/s  {of}',
        figure=rate / other,
        target=target,
        raw={'measured': rate, 'baseline': other},
    )


async def _appends(committers: list[Committer], count: int) -> float:
    """Commits a second, of all together; each waits for its own before its next."""
    started = perf_counter()
    await asyncio.gather(*(committer.times(count) for committer in committers))
    return len(committers) * count / (perf_counter() - started)


async def _runs(bench: Bench, store: Store, runs: int, steps: int) -> float:
    """Steps a second, of all together."""
    kept = [store.persistence(f'run-{bench.number()}') for _ in range(runs)]
    started = perf_counter()
    await asyncio.gather(
        *(counters.run(Tick(steps), state=Counter(), deps=[], persistence=each) for each in kept)
    )
    return runs * steps / (perf_counter() - started)
