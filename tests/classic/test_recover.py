"""`graphkeep.recover`: the runs that dead processes left."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import Recovered, Store
from graphkeep import owner as owners
from graphkeep.testing import Worker, eventually
from tests.classic.conftest import MakeStore, every_store, on_sqlite
from tests.classic.graphs import (
    Deps,
    Order,
    Pick,
    count_calls,
    fails,
    order_tea,
    orders,
    rows,
    tea_by_node,
    writes,
)


@dataclass
class Once(BaseNode[None, Deps | None, str]):
    word: str

    async def run(self, ctx: GraphRunContext[None, Deps | None]) -> End[str]:
        if ctx.deps is not None:
            ctx.deps.ran.append(self.word)
        return End(self.word)


words = Graph[None, Deps | None, str](nodes=(Once,), name='words')


async def ready(store: Store, run_id: str, *, graph: str) -> None:
    """A run of `orders` that nobody has begun."""
    await orders.initialize(
        Pick('tea'), store.persistence(run_id, graph=graph), state=Order(), infer_name=False
    )


async def left(
    store: Store, run_id: str, *, graph: str, ttl: float = 0.0, owner: str | None = None
) -> Worker:
    """A run that a worker elsewhere has claimed, and whose lease ends after `ttl` seconds."""
    await ready(store, run_id, graph=graph)
    worker = Worker(store, run_id, ttl=ttl)
    if owner is not None:
        worker.owner = owner
    await worker.take()
    return worker


def dead_owner() -> str:
    """The owner of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, '-c', ''])
    process.wait()
    host, _, _, *machine = owners.current().split('/')
    return '/'.join((host, str(process.pid), '1', *machine))


def ids(recovered: Sequence[Recovered]) -> list[str]:
    return sorted(each.run_id for each in recovered)


@every_store
async def test_every_run_whose_worker_is_gone_goes_on(store: Store, run_id: str) -> None:
    name = f'orders {run_id}'
    for n in range(3):
        await left(store, f'{run_id}/{n}', graph=name)

    recovered = await graphkeep.recover(store, {name: orders})

    assert ids(recovered) == [f'{run_id}/{n}' for n in range(3)]
    for each in recovered:
        assert (each.graph, each.error) == (name, None)
        assert each.result is not None
        assert each.result.output == 300
        assert (await store.run(each.run_id)).status == 'done'


async def test_nothing_to_do(store: Store, run_id: str) -> None:
    assert await graphkeep.recover(store, {}) == []
    assert await graphkeep.recover(store, {'orders': orders}) == []
    await order_tea(store, run_id)
    await ready(store, f'{run_id}/ready', graph='orders')
    await left(store, f'{run_id}/other', graph='not ours')
    calls = count_calls(store)

    assert await graphkeep.recover(store, {'orders': orders}) == []
    assert writes(calls) == {}


async def test_several_graphs_by_the_name_their_runs_are_recorded_under(
    store: Store, run_id: str
) -> None:
    await left(store, f'{run_id}/a', graph='a')
    await left(store, f'{run_id}/b', graph='b')
    handle = store.persistence(f'{run_id}/w')
    await words.initialize(Once('hello'), handle)
    await Worker(store, handle.run_id, ttl=0.0).take()
    deps = Deps()

    recovered = await graphkeep.recover(
        store, {'a': orders, 'b': orders, 'words': words}, deps=deps
    )

    assert {each.run_id[-1]: each.graph for each in recovered} == {'a': 'a', 'b': 'b', 'w': 'words'}
    assert sorted(deps.ran) == ['Pay', 'Pay', 'Pick', 'Pick', 'Price', 'Price', 'hello']


@every_store
async def test_a_dead_process_of_this_machine_is_known_at_once(store: Store, run_id: str) -> None:
    name = f'orders {run_id}'
    await left(store, run_id, graph=name, ttl=3600.0, owner=dead_owner())

    assert [run.run_id for run in await store.interrupted(graph=name)] == [run_id]
    recovered = await graphkeep.recover(store, {name: orders}, wait=False)

    assert ids(recovered) == [run_id]


@on_sqlite
async def test_ready_runs_too(store: Store, run_id: str) -> None:
    await ready(store, f'{run_id}/ready', graph='orders')
    async with tea_by_node(store, f'{run_id}/left') as run:
        await run.next()

    async def free() -> bool:
        return (await store.run(f'{run_id}/left')).status == 'ready'

    await eventually(free, what='the idle claim is given up')
    assert await graphkeep.recover(store, {'orders': orders}) == []

    recovered = await graphkeep.recover(store, {'orders': orders}, ready=True)

    assert ids(recovered) == [f'{run_id}/left', f'{run_id}/ready']


async def test_runs_that_have_ended_in_any_way_are_left_alone(store: Store, run_id: str) -> None:
    deps = Deps(hooks={'Price': fails(ValueError())})
    with pytest.raises(ValueError):
        await order_tea(store, f'{run_id}/f', deps=deps)
    await order_tea(store, f'{run_id}/d')
    await ready(store, f'{run_id}/c', graph='orders')
    await store.cancel(f'{run_id}/c')

    assert await graphkeep.recover(store, {'orders': orders}, ready=True) == []


async def test_one_that_raises_does_not_stop_the_others(
    store: Store, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(4):
        await left(store, f'{run_id}/{n}', graph='orders')
    error = ZeroDivisionError('no price')
    deps = Deps(hooks={'Price': fails(error)})

    recovered = await graphkeep.recover(store, {'orders': orders}, deps=deps, concurrency=1)

    assert [each.error for each in recovered].count(error) == 1
    assert sorted(each.result.output for each in recovered if each.result) == [300] * 3
    (failed,) = await store.runs(status='failed')
    assert failed.error is not None
    assert failed.error['message'] == 'no price'
    assert 'was continued and raised' in caplog.text


async def test_a_run_that_does_not_fit_its_graph_is_reported(store: Store, run_id: str) -> None:
    await left(store, f'{run_id}/odd', graph='words')
    handle = store.persistence(f'{run_id}/fits')
    await words.initialize(Once('hello'), handle)
    await Worker(store, handle.run_id, ttl=0.0).take()
    before = await rows(store, f'{run_id}/odd')

    recovered = await graphkeep.recover(store, {'words': words})

    errors = {each.run_id: each.error for each in recovered}
    assert isinstance(errors[f'{run_id}/odd'], graphkeep.GraphChangedError)
    assert errors[f'{run_id}/fits'] is None
    assert await rows(store, f'{run_id}/odd') == before


async def test_an_error_of_an_inner_run_is_that_of_the_run(store: Store, run_id: str) -> None:
    await left(store, run_id, graph='orders')
    busy = await left(store, f'{run_id}/inner', graph='not ours', ttl=30.0)

    async def inner(ctx: Any, node: Any) -> None:
        await graphkeep.resume(orders, store.persistence(busy.run_id))

    deps = Deps(hooks={'Price': inner})
    (recovered,) = await graphkeep.recover(store, {'orders': orders}, deps=deps)

    assert recovered.run_id == run_id
    assert isinstance(recovered.error, graphkeep.RunBusyError)
    assert recovered.error.run_id == busy.run_id
    assert (await store.run(run_id)).status == 'failed'


@pytest.mark.parametrize('concurrency', [1, 3])
async def test_how_many_go_on_at_once(store: Store, run_id: str, concurrency: int) -> None:
    running, most = 0, 0

    async def count(ctx: Any, node: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    for n in range(7):
        await left(store, f'{run_id}/{n}', graph='orders')
    deps = Deps(hooks={'Price': count})

    recovered = await graphkeep.recover(
        store, {'orders': orders}, deps=deps, concurrency=concurrency
    )

    assert len(recovered) == 7
    assert most == concurrency


async def test_a_concurrency_of_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match='concurrency'):
        await graphkeep.recover(store, {}, concurrency=0)


@on_sqlite
async def test_a_claim_that_may_be_dead_is_watched_until_it_passes(
    store: Store, run_id: str
) -> None:
    await left(store, run_id, graph='orders', ttl=0.7)

    assert await graphkeep.recover(store, {'orders': orders}, wait=False) == []
    assert ids(await graphkeep.recover(store, {'orders': orders})) == [run_id]


@on_sqlite
async def test_a_claim_that_is_renewed_is_left_alone(store: Store, run_id: str) -> None:
    alive = await left(store, run_id, graph='orders', ttl=20.0)

    async def renew() -> None:
        while True:
            await asyncio.sleep(0.05)
            await store.renew([alive.claim])

    renewing = asyncio.create_task(renew())
    async with asyncio.timeout(10):
        recovered = await graphkeep.recover(store, {'orders': orders})
    renewing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await renewing

    assert recovered == []
    assert (await store.run(run_id)).owner == alive.owner


@on_sqlite
async def test_watching_ends_with_the_stores_lease(make_store: MakeStore, run_id: str) -> None:
    """A worker with a lease of an hour, which nobody here can know to be alive."""
    store = make_store(lease=0.4, heartbeat=0.1)
    await left(store, run_id, graph='orders', ttl=3600.0)

    async with asyncio.timeout(10):
        assert await graphkeep.recover(store, {'orders': orders}) == []


@pytest.mark.parametrize('ending', ['delete', 'cancel', 'release'])
async def test_a_watched_run_that_is_settled_meanwhile(
    store: Store, run_id: str, ending: str
) -> None:
    worker = await left(store, run_id, graph='orders')
    other = await left(store, f'{run_id}/watched', graph='orders', ttl=20.0)

    async def settle(ctx: Any, node: Any) -> None:
        if ending == 'delete':
            await store.delete(other.run_id, force=True)
        elif ending == 'cancel':
            await store.cancel(other.run_id)
        else:
            await store.release(other.claim)

    async with asyncio.timeout(10):
        recovered = await graphkeep.recover(
            store, {'orders': orders}, deps=Deps(hooks={'Pay': settle})
        )

    assert ids(recovered) == [worker.run_id]


async def test_two_who_recover_at_once_share_the_runs(make_store: MakeStore, run_id: str) -> None:
    stores, deps = [make_store(), make_store()], Deps()
    for n in range(8):
        await left(stores[0], f'{run_id}/{n}', graph='orders')

    recovered = await asyncio.gather(
        *(graphkeep.recover(store, {'orders': orders}, deps=deps) for store in stores)
    )

    assert ids([*recovered[0], *recovered[1]]) == [f'{run_id}/{n}' for n in range(8)]
    assert len(deps.ran) == 24


async def test_a_run_of_this_process_is_nobodys_to_recover(store: Store, run_id: str) -> None:
    async def meddle(ctx: Any, node: Any) -> None:
        async with asyncio.timeout(10):
            assert await graphkeep.recover(store, {'orders': orders}, ready=True) == []

    result = await order_tea(store, run_id, deps=Deps(hooks={'Price': meddle}))

    assert result.output == 300


async def test_a_cancelled_recover_leaves_its_runs_ready(store: Store, run_id: str) -> None:
    begun = asyncio.Event()

    async def wait(ctx: Any, node: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    for n in range(3):
        await left(store, f'{run_id}/{n}', graph='orders')
    task = asyncio.create_task(
        graphkeep.recover(store, {'orders': orders}, deps=Deps(hooks={'Price': wait}))
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    statuses = [(await store.run(f'{run_id}/{n}')).status for n in range(3)]
    assert 'ready' in statuses
    assert set(statuses) <= {'ready', 'running'}
    recovered = await graphkeep.recover(store, {'orders': orders}, ready=True)
    assert ids(recovered) == [f'{run_id}/{n}' for n in range(3)]


async def test_a_store_that_fails_is_told_by_its_own_error(run_id: str) -> None:
    """Not as a group of exceptions: `except StoreError` is what a worker has around it."""
    store = graphkeep.open_store('memory://')
    await store.close()
    with pytest.raises(graphkeep.StoreClosedError):
        await graphkeep.recover(store, {'orders': orders})


async def test_graphs_without_names_are_refused(store: Store) -> None:
    for wrong in (orders, [orders]):
        with pytest.raises(TypeError, match='mapping'):
            await graphkeep.recover(store, wrong)  # pyright: ignore[reportArgumentType]
