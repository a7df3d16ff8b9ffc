"""`load_all`: the history of a run, put together from N + 1 commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_graph import End
from pydantic_graph.persistence import EndSnapshot

import graphkeep
from graphkeep import Store
from graphkeep.testing import Worker
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import (
    Deps,
    Order,
    Pay,
    Pick,
    Price,
    fails,
    nodes,
    order_tea,
    orders,
    shape,
    tea_by_node,
)


async def history(store: Store, run_id: str) -> Any:
    persistence = store.persistence(run_id)
    persistence.set_graph_types(orders)
    return await persistence.load_all()


async def eventful(store: Store, run_id: str) -> None:
    """A run with all that can happen: an edit, a replacement, a failure, a cancel, two handles."""
    deps = Deps(hooks={'Pay': fails(ValueError('declined'))})
    async with tea_by_node(store, run_id, deps=deps) as run:
        await run.next()
        await run.next(Price(cents=5))
        run.state.lines.append('hello')
        with pytest.raises(ValueError):
            await run.next()
    deps.hooks['Pay'] = fails(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await graphkeep.resume(orders, store.persistence(run_id), deps=deps)
    await graphkeep.resume(orders, store.persistence(run_id), deps=deps)


EVENTFUL = [
    ('Pick:0', 'success'),
    ('Price:1', 'created'),
    ('Price:2', 'success'),
    ('Pay:3', 'success'),
]


@every_store
async def test_the_same_history_and_ids_whatever_the_store(store: Store, run_id: str) -> None:
    await eventful(store, run_id)

    *executions, end = await history(store, run_id)

    assert [(each.id, each.status) for each in executions] == EVENTFUL
    assert end.id == f'end:{(await store.run(run_id)).seq}'
    assert shape([*executions, end]) == [
        ('Pick', 'success', Order(), Pick('tea'), True, True),
        ('Price', 'created', Order(['tea']), Price(300), False, False),
        ('Price', 'success', Order(['tea']), Price(5), True, True),
        ('Pay', 'success', Order(['tea', 'hello'], 5), Pay(), True, True),
        ('end', Order(['tea', 'hello', 'paid'], 5), End(5)),
    ]


async def test_every_reader_gets_the_same(make_store: MakeStore, run_id: str) -> None:
    store = make_store()
    await eventful(store, run_id)

    assert await history(store, run_id) == await history(make_store(), run_id)


@every_store
async def test_a_long_history(store: Store, run_id: str) -> None:
    """Longer than the distance of two full snapshots."""
    persistence = store.persistence(run_id)
    async with orders.iter(Pick('a' * 100), state=Order(), persistence=persistence) as run:
        for _ in range(60):
            await run.next(Pick('a' * 100))
        async for _ in run:
            pass

    found = await history(store, run_id)

    # Each Pick but the first takes the place of a Price that never ran.
    assert nodes(found) == [
        *(['Pick success', 'Price created'] * 59),
        *('Pick success', 'Price success', 'Pay success', 'end'),
    ]
    assert [len(each.state.lines) for each in found[::2]][:60] == list(range(60))
    assert len({each.id for each in found}) == len(found)


async def test_the_snapshots_are_copies(store: Store, run_id: str) -> None:
    persistence = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), persistence=persistence) as run:
        await run.next()
        for spoiled in await persistence.load_all():
            spoiled.state.lines.append('spoiled')
            spoiled.state.total = -1
            assert not isinstance(spoiled, EndSnapshot)
            spoiled.status = 'error'
            if isinstance(spoiled.node, Price):
                spoiled.node.cents = -1
        async for _ in run:
            pass

    found = await persistence.load_all()
    assert found[-1].node == End(300)
    assert found[-1].state == Order(['tea', 'paid'], 300)
    assert found[0].state == Order()
    assert found[1].state is not found[2].state


async def test_a_failed_node_keeps_its_times_and_loses_its_error_when_it_runs_again(
    store: Store, run_id: str
) -> None:
    deps = Deps(hooks={'Price': fails(ValueError())})
    with pytest.raises(ValueError):
        await order_tea(store, run_id, deps=deps)
    failed = (await history(store, run_id))[1]
    assert (failed.id, failed.status) == ('Price:1', 'error')
    assert failed.start_ts is not None
    assert failed.duration is not None

    await graphkeep.resume(orders, store.persistence(run_id), deps=deps)

    again = (await history(store, run_id))[1]
    assert (again.id, again.status) == ('Price:1', 'success')
    assert again.start_ts > failed.start_ts


async def test_how_a_pending_node_stands(make_store: MakeStore, run_id: str) -> None:
    """The start of a step is not stored: the handle knows of its own, the claim tells of others."""
    store, other = make_store(), make_store()
    statuses: list[Any] = []

    async def seen_by_others() -> str:
        return (await history(other, run_id))[0].status

    async def look(ctx: Any, node: Any) -> None:
        mine: Any = await persistence.load_all()
        theirs = await history(other, run_id)
        statuses.append((mine[0].status, theirs[0].status))
        assert (mine[0].start_ts is None, theirs[0].start_ts is None) == (False, True)

    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    assert await seen_by_others() == 'created'
    persistence = store.persistence(run_id)
    deps = Deps(hooks={'Pick': look})
    async with orders.iter_from_persistence(persistence, deps=deps) as run:
        assert nodes(await persistence.load_all()) == ['Pick pending']
        assert await seen_by_others() == 'created'
        await run.next()
        assert [each.status for each in await history(other, run_id)] == ['success', 'created']

    assert statuses == [('running', 'running')]


async def test_a_pending_node_that_another_machine_may_be_running(
    store: Store, run_id: str
) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    late = store.persistence(run_id)
    late.set_graph_types(orders)
    await late.load_next()
    elsewhere = Worker(store, run_id)
    await elsewhere.take()

    assert nodes(await late.load_all()) == ['Pick running']
    assert nodes(await history(store, run_id)) == ['Pick running']

    await store.release(elsewhere.claim)
    gone = Worker(store, run_id, ttl=0.0)
    await gone.take()
    assert nodes(await history(store, run_id)) == ['Pick created']


async def test_a_history_that_is_read_while_the_run_goes_on(
    make_store: MakeStore, run_id: str
) -> None:
    """It is that of one moment."""
    store, other = make_store(), make_store()
    await other.open()
    read = other._history
    async with tea_by_node(store, run_id) as run:
        await run.next()

        async def late(run_id: str, after: int, limit: int) -> Any:
            other._history = read
            async for _ in run:
                pass
            return await read(run_id, after, limit)

        other._history = late
        found = await history(other, run_id)

    assert nodes(found) == ['Pick success', 'Price created']
    assert nodes(await history(other, run_id))[-1] == 'end'


async def test_a_handle_that_was_overtaken_tells_what_is_stored(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    late = store.persistence(run_id)
    late.set_graph_types(orders)
    await late.load_next()
    deps = Deps(hooks={'Pick': fails(ValueError())})
    with pytest.raises(ValueError):
        await graphkeep.resume(orders, store.persistence(run_id), deps=deps)

    assert nodes(await late.load_all()) == ['Pick error']


async def test_the_history_of_a_fork_begins_where_it_was_forked(store: Store, run_id: str) -> None:
    await order_tea(store, run_id)
    await store.fork(run_id, new_run_id=f'{run_id}/middle', at=1)
    await store.fork(run_id, new_run_id=f'{run_id}/end')

    assert shape(await history(store, f'{run_id}/middle')) == [
        ('Price', 'created', Order(['tea']), Price(300), False, False)
    ]
    assert await history(store, f'{run_id}/end') == []

    await graphkeep.resume(orders, store.persistence(f'{run_id}/middle'))
    await graphkeep.resume(orders, store.persistence(f'{run_id}/end'), start=Pay(tip=1))
    assert nodes(await history(store, f'{run_id}/middle')) == [
        *('Price success', 'Pay success', 'end'),
    ]
    assert nodes(await history(store, f'{run_id}/end')) == ['Pay success', 'end']


async def test_with_the_newest_history_only(make_store: MakeStore, run_id: str) -> None:
    store = make_store(history='latest')
    persistence = store.persistence(run_id)
    async with orders.iter(Pick('a' * 100), state=Order(), persistence=persistence) as run:
        for _ in range(40):
            await run.next(Pick('a' * 100))
        async for _ in run:
            pass

    found = await persistence.load_all()

    assert 3 <= len(found) < 80
    assert nodes(found)[-4:] == ['Pick success', 'Price success', 'Pay success', 'end']
    assert found[-1].node == End(10_000)


async def test_a_graph_must_be_bound(store: Store, run_id: str) -> None:
    persistence = store.persistence(run_id)
    assert persistence.should_set_types()

    for call in (persistence.load_all, persistence.load_next):
        with pytest.raises(RuntimeError, match='set_graph_types'):
            await call()
    persistence.set_graph_types(orders)
    assert not persistence.should_set_types()
    assert await persistence.load_all() == []
