"""A step that is cut short, in any way: the run can go on at once."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import graphkeep
from graphkeep import (
    Store,
)
from graphkeep.testing import Worker, eventually
from tests.classic.conftest import MakeStore, every_store, on_sqlite
from tests.classic.graphs import (
    Deps,
    Order,
    Pick,
    events,
    fails,
    nodes,
    order_tea,
    orders,
    status,
    stops_at,
    writes_through,
)


async def cancelled_from_outside(coroutine: Any, begun: asyncio.Event) -> None:
    task = asyncio.ensure_future(coroutine)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(coroutine: Any, begun: asyncio.Event) -> None:
    async def expire(scope: asyncio.Timeout) -> None:
        await begun.wait()
        scope.reschedule(0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as scope, asyncio.TaskGroup() as group:
            group.create_task(expire(scope))
            await coroutine


@every_store
@pytest.mark.parametrize('cut', [cancelled_from_outside, timed_out])
async def test_a_cancelled_step_leaves_the_run_ready(
    make_store: MakeStore, run_id: str, cut: Callable[..., Any]
) -> None:
    store, other = make_store(), make_store()
    deps, begun, _ = stops_at('Price')
    persistence = store.persistence(run_id)
    await cut(orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence), begun)

    assert await status(other, run_id) == 'ready'
    assert await events(other, run_id) == ['start', 'step']
    assert nodes(await persistence.load_all()) == ['Pick success', 'Price created']
    await Worker(other, run_id).take()


async def test_a_cancelled_step_runs_again(store: Store, run_id: str) -> None:
    persistence = store.persistence(run_id)
    deps, begun, go_on = stops_at('Price')
    await cancelled_from_outside(
        orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence), begun
    )

    go_on.set()
    for handle in (persistence, store.persistence(f'{run_id}/other')):
        if handle is not persistence:
            await store.fork(run_id, new_run_id=handle.run_id, at=1)
        result = await graphkeep.resume(orders, handle, deps=deps)
        assert result.output == 300
    assert deps.ran == ['Pick', 'Price', 'Price', 'Pay', 'Price', 'Pay']


@pytest.mark.parametrize('error', [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_step_leaves_the_run_ready(
    database: str, run_id: str, error: type[BaseException]
) -> None:
    async def interrupted(store: Store) -> None:
        deps = Deps(hooks={'Price': fails(error())})
        await order_tea(store, run_id, deps=deps)

    store = graphkeep.open_store(database)
    with asyncio.Runner() as runner:
        with pytest.raises(error):
            runner.run(interrupted(store))
        assert runner.run(status(store, run_id)) == 'ready'
        assert runner.run(events(store, run_id)) == ['start', 'step']
        runner.run(store.close())


@on_sqlite
async def test_a_step_whose_coroutine_is_closed_leaves_the_run_free(
    make_store: MakeStore, run_id: str
) -> None:
    """As when a loop goes down with its tasks: nobody can wait for anything any more."""
    store, other = make_store(), make_store()
    deps, begun, _ = stops_at('Price')
    coroutine = order_tea(store, run_id, deps=deps)
    context = contextvars.copy_context()
    while not begun.is_set():
        future: Any = context.run(coroutine.send, None)
        if not begun.is_set():
            future._asyncio_future_blocking = False
            await asyncio.wait((future,))

    coroutine.close()

    async def free() -> bool:
        return (await other.run(run_id)).status == 'ready'

    await eventually(free, what='the idle claim is given up')


@pytest.mark.parametrize('hook', ['create', 'append'])
@pytest.mark.parametrize('cancels', [1, 3])
async def test_a_cancel_during_a_write_waits_for_it_and_loses_nothing(
    make_store: MakeStore, run_id: str, hook: str, cancels: int
) -> None:
    store, other = make_store(), make_store()
    await store.open()
    write = getattr(store, f'_{hook}')
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await write(*args)

    setattr(store, f'_{hook}', slow)
    store.grouped = True
    deps = Deps()
    task = asyncio.create_task(order_tea(store, run_id, deps=deps))
    await begun.wait()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await status(other, run_id) == 'ready'
    assert await events(other, run_id) == ['start', 'step'][: 1 if hook == 'create' else 2]
    await graphkeep.resume(orders, other.persistence(run_id), deps=deps)
    assert deps.ran == ['Pick', 'Price', 'Pay']


async def test_an_anyio_scope_that_cancels_at_every_turn_of_the_loop(
    store: Store, run_id: str
) -> None:
    await store.open()
    append = store._append
    scope = anyio.CancelScope()

    async def slow(commits: Any) -> Any:
        scope.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        return await append(commits)

    writes_through(store, slow)
    with scope:
        await order_tea(store, run_id)

    assert scope.cancelled_caught
    assert await status(store, run_id) == 'ready'
    assert await events(store, run_id) == ['start', 'step']


async def test_a_cancel_during_the_last_write_finds_the_run_done(store: Store, run_id: str) -> None:
    await store.open()
    append = store._append

    async def cancelling(commits: Any) -> Any:
        if commits[0].status == 'done':
            task.cancel()
            await asyncio.sleep(0)
        return await append(commits)

    writes_through(store, cancelling)
    handle = store.persistence(run_id)
    task = asyncio.create_task(orders.run(Pick('tea'), state=Order(), persistence=handle))
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await status(store, run_id) == 'done'
    assert (await graphkeep.resume(orders, handle)).output == 300


async def test_a_cancel_while_the_run_is_claimed(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    claim = store._claim
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await claim(request)

    store._claim = slow
    deps = Deps()
    task = asyncio.create_task(graphkeep.resume(orders, store.persistence(run_id), deps=deps))
    await begun.wait()
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert deps.ran == []
    assert await status(store, run_id) == 'ready'
