"""GraphBuilder graphs: what keeping them costs beside upstream's own runs, and how it grows."""

from __future__ import annotations

import gc
from functools import partial
from time import perf_counter, process_time
from typing import Any

from pydantic import TypeAdapter

from benchmarks.bench import Bench
from benchmarks.builder_graphs import (
    Big,
    Moments,
    Ticks,
    big_map,
    chain,
    sleeping_map,
    ticking,
    wide_map,
)
from benchmarks.report import Line, at_most, ms, ratio
from benchmarks.timing import Calls, in_turns, one_by_one
from graphkeep import Store, open_store, persist

__all__ = ('measure',)


async def measure(bench: Bench) -> list[Line]:
    return [
        *await _sequential(bench),
        *await _parallel(bench),
        await _joined(bench),
        await _resumed(bench),
        *await _beside_a_state(bench),
    ]


def _id(bench: Bench) -> str:
    return f'run-{bench.number()}'


async def _sequential(bench: Bench) -> list[Line]:
    """Graphs that run one step at a time, kept in memory, against upstream's unkept run."""
    lines: list[Line] = []
    steps = bench.n(1_000, 30)
    graphs: list[tuple[str, Any, int]] = [
        (f'a loop of {steps:,} steps, kept in memory', ticking(), steps),
        (f'a chain of {steps:,} steps, kept in memory', chain(steps), 0),
    ]
    for what, graph, inputs in graphs:
        kept = persist(graph)
        async with open_store('memory://') as store:

            async def keep(graph: Any = kept, inputs: int = inputs, store: Store = store) -> None:
                handle = store.persistence(_id(bench))
                await graph.run(state=Ticks(), inputs=inputs, deps=[], persistence=handle)

            async def run(graph: Any = graph, inputs: int = inputs) -> None:
                await graph.run(state=Ticks(), inputs=inputs, deps=[])

            found = await in_turns(
                {'kept': one_by_one(keep, tidy=True), 'unkept': one_by_one(run, tidy=True)},
                rounds=bench.n(9, 1),
                each=1,
            )
        lines.append(
            ratio(what, found['kept'], found['unkept'], of=_UNKEPT, show=ms, target=at_most(0.6))
        )
    return lines


_UNKEPT = 'upstream, unkept'


async def _parallel(bench: Bench) -> list[Line]:
    """A map of 100 steps that wait for 50 ms, on Postgres."""
    url = bench.url('postgres')
    if url is None:
        return []
    graph = sleeping_map(0.05)
    kept = persist(graph)
    inputs = list(range(bench.n(100, 10)))
    async with open_store(url) as store:

        async def keep() -> None:
            handle = store.persistence(_id(bench))
            await kept.run(state=Ticks(), inputs=inputs, persistence=handle)

        async def run() -> None:
            await graph.run(state=Ticks(), inputs=inputs)

        async def commit() -> None:
            await chained.run(state=Ticks(), inputs=0, persistence=store.persistence(_id(bench)))

        chained = persist(chain(10))
        found = await in_turns(
            {'kept': one_by_one(keep), 'unkept': one_by_one(run), 'commit': one_by_one(commit)},
            rounds=bench.n(7, 1),
            each=1,
        )
    one = found['commit'] / 11
    return [
        ratio(
            f'a map of {len(inputs)} steps of 50 ms, on Postgres',
            found['kept'],
            found['unkept'] + 8 * one,
            of=f'{_UNKEPT}, + 8 commits of {ms(one)}',
            show=ms,
            target=at_most(1.15),
        )
    ]


async def _joined(bench: Bench) -> Line:
    """The processor time of maps whose items are joined."""
    kept = persist(wide_map(2_000))
    many, few = bench.n(4_000, 40), bench.n(1_000, 10)
    async with open_store('memory://') as store:
        found = await in_turns(
            {
                'many': partial(_busy, bench, store, kept, list(range(many))),
                'few': partial(_busy, bench, store, kept, list(range(few))),
            },
            rounds=bench.n(15, 1),
            each=1,
        )
    return ratio(
        f'a map of {many:,} joined items of 2 kB, processor time',
        found['many'],
        found['few'],
        of=f'of {few:,}',
        show=ms,
        target=at_most(5),
    )


async def _busy(
    bench: Bench, store: Store, kept: Any, inputs: list[int], count: int
) -> list[float]:
    taken: list[float] = []
    for _ in range(count):
        handle = store.persistence(_id(bench))
        gc.collect()  # what the runs before it have left is not collected on its time
        started = process_time()
        output = await kept.run(inputs=inputs, persistence=handle)
        taken.append(process_time() - started)
        assert len(output) == len(inputs)
        await store.delete(handle.run_id)
    return taken


async def _resumed(bench: Bench) -> Line:
    """How long it takes until a step runs again, after few steps and after many."""
    url = bench.url('sqlite')
    many, few = bench.n(5_000, 60), bench.n(50, 6)
    async with open_store(f'{url}?synchronous=NORMAL') as store:
        found = await in_turns(
            {
                'many': await _resumes(bench, store, many),
                'few': await _resumes(bench, store, few),
            },
            rounds=bench.n(10, 1),
            each=2,
        )
    return ratio(
        f'resuming after a loop of {many:,} steps',
        found['many'],
        found['few'],
        of=f'after {few}',
        show=ms,
        target=at_most(1.5),
    )


async def _resumes(bench: Bench, store: Store, steps: int) -> Calls:
    kept = persist(ticking(stop_at=steps + 1))
    handle = store.persistence(_id(bench))
    try:
        await kept.run(state=Ticks(), inputs=steps + 10, deps=[], persistence=handle)
    except InterruptedError:
        pass

    async def times(count: int) -> list[float]:
        taken: list[float] = []
        for _ in range(count):
            began: Moments = []
            started = perf_counter()
            try:
                await kept.resume(store.persistence(handle.run_id), deps=began)
            except InterruptedError:
                pass
            taken.append(began[0] - started)
        return taken

    return times


async def _beside_a_state(bench: Bench) -> list[Line]:
    """Maps beside a state of 1 MB, which their steps touch or do not touch."""
    state = Big([f'{number:_<1000}' for number in range(bench.n(1_000, 20))])
    inputs = list(range(bench.n(1_000, 10)))
    touching = list(range(bench.n(200, 5)))
    apart, within = persist(big_map(touch=False)), persist(big_map(touch=True))
    adapter = TypeAdapter(Big)

    async def run(store: Store, kept: Any, state: Big, inputs: list[int]) -> None:
        handle = store.persistence(_id(bench))
        await kept.run(state=state, inputs=inputs, persistence=handle)
        await store.delete(handle.run_id)

    async def there_and_back() -> None:
        adapter.validate_json(adapter.dump_json(state))

    async with open_store('memory://') as store:
        found = await in_turns(
            {
                'apart': one_by_one(lambda: run(store, apart, state, inputs), tidy=True),
                'without': one_by_one(lambda: run(store, apart, Big(), inputs), tidy=True),
                'within': one_by_one(lambda: run(store, within, state, touching), tidy=True),
                'codec': one_by_one(there_and_back),
            },
            rounds=bench.n(9, 1),
            each=1,
        )
    return [
        ratio(
            f'a map of {len(inputs):,} steps beside a state of 1 MB, untouched',
            found['apart'],
            found['without'],
            of='without it',
            show=ms,
            target=at_most(1.2),
        ),
        ratio(
            'a step of a map that changes a state of 1 MB',
            found['within'] / len(touching),
            found['codec'],
            of='to decode and encode it',
            show=ms,
            target=at_most(2),
        ),
    ]
