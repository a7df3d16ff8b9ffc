"""When a node that upstream names starts the run, goes on with it, or takes another's place."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from pydantic_graph import End
from pydantic_graph.exceptions import GraphNodeStatusError

import graphkeep
from graphkeep import RunBusyError, RunExistsError, RunMovedError, Store
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import (
    Deps,
    Order,
    Pay,
    Pick,
    Price,
    events,
    fails,
    loaded,
    nodes,
    order_tea,
    orders,
    rows,
    tea_by_node,
    writes_through,
)

# --- starting -------------------------------------------------------------------------------------


@every_store
@pytest.mark.parametrize('same_handle', [True, False])
async def test_a_run_is_started_once(store: Store, run_id: str, same_handle: bool) -> None:
    handle = store.persistence(run_id)
    await orders.run(Pick('tea'), state=Order(), persistence=handle)
    before = await rows(store, run_id)
    deps = Deps()

    with pytest.raises(RunExistsError, match=r'already exists.*graphkeep\.resume') as error:
        await orders.run(
            Pick('tea'),
            state=Order(),
            deps=deps,
            persistence=handle if same_handle else store.persistence(run_id),
        )

    assert error.value.run_id == run_id
    assert isinstance(error.value, ValueError)
    assert deps.ran == []
    assert await rows(store, run_id) == before


@pytest.mark.parametrize('status', ['ready', 'failed', 'cancelled', 'left'])
async def test_a_run_in_any_status_is_not_started_again(
    store: Store, run_id: str, status: str
) -> None:
    if status == 'ready':
        await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    elif status == 'failed':
        deps = Deps(hooks={'Price': fails(ValueError())})
        with pytest.raises(ValueError):
            await order_tea(store, run_id, deps=deps)
    else:
        async with tea_by_node(store, run_id) as run:
            await run.next()
        if status == 'cancelled':
            await store.cancel(run_id)
    before = await store.snapshots(run_id)

    for start in (
        lambda: orders.run(Pick('x'), state=Order(), persistence=store.persistence(run_id)),
        lambda: orders.initialize(Pick('x'), store.persistence(run_id), state=Order()),
    ):
        with pytest.raises(RunExistsError):
            await start()
    assert await store.snapshots(run_id) == before


async def test_a_handle_of_a_run_that_ended_does_not_start_it_anew(
    store: Store, run_id: str
) -> None:
    """After the end nothing follows: upstream would go on from there."""
    handle = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), persistence=handle) as run:
        async for _ in run:
            pass
        with pytest.raises(RunExistsError):
            await run.next(Pick('more'))

    assert (await store.run(run_id)).status == 'done'


@pytest.mark.parametrize('ended', ['done', 'failed'])
async def test_the_very_node_that_ran_does_not_start_it_anew(
    store: Store, run_id: str, ended: str
) -> None:
    """Upstream's error for this is about the node; a run has its own, that says what to do."""
    handle, node = store.persistence(run_id), Pick('tea')
    deps = Deps(hooks={'Pick': fails(ValueError())} if ended == 'failed' else {})
    with contextlib.suppress(ValueError):
        await orders.run(node, state=Order(), deps=deps, persistence=handle)
    assert (await store.run(run_id)).status == ended

    with pytest.raises(RunExistsError):
        await orders.run(node, state=Order(), persistence=handle)


async def test_a_handle_that_went_on_with_a_run_does_not_start_it_anew(
    store: Store, run_id: str
) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    handle = store.persistence(run_id)
    async with orders.iter_from_persistence(handle) as run:
        await run.next()

    with pytest.raises(RunExistsError):
        await orders.run(Pick('x'), state=Order(), persistence=handle)
    assert await events(store, run_id) == ['start', 'step']


async def test_after_load_next_found_nothing_to_do_a_start_says_that_the_run_exists(
    store: Store, run_id: str
) -> None:
    """The documented pattern starts anew where `load_next` gives `None`."""
    handle = store.persistence(run_id)
    await orders.run(Pick('tea'), state=Order(), persistence=handle)

    handle = store.persistence(run_id)
    handle.set_graph_types(orders)
    assert await handle.load_next() is None
    async with orders.iter(Pick('tea'), state=Order(), persistence=handle) as run:
        with pytest.raises(RunExistsError):
            await run.next()


async def test_opening_iter_writes_nothing(store: Store, run_id: str) -> None:
    async with tea_by_node(store, run_id):
        pass

    assert await store.runs() == []


async def test_two_starts_at_once_have_one_winner(store: Store, run_id: str) -> None:
    deps = [Deps() for _ in range(5)]

    results = await asyncio.gather(
        *(order_tea(store, run_id, deps=each) for each in deps),
        return_exceptions=True,
    )

    assert sum(isinstance(each, RunExistsError) for each in results) == 4
    assert sorted(len(each.ran) for each in deps) == [0, 0, 0, 0, 3]
    assert len(await store.snapshots(run_id)) == 4


# --- going on -------------------------------------------------------------------------------------


@every_store
async def test_a_node_of_a_run_that_was_left_goes_on_with_it(store: Store, run_id: str) -> None:
    """As with upstream's: the node that `next` gave is the pending one, in a new `iter` as well."""
    handle = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), persistence=handle) as run:
        price = await run.next()
        assert isinstance(price, Price)
    state = run.state

    result = await orders.run(price, state=state, persistence=handle)

    assert result.output == 300
    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


async def test_a_node_that_ran_is_not_run_again_by_its_object(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), persistence=handle) as run:
        pick = run.next_node
        await run.next()
        await run.next()
        before = await rows(store, run_id)
        assert isinstance(pick, Pick)
        with pytest.raises(GraphNodeStatusError, match="'success'"):
            await run.next(pick)

        assert await rows(store, run_id) == before
        assert await run.next() == End(300)


async def test_the_snapshot_of_load_next_runs_without_a_further_commit(
    store: Store, run_id: str
) -> None:
    handle, snapshot = await loaded(store, run_id)

    result = await orders.run(snapshot.node, state=snapshot.state, persistence=handle)

    assert result.output == 300
    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


async def test_the_snapshot_of_load_next_with_a_state_of_the_callers(
    store: Store, run_id: str
) -> None:
    handle, snapshot = await loaded(store, run_id)

    result = await orders.run(snapshot.node, state=Order(total=1000), persistence=handle)

    assert result.output == 1300
    history = await handle.load_all()
    assert nodes(history) == ['Pick success', 'Price success', 'Pay success', 'end']
    assert history[0].state == Order(total=1000)


# --- taking another's place -----------------------------------------------------------------------


@every_store
async def test_another_node_takes_the_place_of_the_pending_one(store: Store, run_id: str) -> None:
    async with tea_by_node(store, run_id) as run:
        await run.next()
        await run.next(Pay(tip=1))

    assert await events(store, run_id) == ['start', 'step', 'replace', 'end']
    assert (await store.document(run_id)).tasks == {}


async def test_a_node_replaced_before_it_runs_is_what_a_crash_leaves(
    store: Store, run_id: str
) -> None:
    """The replacement is committed before the node runs: a resume runs it, not the old one."""
    handle = store.persistence(run_id)
    deps = Deps(hooks={'Pay': fails(ValueError('declined'))})
    async with orders.iter(Pick('tea'), state=Order(), deps=deps, persistence=handle) as run:
        await run.next()
        with pytest.raises(ValueError, match='declined'):
            await run.next(Pay(tip=7))

    result = await graphkeep.resume(orders, store.persistence(run_id))

    assert result.output == 7


async def test_replacing_the_pending_node_of_a_failed_run_that_was_loaded(
    store: Store, run_id: str
) -> None:
    handle = store.persistence(run_id)
    deps = Deps(hooks={'Price': fails(ValueError())})
    async with orders.iter(Pick('tea'), state=Order(), deps=deps, persistence=handle) as run:
        await run.next()
        with pytest.raises(ValueError):
            await run.next()
        assert (await store.run(run_id)).status == 'failed'
        await run.next(Pay())

    assert await events(store, run_id) == ['start', 'step', 'error', 'replace', 'end']
    run_now = await store.run(run_id)
    assert (run_now.status, run_now.error) == ('done', None)


async def test_initialize_after_load_next_replaces_and_claims_nothing(
    store: Store, run_id: str
) -> None:
    handle, snapshot = await loaded(store, run_id)

    await orders.initialize(Pay(tip=1), handle, state=snapshot.state)

    assert (await store.run(run_id)).status == 'ready'
    assert await events(store, run_id) == ['start', 'replace']
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 1


# --- somebody else was faster ---------------------------------------------------------------------


@every_store
async def test_a_handle_that_loaded_before_another_ran_is_refused(
    store: Store, run_id: str
) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    late = store.persistence(run_id)
    deps = Deps()
    async with orders.iter_from_persistence(late, deps=deps) as run:
        async with orders.iter_from_persistence(store.persistence(run_id)) as other:
            await other.next()
        before = await store.snapshots(run_id)

        with pytest.raises(RunMovedError, match='Load it again') as error:
            await run.next()
        assert (error.value.expected_seq, error.value.seq) == (0, 1)
        with pytest.raises(RunMovedError):
            await run.next(Pay())

    assert deps.ran == []
    assert await store.snapshots(run_id) == before
    assert (await graphkeep.resume(orders, late)).output == 300


async def test_two_handles_take_turns(make_store: MakeStore, run_id: str) -> None:
    """Each loads, runs one node and leaves: an idle handle of this process is taken over."""
    first, second = make_store(), make_store()
    await orders.initialize(Pick('tea'), first.persistence(run_id), state=Order())
    handles = [first.persistence(run_id), second.persistence(run_id)]
    ends: list[Any] = []
    for turn in range(3):
        async with orders.iter_from_persistence(handles[turn % 2]) as run:
            ends.append(await run.next())

    assert ends == [Price(300), Pay(), End(300)]
    assert await events(first, run_id) == ['start', 'step', 'step', 'end']


async def test_a_handle_that_was_overtaken_between_two_nodes_is_refused(
    store: Store, run_id: str
) -> None:
    async with tea_by_node(store, run_id) as run:
        await run.next()
        await graphkeep.resume(orders, store.persistence(run_id))

        with pytest.raises((RunMovedError, graphkeep.LeaseLostError)):
            await run.next()

    assert (await store.run(run_id)).status == 'done'


# --- one node at a time ---------------------------------------------------------------------------


async def test_a_handle_runs_one_node_at_a_time(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)

    async def meddle(ctx: Any, node: Any) -> None:
        for attempt in (
            lambda: orders.run(Pick('x'), state=Order(), persistence=handle),
            lambda: graphkeep.resume(orders, handle),
            lambda: orders.initialize(Pick('x'), handle, state=Order()),
            handle.load_next,
        ):
            with pytest.raises(RunBusyError) as error:
                await attempt()
            assert error.value.run_id == run_id

    deps = Deps(hooks={'Price': meddle})
    result = await orders.run(Pick('tea'), state=Order(), deps=deps, persistence=handle)

    assert result.output == 300
    assert deps.ran == ['Pick', 'Price', 'Pay']


async def test_a_second_use_while_a_commit_is_in_flight_does_not_break_the_first(
    store: Store, run_id: str
) -> None:
    handle = store.persistence(run_id)
    append = store._append
    refused: list[str] = []

    async def slow(commits: Any) -> Any:
        for attempt in (
            lambda: orders.run(Pick('x'), state=Order(), persistence=handle),
            lambda: graphkeep.resume(orders, handle),
            handle.load_next,
        ):
            with pytest.raises(RunBusyError):
                await attempt()
            refused.append('busy')
        return await append(commits)

    writes_through(store, slow)
    result = await orders.run(Pick('tea'), state=Order(), persistence=handle)

    assert result.output == 300
    assert len(refused) == 9


async def test_a_second_use_between_two_nodes_does_not_break_the_first(
    store: Store, run_id: str
) -> None:
    handle = store.persistence(run_id)
    async with orders.iter(Pick('tea'), state=Order(), persistence=handle) as run:
        await run.next()
        with pytest.raises(RunExistsError):
            await orders.run(Pick('x'), state=Order(), persistence=handle)

        assert await run.next() == Pay()
        assert await run.next() == End(300)


async def test_the_same_node_twice_at_once(store: Store, run_id: str) -> None:
    """Two tasks drive one `GraphRun`: upstream's error for the second."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: Any, node: Any) -> None:
        started.set()
        await go_on.wait()

    deps = Deps(hooks={'Pick': wait})
    async with tea_by_node(store, run_id, deps=deps) as run:
        first = asyncio.create_task(run.next())
        await started.wait()
        with pytest.raises(GraphNodeStatusError, match="'running'"):
            await run.next()
        go_on.set()
        assert await first == Price(300)


async def test_a_node_may_run_a_graph_of_its_own(store: Store, run_id: str) -> None:
    async def inner(ctx: Any, node: Any) -> None:
        persistence = store.persistence(f'{run_id}/inner')
        result = await orders.run(Pick('gin'), state=Order(), persistence=persistence)
        ctx.state.total += result.output

    deps = Deps(hooks={'Price': inner})
    result = await order_tea(store, run_id, deps=deps)

    assert result.output == 600


@pytest.mark.parametrize(
    'error',
    [
        graphkeep.LeaseLostError(run_id='inner', epoch=1),
        graphkeep.StoreUnavailableError('the database of the inner run is down'),
    ],
)
async def test_an_error_of_an_inner_run_fails_the_outer_one(
    store: Store, run_id: str, error: Exception
) -> None:
    """It is the node's, and says nothing of the store of the outer run."""
    deps = Deps(hooks={'Price': fails(error)})

    with pytest.raises(type(error)):
        await order_tea(store, run_id, deps=deps)

    run = await store.run(run_id)
    assert run.status == 'failed'
    assert run.error is not None
    assert run.error['message'] == str(error)
