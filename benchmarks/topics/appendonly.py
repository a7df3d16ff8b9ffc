"""A step that appends to a long list of messages, with and without `AppendOnly`."""

from __future__ import annotations

from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage

from benchmarks.bench import NAMES, Bench
from benchmarks.classic_graphs import (
    Kept,
    Moments,
    Plain,
    PlainTalk,
    Talk,
    conversation,
    kept_talks,
    plain_talks,
)
from benchmarks.report import Line, at_most, ms, ratio, size
from benchmarks.timing import Calls, gaps, in_turns
from graphkeep import Store, open_store

__all__ = ('measure',)

_SHORT, _LONG = 50, 5_000


async def measure(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    for name, url in bench.stores('memory', 'sqlite').items():
        async with open_store(url) as store:
            found = await in_turns(
                {
                    'short': _Steps(bench, store, kept=True, length=_SHORT).times,
                    'long': _Steps(bench, store, kept=True, length=_LONG).times,
                },
                rounds=bench.n(6, 1),
                each=bench.n(20, 3),
            )
        what = f'{NAMES[name]}, AppendOnly: a step at {_LONG:,} messages'
        of = f'at {_SHORT} messages'
        lines.append(
            ratio(what, found['long'], found['short'], of=of, show=ms, target=at_most(1.5))
        )
    async with open_store('memory://') as store:
        short = _Steps(bench, store, kept=False, length=_SHORT)
        long = _Steps(bench, store, kept=False, length=_LONG)
        found = await in_turns(
            {'short': short.times, 'long': long.times, 'dump': _dumps()},
            rounds=bench.n(3, 1),
            each=3,
        )
        lines += [
            ratio(
                f'memory, without: bytes written a step at {_LONG:,} messages',
                await long.written(),
                await short.written(),
                of=f'at {_SHORT} messages',
                show=size,
                target=at_most(1.1),
            ),
            ratio(
                f'memory, without: a step at {_LONG:,} messages',
                found['long'],
                found['dump'],
                of='pydantic dumping the list',
                show=ms,
            ),
            ratio(
                f'memory, without: a step at {_LONG:,} messages',
                found['long'],
                found['short'],
                of=f'at {_SHORT} messages',
                show=ms,
            ),
        ]
    return lines


class _Steps:
    """Runs that begin with a conversation of some length, and what their steps take."""

    def __init__(self, bench: Bench, store: Store, *, kept: bool, length: int) -> None:
        self._bench = bench
        self._store = store
        self._kept = kept
        self._messages = conversation(length)
        self._run_id = ''

    async def times(self, count: int) -> list[float]:
        began: Moments = []
        self._run_id = f'run-{self._bench.number()}'
        kept = self._store.persistence(self._run_id)
        messages: Any = list(self._messages)
        # The first node only brings the run about.
        steps = count + 2
        if self._kept:
            state = Kept(messages)
            await kept_talks.run(Talk(steps), state=state, deps=began, persistence=kept)
        else:
            plain = Plain(messages)
            await plain_talks.run(PlainTalk(steps), state=plain, deps=began, persistence=kept)
        return gaps(began)[1:]

    async def written(self) -> float:
        """Bytes of the snapshot of a step of the last run."""
        snapshots = await self._store.snapshots(self._run_id)
        return median(len(s.data) for s in snapshots if s.kind == 'delta')


def _dumps() -> Calls:
    dump = TypeAdapter(list[ModelMessage]).dump_json
    messages = conversation(_LONG)

    async def times(count: int) -> list[float]:
        return [_timed(partial(dump, messages)) for _ in range(count)]

    return times


def _timed(call: Any) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started
