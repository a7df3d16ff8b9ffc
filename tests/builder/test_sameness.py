"""Generated graphs: kept runs give what an interpreter of the same structure gives, dead in between
or not, on every store.

`GRAPHKEEP_EXAMPLES=5000` tries that many graphs in each test.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import graphkeep
from graphkeep.stores.memory import MemoryStore
from tests.classic.conftest import every_store

from .drawing import Deps, build
from .dying import Death, Rig, opener
from .shapes import (
    Expected,
    Shape,
    Tally,
    TooLongError,
    interpret,
    is_staged,
    joins_deep,
    shapes,
)


def examples(number: int) -> settings:
    return settings(
        max_examples=int(os.environ.get('GRAPHKEEP_EXAMPLES', number)),
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )


values = st.integers(0, 12)
seeds = st.integers(0, 1 << 16)
"""Of how long steps take."""
limits = st.sampled_from([None, None, 1, 2])
"""How many steps may run at once."""
hooks = st.sampled_from(['_append', '_append', None])
"""Most die around a commit, some around any call of the store."""
moments = st.sampled_from(['before', 'during', 'after'])
death = st.builds(Death, st.integers(1, 5) | st.integers(1, 40), moments, hooks)
fates = st.lists(death, min_size=1, max_size=6)


def ends_soon(shape: Shape, value: int) -> Expected:
    """What a run of this shape gives; no example if it would not end, or not soon."""
    try:
        return interpret(shape, value)
    except TooLongError:
        assume(False)
        raise


def run_to_end(run: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, with an end to what would hang."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await run

    asyncio.run(bounded())


@examples(80)
@given(shape=shapes, value=values, most=limits, seed=seeds)
def test_a_kept_run_gives_what_the_structure_says(
    shape: Shape, value: int, most: int | None, seed: int
) -> None:
    expected = ends_soon(shape, value)

    async def run() -> None:
        deps, state = Deps(seed=seed), Tally()
        kept = graphkeep.persist(build(shape), max_parallel=most)
        async with MemoryStore() as store:
            output = await kept.run(
                state=state, inputs=value, deps=deps, persistence=store.persistence('run')
            )
            expected.check(output, state)
            document = await store.document('run')
            expected.check(output, kept._plan.state.decode(document.state))
            snapshots = await store.snapshots('run')
        assert {name: deps.runs[name] for name in expected.runs} == expected.runs
        assert set(deps.starts.values()) == {1}
        assert [s.seq for s in snapshots] == list(range(len(snapshots)))

    run_to_end(run())


@every_store
def test_a_run_that_dies_at_any_commit_ends_as_if_it_had_not(
    database: str,
) -> None:
    """Also at other calls of the store, and again as it goes on."""

    @examples(60 if database.startswith('memory') else 40)
    @given(shape=shapes, value=values, most=limits, seed=seeds, deaths=fates)
    def dies(shape: Shape, value: int, most: int | None, seed: int, deaths: list[Death]) -> None:
        expected = ends_soon(shape, value)

        async def run() -> None:
            async with opener(database) as make_store, make_store() as keeper:
                deps = Deps(seed=seed)
                rig = Rig(
                    kept=graphkeep.persist(build(shape), max_parallel=most),
                    inputs=value,
                    deps=deps,
                    make_state=Tally,
                    keeper=keeper,
                    make_store=make_store,
                )
                output = await rig.live_and_die(deaths)
                event(f'{rig.deaths} deaths')
                state, stored = await rig.check_end()
                expected.check(output, state)
                assert stored == output
                for step, runs in expected.runs.items():
                    assert runs <= deps.runs[step] <= runs * (rig.deaths + 1)

        run_to_end(run())

    dies()


def upstream_can(shape: Shape) -> bool:
    """Whether upstream's joins wait for all that they should, as far as is known.

    With 1.107 one that waits for another join may fire too early; with 2.x only one that waits for
    another of its own fork. Both may agree with themselves on it all the same.
    """
    if importlib.util.find_spec('pydantic_graph.persistence') is not None:
        return joins_deep(shape) <= 1
    return not is_staged(shape)


async def upstreams(graph: Any, value: int, seed: int) -> Any:
    """What upstream's own runner gives, or raises."""
    state = Tally()
    try:
        async with asyncio.timeout(5):
            output = await graph.run(state=state, inputs=value, deps=Deps(kept=False, seed=seed))
    except Exception as e:
        return repr(e)
    return output, Tally(
        state.hits, state.total, state.seen, sorted(state.begun), sorted(state.trail)
    )


@examples(60)
@given(shape=shapes, value=values, seed=seeds)
def test_upstream_gives_the_same_where_it_agrees_with_itself(
    shape: Shape, value: int, seed: int
) -> None:
    """The interpreter is the oracle of the other tests, and upstream is one of the interpreter."""
    assume(upstream_can(shape))
    expected = ends_soon(shape, value)

    async def run() -> None:
        graph = build(shape)
        ends = [await upstreams(graph, value, seed + number) for number in range(4)]
        if any(end != ends[0] for end in ends):
            event('upstream disagrees with itself')
            return
        expected.check(*ends[0])
        state = Tally()
        kept = graphkeep.persist(graph)
        output = await kept.run(state=state, inputs=value, deps=Deps(seed=seed))
        expected.check(output, state)

    run_to_end(run())
