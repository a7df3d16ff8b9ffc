"""Who may run a run, and what is left when a step is interrupted in any way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

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
)
from graphkeep.testing import Worker, eventually
from tests.classic.conftest import MakeStore, every_store, in_memory, on_sqlite
from tests.classic.graphs import (
    Deps,
    Hook,
    Order,
    Pick,
    count_calls,
    events,
    fails,
    order_tea,
    orders,
    status,
    stops_at,
    tea_by_node,
    writes,
)

# --- while a node runs ----------------------------------------------------------------------------


@every_store
async def test_while_a_node_runs_nobody_else_gets_the_run(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    deps, begun, go_on = stops_at('Price')
    running = asyncio.create_task(order_tea(store, run_id, deps=deps))
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
    await order_tea(store, run_id, deps=deps)

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
    await order_tea(store, run_id, deps=Deps(hooks=hooks))

    assert writes(calls) == {'create': 1, 'append': 3}


@every_store
async def test_who_lost_the_run_writes_nothing_more(make_store: MakeStore, run_id: str) -> None:
    """A step that blocked the loop past its lease: another has gone on meanwhile."""
    store, other = make_store(), make_store()
    deps, begun, go_on = stops_at('Price')
    running = asyncio.create_task(order_tea(store, run_id, deps=deps))
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
        await order_tea(store, run_id, deps=deps)

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
        await order_tea(store, run_id, deps=deps)

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


def is_free(store: Store, run_id: str) -> Callable[[], Awaitable[bool]]:
    """Whether nobody has the run."""

    async def ready() -> bool:
        return await status(store, run_id) == 'ready'

    return ready


@every_store
async def test_a_run_that_was_left_goes_on_at_once_in_the_same_process(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with tea_by_node(store, run_id) as run:
        await run.next()

    assert (await graphkeep.resume(orders, other.persistence(run_id))).output == 300
    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


@every_store
async def test_a_run_that_was_left_is_free_elsewhere_within_two_seconds(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with tea_by_node(store, run_id) as run:
        await run.next()
        with pytest.raises(RunBusyError):
            await Worker(other, run_id).take()

    await eventually(is_free(other, run_id), what='the idle claim is given up', timeout=2.0)
    await Worker(other, run_id).take()


@on_sqlite
async def test_a_caller_may_think_between_two_nodes(make_store: MakeStore, run_id: str) -> None:
    """The idle claim is given up meanwhile, and got again."""
    store, other = make_store(), make_store()
    async with tea_by_node(store, run_id) as run:
        await run.next()

        await eventually(is_free(other, run_id), what='the idle claim is given up')
        run.state.total = 5
        await run.next()
        await eventually(is_free(other, run_id), what='the idle claim is given up')
        assert await run.next() == End(305)

    assert await events(store, run_id) == ['start', 'step', 'edit', 'step', 'end']


@on_sqlite
async def test_another_took_the_run_while_the_caller_was_thinking(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    deps = Deps()
    async with tea_by_node(store, run_id, deps=deps) as run:
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
        async with tea_by_node(store, run_id) as run:
            await run.next()

    await start()
    gc.collect()

    await eventually(is_free(other, run_id), what='the idle claim is given up')


async def test_a_store_that_is_closed_gives_the_claims_up_at_once(
    make_store: MakeStore, run_id: str
) -> None:
    store, other = make_store(), make_store()
    async with tea_by_node(store, run_id) as run:
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
        async with tea_by_node(store, run_id) as run:
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
    await order_tea(store, run_id)
    before = writes(calls)

    # Longer than an idle claim is kept.
    await asyncio.sleep(1.3)

    assert writes(calls) == before == {'create': 1, 'append': 3}
