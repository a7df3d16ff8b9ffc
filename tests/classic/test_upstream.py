"""`StatePersistence` wherever upstream's own persistence goes, side by side with it."""

from __future__ import annotations

import asyncio
import uuid
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.exceptions import GraphNodeStatusError, GraphRuntimeError
from pydantic_graph.graph import Graph
from pydantic_graph.persistence import BaseStatePersistence, EndSnapshot, NodeSnapshot
from pydantic_graph.persistence.file import FileStatePersistence
from pydantic_graph.persistence.in_mem import FullStatePersistence

import graphkeep
from graphkeep import Store
from graphkeep.classic import StatePersistence
from tests.classic.conftest import every_store
from tests.classic.graphs import Deps, Order, Pay, Pick, Price, fails, nodes, orders, shape

Persistence = BaseStatePersistence[Any, Any]


def three(store: Store, run_id: str, tmp_path: Path) -> list[Persistence]:
    """Ours, and upstream's two."""
    return [
        store.persistence(run_id),
        FullStatePersistence(),
        FileStatePersistence(tmp_path / f'{uuid.uuid4().hex}.json'),
    ]


def same(results: list[Any]) -> Any:
    """The one value that all results are."""
    first = results[0]
    assert all(each == first for each in results[1:]), results
    return first


def test_it_is_an_upstream_persistence(store: Store) -> None:
    handle = store.persistence('run')

    assert isinstance(handle, StatePersistence)
    assert isinstance(handle, BaseStatePersistence)


@every_store
async def test_run(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        deps = Deps()
        result = await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence)

        assert result.persistence is persistence
        history = await persistence.load_all()
        results.append((result.output, result.state, deps.ran, shape(history)))

    output, state, ran, history = same(results)
    assert (output, state) == (300, Order(lines=['tea', 'paid'], total=300))
    assert ran == ['Pick', 'Price', 'Pay']
    assert history == [
        ('Pick', 'success', Order(), Pick('tea'), True, True),
        ('Price', 'success', Order(lines=['tea']), Price(300), True, True),
        ('Pay', 'success', Order(lines=['tea'], total=300), Pay(), True, True),
        ('end', Order(lines=['tea', 'paid'], total=300), End(300)),
    ]


@every_store
async def test_the_snapshots_are_upstreams_own_classes_with_aware_times(
    store: Store, run_id: str
) -> None:
    persistence = store.persistence(run_id)
    await orders.run(Pick('tea'), state=Order(), persistence=persistence)

    *executions, end = await persistence.load_all()

    for snapshot in executions:
        assert type(snapshot) is NodeSnapshot
        assert snapshot.kind == 'node'
        assert snapshot.start_ts is not None
        assert snapshot.start_ts.tzinfo == UTC
        assert isinstance(snapshot.duration, float)
        assert 0 <= snapshot.duration < 10
    assert type(end) is EndSnapshot
    assert end.kind == 'end'
    assert end.ts.tzinfo == UTC
    assert end.node is end.result
    assert executions[0].start_ts <= executions[1].start_ts <= executions[2].start_ts  # type: ignore[operator]


def test_run_sync(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        store = graphkeep.open_store(f'sqlite:///{tmp_path}/runs.db')
        for item in ('tea', 'coffee'):
            result = orders.run_sync(Pick(item), state=Order(), persistence=store.persistence(item))
            assert result.output == len(item) * 100
        history = loop.run_until_complete(result.persistence.load_all())
        assert nodes(history) == ['Pick success', 'Price success', 'Pay success', 'end']
        loop.run_until_complete(store.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_iter_gives_the_same_nodes(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
            assert run.result is None
            seen = [(node, deepcopy(run.state)) async for node in run]
        assert run.result is not None
        results.append((seen, run.result.output, shape(await persistence.load_all())))

    seen, output, _ = same(results)
    assert [node for node, _ in seen] == [Pick('tea'), Price(300), Pay(), End(300)]
    assert output == 300


async def test_history_while_it_runs(store: Store, run_id: str, tmp_path: Path) -> None:
    """After every step, and in the middle of one, `load_all` is what upstream's is."""
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        histories: list[Any] = []

        async def look(
            _ctx: Any, _node: Any, p: Persistence = persistence, to: list[Any] = histories
        ) -> None:
            to.append(shape(await p.load_all()))

        deps = Deps(hooks={'Pick': look, 'Price': look, 'Pay': look})
        async with orders.iter(
            Pick('tea'), state=Order(), deps=deps, persistence=persistence
        ) as run:
            histories.append(shape(await persistence.load_all()))
            histories += [shape(await persistence.load_all()) async for _ in run]
        results.append(histories)

    histories = same(results)
    assert histories[0] == []
    in_price, after_price = histories[2], histories[6]
    assert [each[1] for each in in_price] == ['success', 'running']
    assert [each[1] for each in after_price] == ['success', 'success', 'created']


async def test_next_without_and_with_the_node(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
            price = await run.next()
            assert isinstance(price, Price)
            pay = await run.next(price)
            end = await run.next()
        results.append((price, pay, end, shape(await persistence.load_all())))

    assert same(results)[:3] == (Price(300), Pay(), End(300))


async def test_next_with_another_node(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
            await run.next()
            await run.next(Price(cents=1))
            end = await run.next(Pay(tip=50))
        results.append((end, shape(await persistence.load_all())))

    end, history = same(results)
    assert end == End(51)
    assert [(name, status) for name, status, *_ in history[:-1]] == [
        ('Pick', 'success'),
        ('Price', 'created'),
        ('Price', 'success'),
        ('Pay', 'created'),
        ('Pay', 'success'),
    ]


async def test_the_first_node_may_be_replaced_before_anything_runs(
    store: Store, run_id: str, tmp_path: Path
) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
            await run.next(Price(cents=7))
        results.append(shape(await persistence.load_all()))

    assert [each[:2] for each in same(results)] == [('Price', 'success'), ('Pay', 'created')]


@every_store
async def test_initialize_then_iter_from_persistence(
    store: Store, run_id: str, tmp_path: Path
) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        await orders.initialize(Pick('tea'), persistence, state=Order())
        created = shape(await persistence.load_all())
        async with orders.iter_from_persistence(persistence, deps=Deps()) as run:
            pending = shape(await persistence.load_all())
            seen = [node async for node in run]
        assert run.result is not None
        results.append((created, pending, seen, shape(await persistence.load_all())))

    created, pending, seen, _ = same(results)
    assert created == [('Pick', 'created', Order(), Pick('tea'), False, False)]
    assert pending == [('Pick', 'pending', Order(), Pick('tea'), False, False)]
    assert seen == [Pick('tea'), Price(300), Pay(), End(300)]


@every_store
async def test_one_node_at_a_time_with_a_new_handle_each(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())

    for expected in (Price(300), Pay(), End(300)):
        async with orders.iter_from_persistence(store.persistence(run_id)) as run:
            assert await run.next() == expected

    history = await history_of(store, run_id)
    assert nodes(history) == ['Pick success', 'Price success', 'Pay success', 'end']


async def history_of(store: Store, run_id: str) -> Any:
    persistence = store.persistence(run_id)
    persistence.set_graph_types(orders)
    return await persistence.load_all()


async def test_load_next_gives_node_and_state(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        persistence.set_graph_types(orders)
        assert await persistence.load_next() is None
        assert await persistence.load_all() == []
        await orders.initialize(Pick('tea'), persistence, state=Order(total=5))
        snapshot = await persistence.load_next()
        assert snapshot is not None
        results.append(shape([snapshot]))

    assert same(results) == [('Pick', 'pending', Order(total=5), Pick('tea'), False, False)]


async def test_nothing_to_restore(store: Store, run_id: str, tmp_path: Path) -> None:
    for persistence in three(store, run_id, tmp_path):
        with pytest.raises(GraphRuntimeError, match='Unable to restore snapshot'):
            async with orders.iter_from_persistence(persistence):
                pass


async def test_nothing_to_restore_once_it_has_ended(
    store: Store, run_id: str, tmp_path: Path
) -> None:
    for persistence in three(store, run_id, tmp_path):
        await orders.run(Pick('tea'), state=Order(), persistence=persistence)

        with pytest.raises(GraphRuntimeError, match='Unable to restore snapshot'):
            async with orders.iter_from_persistence(persistence):
                pass


async def test_a_node_that_raises(store: Store, run_id: str, tmp_path: Path) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        deps = Deps(hooks={'Price': fails(ZeroDivisionError('no price'))})
        with pytest.raises(ZeroDivisionError, match='no price'):
            await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence)
        assert await persistence.load_next() is None
        results.append(shape(await persistence.load_all()))

    assert same(results) == [
        ('Pick', 'success', Order(), Pick('tea'), True, True),
        ('Price', 'error', Order(lines=['tea']), Price(300), True, True),
    ]


async def test_a_node_runs_once_in_a_graph_run(store: Store, run_id: str, tmp_path: Path) -> None:
    """Again after an error, or after it has run: `GraphNodeStatusError`, as upstream."""
    for persistence in three(store, run_id, tmp_path):
        deps = Deps(hooks={'Price': fails(ZeroDivisionError())})
        async with orders.iter(
            Pick('tea'), state=Order(), deps=deps, persistence=persistence
        ) as run:
            pick = run.next_node
            assert isinstance(pick, Pick)
            await run.next()
            with pytest.raises(GraphNodeStatusError, match="'success'") as error:
                await run.next(pick)
            assert error.value.actual_status == 'success'
            price = run.next_node
            assert isinstance(price, Price)
            with pytest.raises(ZeroDivisionError):
                await run.next(price)
            for node in (None, price):
                with pytest.raises(GraphNodeStatusError, match="'error'") as error:
                    await run.next(node)
                assert error.value.actual_status == 'error'
        assert deps.ran == ['Pick', 'Price']


async def test_another_node_may_run_after_an_error(
    store: Store, run_id: str, tmp_path: Path
) -> None:
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        deps = Deps(hooks={'Price': fails(ZeroDivisionError())})
        async with orders.iter(
            Pick('tea'), state=Order(), deps=deps, persistence=persistence
        ) as run:
            await run.next()
            with pytest.raises(ZeroDivisionError):
                await run.next()
            end = await run.next(Pay(tip=3))
        results.append((end, deps.ran, shape(await persistence.load_all())))

    end, ran, history = same(results)
    assert end == End(3)
    assert ran == ['Pick', 'Price', 'Pay']
    assert [each[:2] for each in history[:-1]] == [
        ('Pick', 'success'),
        ('Price', 'error'),
        ('Pay', 'success'),
    ]


async def test_a_snapshot_nobody_knows(store: Store, run_id: str, tmp_path: Path) -> None:
    for persistence in three(store, run_id, tmp_path):
        persistence.set_graph_types(orders)
        with pytest.raises(LookupError, match="No snapshot found with id='foobar'"):
            async with persistence.record_run('foobar'):
                raise AssertionError('it must not run')

        await orders.initialize(Pick('tea'), persistence, state=Order())
        with pytest.raises(LookupError, match="No snapshot found with id='foobar'"):
            async with persistence.record_run('foobar'):
                raise AssertionError('it must not run')


async def test_a_snapshot_of_the_past(store: Store, run_id: str, tmp_path: Path) -> None:
    """Also by the ids that `load_all` gives, and in a handle that did not run it."""
    for persistence in three(store, run_id, tmp_path):
        deps = Deps(hooks={'Price': fails(ZeroDivisionError())})
        with pytest.raises(ZeroDivisionError):
            await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence)
        others = [persistence]
        if isinstance(persistence, StatePersistence):
            others.append(store.persistence(run_id))
        for other in others:
            other.set_graph_types(orders)
            for snapshot, status in zip(await other.load_all(), ('success', 'error'), strict=True):
                with pytest.raises(GraphNodeStatusError) as error:
                    async with other.record_run(snapshot.id):
                        raise AssertionError('it must not run')
                assert error.value.actual_status == status


async def test_what_is_not_a_node(store: Store, run_id: str, tmp_path: Path) -> None:
    for persistence in three(store, run_id, tmp_path):
        async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
            await run.next()
            await run.next()
            await run.next()
            with pytest.raises(TypeError, match='must be called with a `BaseNode` instance'):
                await run.next()
        assert nodes(await persistence.load_all())[-1] == 'end'


@dataclass
class Stranger(BaseNode[Order, Deps | None, int]):
    async def run(self, ctx: GraphRunContext[Order, Deps | None]) -> End[int]:
        return End(0)


async def test_a_node_that_is_not_in_the_graph_is_refused_before_anything_is_written(
    store: Store, run_id: str
) -> None:
    persistence = store.persistence(run_id)

    with pytest.raises(GraphRuntimeError, match='is not in the graph'):
        await orders.run(Stranger(), state=Order(), persistence=persistence)
    assert await store.runs() == []

    async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
        await run.next()
        before = await store.snapshots(run_id)
        with pytest.raises(GraphRuntimeError, match='is not in the graph'):
            await run.next(Stranger())
        with pytest.raises(TypeError, match='must be called with a `BaseNode`'):
            await run.next(End(1))  # type: ignore[arg-type]
        assert await store.snapshots(run_id) == before
        assert [node async for node in run][-1] == End(300)


async def test_initialize_with_what_is_not_in_the_graph_writes_nothing(
    store: Store, run_id: str
) -> None:
    with pytest.raises(graphkeep.GraphChangedError, match='Stranger') as error:
        await orders.initialize(Stranger(), store.persistence(run_id), state=Order())
    assert error.value.node == 'Stranger'
    with pytest.raises(TypeError, match='expected a node'):
        await orders.initialize('Pick', store.persistence(run_id), state=Order())  # type: ignore[arg-type]

    assert await store.runs() == []


@dataclass
class Astray(BaseNode[None, None, int]):
    strays: bool = True

    async def run(self, ctx: GraphRunContext[None]) -> Astray | End[int]:
        return Lost() if self.strays else End(1)  # type: ignore[return-value]


@dataclass
class Lost(BaseNode[None, None, int]):
    async def run(self, ctx: GraphRunContext[None]) -> End[int]:
        raise AssertionError('it must not run')


astray = Graph[None, None, int](nodes=(Astray,), name='astray')


async def test_a_node_that_returns_one_that_is_not_in_the_graph(
    store: Store, run_id: str, tmp_path: Path
) -> None:
    """Upstream's error, but from the node that erred: it can run again when it is mended."""
    for persistence in three(store, run_id, tmp_path)[:2]:
        with pytest.raises(GraphRuntimeError, match=r'Node `Lost\(\)` is not in the graph'):
            await astray.run(Astray(), persistence=persistence)

    run = await store.run(run_id)
    assert run.status == 'failed'
    assert run.error is not None
    assert run.error['node'] == 'Astray'
    assert (await store.document(run_id)).tasks.keys() == {'0'}


@dataclass
class Nonsense(BaseNode[None, None, int]):
    async def run(self, ctx: GraphRunContext[None]) -> End[int]:
        return 42  # type: ignore[return-value]


nonsense = Graph[None, None, int](nodes=(Nonsense,), name='nonsense')


async def test_a_node_that_returns_nonsense(store: Store, run_id: str, tmp_path: Path) -> None:
    """Upstream raises, and calls nothing: for us the node has not ended, and can run again."""
    results: list[Any] = []
    for persistence in three(store, run_id, tmp_path):
        async with nonsense.iter(Nonsense(), persistence=persistence) as run:
            node = run.next_node
            assert isinstance(node, Nonsense)
            with pytest.raises(GraphRuntimeError, match='Invalid node return type: `int`'):
                await run.next()
            with pytest.raises(GraphNodeStatusError, match="'success'"):
                await run.next(node)
        results.append(nodes(await persistence.load_all()))

    assert same(results) == ['Nonsense success']
    again = store.persistence(run_id)
    with pytest.raises(GraphRuntimeError, match='Invalid node return type'):
        await graphkeep.resume(nonsense, again)
    assert len(await store.snapshots(run_id)) == 1
