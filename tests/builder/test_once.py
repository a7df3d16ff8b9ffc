"""`current_task()` and `once()`, in the steps of builder graphs and in the nodes of 1.x graphs."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext

import graphkeep
from graphkeep import CurrentTask, LossyStateError, Store, current_task, once

Body = Callable[[], Awaitable[int]]
Play = Callable[..., Awaitable[int]]


@dataclass
class Deps:
    """What the one step or node of the graph does, and has no counterpart in the database."""

    body: Body


@dataclass
class Act(BaseNode[None, Deps, int]):
    async def run(self, ctx: GraphRunContext[None, Deps]) -> End[int]:
        return End(await ctx.deps.body())


def _kept(*, beside: bool) -> Any:
    g: Any = GraphBuilder(deps_type=Deps, input_type=int, output_type=int, auto_instrument=False)

    @g.step(node_id='Act')
    async def act(ctx: StepContext[None, Deps, int]) -> int:
        return await ctx.deps.body()

    if not beside:
        g.add(g.edge_from(g.start_node).to(act), g.edge_from(act).to(g.end_node))
        return graphkeep.persist(g.build())

    @g.step
    async def waits(ctx: StepContext[None, Deps, int]) -> int:
        await asyncio.Event().wait()
        return 0

    g.add(g.edge_from(g.start_node).to(act, waits), g.edge_from(act, waits).to(g.end_node))
    return graphkeep.persist(g.build())


_FRONT_ENDS = ['alone', 'beside others']
if importlib.util.find_spec('pydantic_graph.persistence') is not None:
    _FRONT_ENDS.append('1.x node')


@pytest.fixture(params=_FRONT_ENDS)
def play(request: pytest.FixtureRequest, store: Store, run_id: str) -> Play:
    """`play(body)`: run the body as the step or node of a kept graph, or resume the run with it."""
    kept = None if request.param == '1.x node' else _kept(beside=request.param == 'beside others')
    begun = False

    async def play(body: Body) -> int:
        nonlocal begun
        resume, begun = begun, True
        persistence = store.persistence(run_id)
        if kept is not None:
            if resume:
                return await kept.resume(persistence, deps=Deps(body))
            return await kept.run(inputs=0, deps=Deps(body), persistence=persistence)
        from pydantic_graph.graph import Graph

        graph = Graph[None, Deps, int](nodes=(Act,), auto_instrument=False)
        if resume:
            return (await graphkeep.resume(graph, persistence, deps=Deps(body))).output
        return (await graph.run(Act(), deps=Deps(body), persistence=persistence)).output

    return play


class BoomError(Exception):
    pass


class Calls:
    """A side effect that gives another value each time."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


async def test_the_current_task(play: Play, run_id: str) -> None:
    seen: list[CurrentTask] = []

    async def fail() -> int:
        seen.append(current_task())
        raise BoomError

    async def end() -> int:
        seen.append(current_task())
        return 1

    for _ in range(2):
        with pytest.raises(BoomError):
            await play(fail)
    assert await play(end) == 1
    assert [task.attempt for task in seen] == [1, 2, 3]
    assert {task.run_id for task in seen} == {run_id}
    assert {task.node_id for task in seen} == {'Act'}
    assert len({task.key for task in seen}) == 1
    assert seen[0].key.startswith(run_id)


async def test_a_later_run_of_the_same_id_has_other_keys(
    play: Play, store: Store, run_id: str
) -> None:
    keys: list[str] = []
    kept = _kept(beside=False)

    async def end() -> int:
        keys.append(current_task().key)
        return 1

    await play(end)
    await store.delete(run_id)
    await kept.run(inputs=0, deps=Deps(end), persistence=store.persistence(run_id))
    assert keys[0] != keys[1]


async def test_a_value_is_kept_when_the_step_fails_right_after_it(play: Play) -> None:
    calls = Calls()

    async def fail() -> int:
        await once('charge', calls)
        raise BoomError

    async def end() -> int:
        return await once('charge', calls)

    with pytest.raises(BoomError):
        await play(fail)
    assert await play(end) == 1
    assert calls.made == 1


async def test_a_value_is_committed_before_it_is_returned(
    play: Play, store: Store, run_id: str
) -> None:
    async def body() -> int:
        value = await once('charge', lambda: 7)
        snapshots = await store.snapshots(run_id)
        assert snapshots[-1].event == 'once'
        tasks = (await store.document(run_id)).tasks.values()
        assert [b'"memo":{"charge":7}' in task for task in tasks].count(True) == 1
        return value

    assert await play(body) == 7


async def test_several_values_are_kept_side_by_side(play: Play) -> None:
    calls = Calls()

    async def fail() -> int:
        await asyncio.gather(once('one', calls), once('two', calls))
        await once('three', calls)
        raise BoomError

    async def end() -> int:
        return sum([await once(name, calls) for name in ('one', 'two', 'three')])

    with pytest.raises(BoomError):
        await play(fail)
    assert await play(end) == 6
    assert calls.made == 3


async def test_calls_at_the_same_time_share_one(play: Play) -> None:
    calls = Calls()

    async def slow() -> int:
        await asyncio.sleep(0)
        return calls()

    async def body() -> int:
        values = await asyncio.gather(*(once('same', slow) for _ in range(5)))
        assert values == [1] * 5
        assert await once('same', slow) == 1, 'in one attempt the name stays the same value'
        return calls.made

    assert await play(body) == 1


async def test_one_of_them_who_loses_patience_takes_nothing_from_the_others(play: Play) -> None:
    calls, begun, go_on = Calls(), asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await go_on.wait()
        return calls()

    async def body() -> int:
        patient = asyncio.ensure_future(once('same', slow))
        impatient = asyncio.ensure_future(once('same', slow))
        await begun.wait()
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        go_on.set()
        return await patient

    assert await play(body) == 1


async def test_a_call_that_nobody_waits_for_is_cancelled_and_not_kept(play: Play) -> None:
    calls, ended = Calls(), list[str]()

    async def hang() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append('hang')
        return 0

    async def body() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await once('slow', hang)
        assert ended == ['hang']
        return await once('slow', calls)

    assert await play(body) == 1


async def test_errors_are_not_kept(play: Play) -> None:
    calls = Calls()

    def boom() -> int:
        calls()
        raise BoomError

    async def fail() -> int:
        for _ in range(2):
            with pytest.raises(BoomError):
                await once('charge', boom)
        return await once('charge', boom)

    async def end() -> int:
        return await once('charge', calls)

    with pytest.raises(BoomError):
        await play(fail)
    assert await play(end) == 4


class Receipt(BaseModel):
    day: date
    lines: list[str] = []


async def test_values_come_back_as_the_type_they_have(play: Play) -> None:
    receipt = Receipt(day=date(2026, 1, 2))

    async def charge() -> Receipt:
        return receipt

    def days() -> Any:
        return {date(2026, 1, 2): (1, 2)}

    async def body() -> int:
        first = await once('annotated', charge)
        assert first == receipt
        assert first is not receipt, 'as a later attempt will see it'
        first.lines.append('changed')
        assert await once('annotated', charge) == receipt
        assert await once('typed', days, type=dict[date, tuple[int, int]]) == days()
        if current_task().attempt == 1:
            raise BoomError
        return 1

    with pytest.raises(BoomError):
        await play(body)
    assert await play(body) == 1


async def test_a_value_that_would_not_come_back_is_refused(
    play: Play, store: Store, run_id: str
) -> None:
    async def body() -> int:
        with pytest.raises(LossyStateError, match=r"once\('pair'\)"):
            await once('pair', lambda: (1, 2))
        assert (await store.run(run_id)).seq == 0
        return 1

    assert await play(body) == 1


async def test_once_inside_of_once_is_refused(play: Play) -> None:
    """But what it calls may ask for the task: its key is for the other side."""

    async def outer() -> int:
        assert current_task().node_id == 'Act'
        return await once('inner', lambda: 1)

    async def body() -> int:
        with pytest.raises(RuntimeError, match=r"once\('inner'\).*inside of once\('outer'\)"):
            await once('outer', outer)
        return await once('inner', lambda: 1)

    assert await play(body) == 1


async def test_a_kept_run_inside_of_once_has_a_once_of_its_own(play: Play) -> None:
    kept = _kept(beside=False)

    async def inner() -> int:
        return await once('same', lambda: 5)

    async def nested() -> int:
        return await kept.run(inputs=0, deps=Deps(inner))

    async def body() -> int:
        return await once('same', nested) + await once('other', lambda: 1)

    assert await play(body) == 6


async def test_outside_of_a_run_both_say_so() -> None:
    with pytest.raises(RuntimeError, match=r'current_task\(\) was called outside'):
        current_task()
    with pytest.raises(RuntimeError, match=r'once\(\) was called outside'):
        await once('name', lambda: 1)


async def test_a_name_is_needed(play: Play) -> None:
    async def body() -> int:
        for name in ('', 7, None):
            with pytest.raises(ValueError, match='needs a name'):
                await once(name, lambda: 1)  # pyright: ignore[reportArgumentType]
        return 1

    assert await play(body) == 1


async def test_parallel_steps_and_map_items_have_values_of_their_own(
    store: Store, run_id: str
) -> None:
    g: Any = GraphBuilder(input_type=int, output_type=list[int], auto_instrument=False)
    calls, keys = Calls(), list[str]()

    @g.step
    async def numbers(ctx: StepContext[None, None, int]) -> list[int]:
        return [0] * ctx.inputs

    @g.step
    async def work(ctx: StepContext[None, None, int]) -> int:
        keys.append(current_task().key)
        return await once('same', calls)

    all_ = g.join(collect, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    kept = graphkeep.persist(g.build())
    output = await kept.run(inputs=4, persistence=store.persistence(run_id))
    assert sorted(output) == [1, 2, 3, 4]
    assert len(set(keys)) == 4


async def test_a_stream_may_keep_what_it_sends(store: Store, run_id: str) -> None:
    """A restarted stream must give the same items: with `once` it does."""
    g: Any = GraphBuilder(input_type=int, output_type=list[int], auto_instrument=False)
    calls, fails = Calls(), [True]

    @g.stream
    async def numbers(ctx: StepContext[None, None, int]) -> Any:
        for number in range(3):
            yield await once(f'item {number}', calls)
            if number == 1 and fails[0]:
                raise BoomError

    @g.step
    async def work(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs

    all_ = g.join(collect, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    kept = graphkeep.persist(g.build(), types={'work': int})
    with pytest.raises(BoomError):
        await kept.run(inputs=0, persistence=store.persistence(run_id))
    fails[0] = False
    assert sorted(await kept.resume(store.persistence(run_id))) == [1, 2, 3]
    assert calls.made == 3


def collect(current: list[int], inputs: int) -> list[int]:
    return [*current, inputs]
