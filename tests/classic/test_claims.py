"""Who may run a run, and what is left when a step is interrupted in any way."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from pydantic_graph import End

import graphkeep
from graphkeep import (
    LeaseLostError,
    RunBusyError,
    RunNotFoundError,
    RunStatusError,
    Store,
    StoreClosedError,
    StoreUnavailableError,
    StoreWriteError,
)
from graphkeep.testing import Worker, eventually
from tests.classic.conftest import MakeStore, every_store, in_memory, on_sqlite
from tests.classic.graphs import (
    Deps,
    Hook,
    Order,
    Pay,
    Pick,
    count_calls,
    events,
    fails,
    nodes,
    orders,
    writes,
    writes_through,
)


async def status(store: Store, run_id: str) -> str:
    return (await store.run(run_id)).status


def stops_at(name: str) -> tuple[Deps, asyncio.Event, asyncio.Event]:
    """Deps with which a node waits: that it has begun, and a signal to go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: Any, node: Any) -> None:
        begun.set()
        await go_on.wait()

    return Deps(hooks={name: wait}), begun, go_on


# --- while a node runs ----------------------------------------------------------------------------


@every_store
async def test_while_a_node_runs_nobody_else_gets_the_run(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    deps, begun, go_on = stops_at('Price')
    running = asyncio.create_task(
        orders.run(Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id))
    )
    await begun.wait()

    assert await status(store, run_id) == 'running'
    for attempt in (
        lambda: graphkeep.resume(orders, store.persistence(run_id)),
        lambda: graphkeep.resume(orders, other.persistence(run_id)),
        lambda: other.delete(run_id),
        Worker(other, run_id).take,
    ):
        with pytest.raises(RunBusyError) as error:
            await attempt()
        assert error.value.run_id == run_id
        assert error.value.owner

    go_on.set()
    assert (await running).output == 300


@every_store
async def test_a_claim_is_renewed_while_a_node_runs(make_store: MakeStore, run_id: str) -> None:
    store, other = make_store(lease=2.0, heartbeat=0.1), make_store()

    async def long(ctx: Any, node: Any) -> None:
        first = (await other.run(run_id)).lease_until
        assert first is not None

        async def renewed() -> bool:
            now = (await other.run(run_id)).lease_until
            return now is not None and now > first

        await eventually(renewed, what='the claim is renewed')
        with pytest.raises(RunBusyError):
            await Worker(other, run_id).take()

    deps = Deps(hooks={'Price': long})
    await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id))

    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


@on_sqlite
async def test_a_run_of_short_steps_is_renewed_by_its_commits(
    make_store: MakeStore, run_id: str
) -> None:
    store = make_store(lease=4.0, heartbeat=1.0)
    calls = count_calls(store)

    async def short(ctx: Any, node: Any) -> None:
        await asyncio.sleep(0.5)

    hooks: dict[str, Hook] = dict.fromkeys(('Pick', 'Price', 'Pay'), short)
    await orders.run(
        Pick('tea'),
        state=Order(),
        deps=Deps(hooks=hooks),
        persistence=store.persistence(run_id),
    )

    assert writes(calls) == {'create': 1, 'append': 3}


@every_store
async def test_who_lost_the_run_writes_nothing_more(make_store: MakeStore, run_id: str) -> None:
    """A step that blocked the loop past its lease: another has gone on meanwhile."""
    store, other = make_store(), make_store()
    deps, begun, go_on = stops_at('Price')
    running = asyncio.create_task(
        orders.run(Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id))
    )
    await begun.wait()
    seen = await other.run(run_id)
    thief = Worker(other, run_id)
    await thief.take(expected_epoch=seen.epoch)

    go_on.set()
    with pytest.raises(LeaseLostError) as error:
        await running

    assert error.value.run_id == run_id
    assert await events(other, run_id) == ['start', 'step']
    now = await other.run(run_id)
    assert (now.status, now.owner, now.error) == ('running', thief.owner, None)


@pytest.mark.parametrize('ending', ['cancel', 'delete'])
async def test_a_run_cancelled_or_deleted_under_a_running_node(
    store: Store, run_id: str, ending: str
) -> None:
    async def end(ctx: Any, node: Any) -> None:
        if ending == 'cancel':
            await store.cancel(run_id)
        else:
            await store.delete(run_id, force=True)

    deps = Deps(hooks={'Price': end})
    with pytest.raises(LeaseLostError):
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )

    assert deps.ran == ['Pick', 'Price']
    if ending == 'cancel':
        assert await status(store, run_id) == 'cancelled'
        assert await events(store, run_id) == ['start', 'step']
        with pytest.raises(RunStatusError, match='cancelled'):
            await graphkeep.resume(orders, store.persistence(run_id))
    else:
        with pytest.raises(RunNotFoundError):
            await store.run(run_id)


async def test_a_node_that_raises_after_its_run_was_lost_raises_its_own_error(
    store: Store, run_id: str
) -> None:
    async def end(ctx: Any, node: Any) -> None:
        await store.cancel(run_id)
        raise ZeroDivisionError

    deps = Deps(hooks={'Price': end})
    with pytest.raises(ZeroDivisionError):
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )

    assert await events(store, run_id) == ['start', 'step']


@in_memory
@pytest.mark.parametrize('exists', [True, False])
async def test_a_claim_that_was_just_got_is_not_taken_for_idle(
    make_store: MakeStore, run_id: str, exists: bool
) -> None:
    """Between the answer of the database and the node that is about to run."""
    store, other = make_store(), make_store()
    await other.open()
    if exists:
        await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    hold = store.leases.hold
    rivals: list[asyncio.Task[Any]] = []

    def hold_beside_a_rival(claim: Any) -> Any:
        rivals.append(asyncio.create_task(other.claim(run_id)))
        return hold(claim)

    store.leases.hold = hold_beside_a_rival
    result = await graphkeep.resume(
        orders, store.persistence(run_id), start=Pick('tea'), state=Order()
    )

    assert result.output == 300
    (rival,) = rivals
    with pytest.raises(RunBusyError):
        await rival


# --- left between two nodes -----------------------------------------------------------------------


@every_store
async def test_a_run_that_was_left_goes_on_at_once_in_the_same_process(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with orders.iter(
        Pick('tea'), state=Order(), persistence=store.persistence(run_id)
    ) as run:
        await run.next()

    assert (await graphkeep.resume(orders, other.persistence(run_id))).output == 300
    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


@every_store
async def test_a_run_that_was_left_is_free_elsewhere_within_two_seconds(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with orders.iter(
        Pick('tea'), state=Order(), persistence=store.persistence(run_id)
    ) as run:
        await run.next()
        with pytest.raises(RunBusyError):
            await Worker(other, run_id).take()

    async def free() -> bool:
        return (await other.run(run_id)).status == 'ready'

    await eventually(free, what='the idle claim is given up', timeout=2.0)
    await Worker(other, run_id).take()


@on_sqlite
async def test_a_caller_may_think_between_two_nodes(make_store: MakeStore, run_id: str) -> None:
    """The idle claim is given up meanwhile, and got again."""
    store, other = make_store(), make_store()
    async with orders.iter(
        Pick('tea'), state=Order(), persistence=store.persistence(run_id)
    ) as run:
        await run.next()

        async def free() -> bool:
            return (await other.run(run_id)).status == 'ready'

        await eventually(free, what='the idle claim is given up')
        run.state.total = 5
        await run.next()
        await eventually(free, what='the idle claim is given up')
        assert await run.next() == End(305)

    assert await events(store, run_id) == ['start', 'step', 'edit', 'step', 'end']


@on_sqlite
async def test_another_took_the_run_while_the_caller_was_thinking(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    deps = Deps()
    async with orders.iter(
        Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
    ) as run:
        await run.next()

        async def taken() -> bool:
            try:
                await Worker(other, run_id).take()
            except RunBusyError:
                return False
            return True

        await eventually(taken, what='the idle claim is given up')
        with pytest.raises(RunBusyError):
            await run.next()

    assert deps.ran == ['Pick']


@on_sqlite
async def test_a_handle_that_was_dropped_leaves_the_run_free(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()

    async def start() -> None:
        async with orders.iter(
            Pick('tea'), state=Order(), persistence=store.persistence(run_id)
        ) as run:
            await run.next()

    await start()
    gc.collect()

    async def free() -> bool:
        return (await other.run(run_id)).status == 'ready'

    await eventually(free, what='the idle claim is given up')


async def test_a_store_that_is_closed_gives_the_claims_up_at_once(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with orders.iter(
        Pick('tea'), state=Order(), persistence=store.persistence(run_id)
    ) as run:
        await run.next()
        await store.close()

        assert await status(other, run_id) == 'ready'
        with pytest.raises(StoreClosedError):
            await run.next()

    await Worker(other, run_id).take()


async def test_a_store_that_is_closed_while_a_node_runs(make_store: MakeStore, run_id: str) -> None:
    """What the node did is not committed, the caller is told why, and the run can go on."""
    store, other = make_store(), make_store()
    deps = Deps(hooks={'Price': lambda ctx, node: store.close()})
    persistence = store.persistence(run_id)

    with pytest.raises(StoreClosedError, match='closed'):
        await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=persistence)

    assert await status(other, run_id) == 'ready'
    with pytest.raises(StoreClosedError):
        await graphkeep.resume(orders, persistence)
    result = await graphkeep.resume(orders, other.persistence(run_id))
    assert (result.output, result.state.lines) == (300, ['tea', 'paid'])


def test_a_store_belongs_to_one_event_loop(database: str, run_id: str) -> None:
    async def use(store: Store) -> None:
        async with orders.iter(
            Pick('tea'), state=Order(), persistence=store.persistence(run_id)
        ) as run:
            await run.next()

    async def use_again(store: Store) -> None:
        with pytest.raises(StoreClosedError, match='another event loop'):
            await graphkeep.resume(orders, store.persistence(run_id))

    store = graphkeep.open_store(database)
    with asyncio.Runner() as mine:
        mine.run(use(store))
        with asyncio.Runner() as other:
            other.run(use_again(store))
        mine.run(store.close())


# --- a step that is cut short ---------------------------------------------------------------------


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
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )

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
    coroutine = orders.run(
        Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
    )
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
    task = asyncio.create_task(
        orders.run(Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id))
    )
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
        await orders.run(Pick('tea'), state=Order(), persistence=store.persistence(run_id))

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


# --- a commit that fails --------------------------------------------------------------------------


def refuses(store: Store, error: Exception, *, first: int, count: int = 1) -> None:
    """Let some appends of a store fail, beginning with number `first`, counted from one."""
    append = store._append
    number = 0

    async def failing(commits: Any) -> Any:
        nonlocal number
        number += 1
        if first <= number < first + count:
            return [error] * len(commits)
        return await append(commits)

    writes_through(store, failing)


async def test_a_commit_that_the_database_refuses_fails_the_run(store: Store, run_id: str) -> None:
    """The disk was full for a moment: the failure is stored, and the step can run again."""
    refuses(store, StoreWriteError('the disk is full'), first=2)
    deps = Deps()

    with pytest.raises(StoreWriteError, match='full'):
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )

    run = await store.run(run_id)
    assert run.status == 'failed'
    assert run.error is not None
    assert (run.error['type'], run.error['node']) == (
        'graphkeep.errors.StoreWriteError',
        'Price',
    )
    result = await graphkeep.resume(orders, store.persistence(run_id), deps=deps)
    assert (result.output, result.state.total) == (300, 300)
    assert deps.ran == ['Pick', 'Price', 'Price', 'Pay']


async def test_a_commit_that_is_refused_and_its_failure_too(store: Store, run_id: str) -> None:
    refuses(store, StoreWriteError('the disk is full'), first=2, count=2)

    with pytest.raises(StoreWriteError, match='full') as error:
        await orders.run(Pick('tea'), state=Order(), persistence=store.persistence(run_id))

    assert any('could not be stored' in note for note in error.value.__notes__)
    assert await status(store, run_id) == 'ready'
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 300


async def test_the_database_is_out_of_reach_when_a_step_ends(
    make_store: MakeStore, run_id: str
) -> None:
    """The claim is left to its lease; this process knows that nobody uses it."""
    store = make_store(retry=0.0)
    calls = count_calls(store)
    refuses(store, StoreUnavailableError('no route'), first=2)

    append = store._append

    async def raising(commits: Any) -> Any:
        results = await append(commits)
        for each in results:
            if each is not None:
                raise each
        return results

    writes_through(store, raising)
    with pytest.raises(StoreUnavailableError, match='no route'):
        await orders.run(Pick('tea'), state=Order(), persistence=store.persistence(run_id))

    assert calls['release'] == 0
    assert await status(store, run_id) == 'running'
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 300


@every_store
async def test_a_reply_that_was_lost_is_no_second_write(store: Store, run_id: str) -> None:
    """The commit went through, its reply did not: the retry recognises it."""
    append = store._append
    lost: list[int] = []

    async def losing(commits: Any) -> Any:
        results = await append(commits)
        if len(lost) < 2:
            lost.append(commits[0].draft.seq)
            raise StoreUnavailableError('the reply was lost')
        return results

    writes_through(store, losing)
    result = await orders.run(Pick('tea'), state=Order(), persistence=store.persistence(run_id))

    assert result.output == 300
    assert lost == [1, 1]
    assert [s.seq for s in await store.snapshots(run_id)] == [0, 1, 2, 3]


async def test_a_failed_edit_leaves_the_run_as_it_was(store: Store, run_id: str) -> None:
    refuses(store, StoreWriteError('the disk is full'), first=2)
    deps = Deps()
    persistence = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), deps=deps, persistence=persistence) as run:
        await run.next()
        run.state.total = 9
        with pytest.raises(StoreWriteError):
            await run.next()
        assert await status(store, run_id) == 'ready'
        assert deps.ran == ['Pick']

        assert await run.next() is not None
    assert run.state.total == 309
    assert await events(store, run_id) == ['start', 'step', 'edit', 'step']


async def test_a_failed_replacement_leaves_the_run_as_it_was(store: Store, run_id: str) -> None:
    refuses(store, StoreWriteError('the disk is full'), first=2)
    async with orders.iter(
        Pick('tea'), state=Order(), persistence=store.persistence(run_id)
    ) as run:
        await run.next()
        with pytest.raises(StoreWriteError):
            await run.next(Pay(tip=1))
        assert await status(store, run_id) == 'ready'

        assert await run.next(Pay(tip=2)) == End(2)
    assert await events(store, run_id) == ['start', 'step', 'replace', 'end']


# --- many runs ------------------------------------------------------------------------------------


@every_store
async def test_many_runs_of_one_process(store: Store, run_id: str) -> None:
    async def yields(ctx: Any, node: Any) -> None:
        await asyncio.sleep(0)

    hooks: dict[str, Hook] = dict.fromkeys(('Pick', 'Price', 'Pay'), yields)
    results = await asyncio.gather(
        *(
            orders.run(
                Pick('x' * n),
                state=Order(),
                deps=Deps(hooks=hooks),
                persistence=store.persistence(f'{run_id}/{n}'),
            )
            for n in range(40)
        )
    )

    assert [each.output for each in results] == [n * 100 for n in range(40)]
    assert [each.state.lines[0] for each in results] == ['x' * n for n in range(40)]


async def test_a_run_that_fails_does_not_touch_the_others(store: Store, run_id: str) -> None:
    results = await asyncio.gather(
        *(
            orders.run(
                Pick('x'),
                state=Order(),
                deps=Deps(hooks={'Price': fails(ValueError())} if n % 2 else {}),
                persistence=store.persistence(f'{run_id}/{n}'),
            )
            for n in range(10)
        ),
        return_exceptions=True,
    )

    assert [isinstance(each, ValueError) for each in results] == [False, True] * 5


@on_sqlite
async def test_nothing_writes_after_the_end(store: Store, run_id: str) -> None:
    calls = count_calls(store)
    await orders.run(Pick('tea'), state=Order(), persistence=store.persistence(run_id))
    before = writes(calls)

    # Longer than an idle claim is kept.
    await asyncio.sleep(1.3)

    assert writes(calls) == before == {'create': 1, 'append': 3}
