"""What a commit costs against a bare write, and what a whole 1.x step adds to the commit."""

from __future__ import annotations

from functools import partial

from benchmarks.bare import bare_writer
from benchmarks.bench import NAMES, Bench
from benchmarks.classic_graphs import Counter, Tick, counters
from benchmarks.commits import Committer
from benchmarks.counting import sqlite_path
from benchmarks.report import Line, at_most, ratio, us
from benchmarks.timing import gaps, in_turns, one_by_one
from graphkeep import Store, open_store

__all__ = ('measure', 'step_payload')

_TARGETS = {'sqlite': 1.2, 'postgres': 1.3, 'redis': 1.7}
_STEP = 100e-6
"""What a step may cost beyond its commit, in seconds."""


async def measure(bench: Bench) -> list[Line]:
    payload = await step_payload()
    commits: list[Line] = []
    steps: list[Line] = []
    for name, url in bench.stores().items():
        bare_url = str(sqlite_path(url)) + '-bare' if name == 'sqlite' else bench.url(name)
        assert bare_url is not None
        async with open_store(url) as store:
            committer = await Committer.start(store, 'commits', payload)
            if name in _TARGETS:
                async with bare_writer(name, bare_url, payload) as (of, write):
                    found = await in_turns(
                        {'bare': one_by_one(write), 'commit': committer.times},
                        rounds=bench.n(300, 2),
                        each=5,
                    )
                what, target = f'{NAMES[name]}: a commit', at_most(_TARGETS[name])
                commits.append(ratio(what, found['commit'], found['bare'], of=of, target=target))
            found = await in_turns(
                {'commit': committer.times, 'step': partial(_steps, bench, store)},
                rounds=bench.n(40, 2),
                each=25,
            )
            steps.append(_beyond(NAMES[name], found['step'], found['commit']))
    return commits + steps


def _beyond(name: str, step: float, commit: float) -> Line:
    return Line(
        what=f'{name}: a whole 1.x step',
        measured=us(step),
        baseline=f'{us(commit)}  its commit',
        figure=(step - commit) * 1e6,
        unit='µs more',
        target=at_most(_STEP * 1e6, 'µs'),
        raw={'step': step, 'commit': commit},
    )


async def _steps(bench: Bench, store: Store, count: int) -> list[float]:
    """Seconds from the beginning of each node to that of the next."""
    began: list[float] = []
    kept = store.persistence(f'steps-{bench.number()}')
    await counters.run(Tick(count + 1), state=Counter(), deps=began, persistence=kept)
    return gaps(began)


async def step_payload() -> bytes:
    """What a step of a small state writes."""
    async with open_store('memory://') as store:
        kept = store.persistence('payload')
        await counters.run(Tick(20), state=Counter(), deps=[], persistence=kept)
        snapshots = await store.snapshots('payload')
    return snapshots[len(snapshots) // 2].data
