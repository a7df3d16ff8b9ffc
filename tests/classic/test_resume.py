"""`graphkeep.resume`: going on wherever a run stopped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph, GraphRunResult

import graphkeep
from graphkeep import (
    GraphChangedError,
    RunBusyError,
    RunExistsError,
    RunMovedError,
    RunNotFoundError,
    RunStatusError,
    Store,
)
from graphkeep.testing import Worker
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import (
    Deps,
    Order,
    Pay,
    Pick,
    Price,
    count_calls,
    events,
    fails,
    loaded,
    nodes,
    order_tea,
    orders,
    rows,
    tea_by_node,
    writes,
)


async def stopped_after(store: Store, run_id: str, *, steps: int) -> None:
    """A run that was left after some steps."""
    async with tea_by_node(store, run_id) as run:
        for _ in range(steps):
            await run.next()


# --- wherever it stopped --------------------------------------------------------------------------


@every_store
@pytest.mark.parametrize('steps', [1, 2, 3])
async def test_a_run_that_was_left(make_store: MakeStore, run_id: str, steps: int) -> None:
    first, second, deps = make_store(), make_store(), Deps()
    await stopped_after(first, run_id, steps=steps)

    persistence = second.persistence(run_id)
    result = await graphkeep.resume(orders, persistence, deps=deps)

    assert isinstance(result, GraphRunResult)
    assert (result.output, result.state) == (300, Order(['tea', 'paid'], 300))
    assert result.persistence is persistence
    assert deps.ran == ['Pick', 'Price', 'Pay'][steps:]


@every_store
async def test_a_run_whose_worker_is_gone(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    dead = Worker(store, run_id, ttl=0.0)
    await dead.take()

    assert [run.run_id for run in await store.interrupted()] == [run_id]
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 300


@every_store
async def test_a_failed_run_runs_the_failed_node_again(store: Store, run_id: str) -> None:
    deps = Deps(hooks={'Price': fails(ValueError('no price'), times=2)})
    with pytest.raises(ValueError):
        await order_tea(store, run_id, deps=deps)
    assert (await store.run(run_id)).status == 'failed'

    handle = store.persistence(run_id)
    with pytest.raises(ValueError, match='no price'):
        await graphkeep.resume(orders, handle, deps=deps)
    assert (await store.run(run_id)).status == 'failed'
    result = await graphkeep.resume(orders, handle, deps=deps)

    assert result.output == 300
    assert deps.ran == ['Pick', 'Price', 'Price', 'Price', 'Pay']
    run = await store.run(run_id)
    assert (run.status, run.error) == ('done', None)
    assert await events(store, run_id) == ['start', 'step', 'error', 'error', 'step', 'end']


async def test_what_a_failed_step_did_to_the_state_is_not_kept(store: Store, run_id: str) -> None:
    async def spoil(ctx: Any, node: Any) -> None:
        ctx.state.lines.append('half done')
        if len(deps.ran) == 2:
            raise ValueError

    deps = Deps(hooks={'Price': spoil})
    with pytest.raises(ValueError):
        await order_tea(store, run_id, deps=deps)
    result = await graphkeep.resume(orders, store.persistence(run_id), deps=deps)

    assert result.state.lines == ['tea', 'half done', 'paid']


@every_store
async def test_a_run_that_has_ended_gives_its_stored_output(
    make_store: MakeStore, run_id: str
) -> None:
    store, other, deps = make_store(), make_store(), Deps()
    await order_tea(store, run_id)
    before = await rows(store, run_id)

    result = await graphkeep.resume(
        orders, other.persistence(run_id), deps=deps, start=Pick('x'), state=Order()
    )

    assert (result.output, result.state) == (300, Order(['tea', 'paid'], 300))
    assert deps.ran == []
    assert await rows(store, run_id) == before


async def test_an_output_of_none_is_an_output(store: Store, run_id: str) -> None:
    @dataclass
    class Quiet(BaseNode[None, None, None]):
        async def run(self, ctx: GraphRunContext[None]) -> End[None]:
            return End(None)

    graph = Graph[None, None, None](nodes=(Quiet,))
    await graph.run(Quiet(), persistence=store.persistence(run_id))

    result = await graphkeep.resume(graph, store.persistence(run_id))

    assert (result.output, result.state) == (None, None)
    assert (await store.run(run_id)).status == 'done'


async def test_a_cancelled_run_does_not_go_on(store: Store, run_id: str) -> None:
    await stopped_after(store, run_id, steps=1)
    await store.cancel(run_id)
    before = await rows(store, run_id)

    with pytest.raises(RunStatusError, match=r'cancelled.*store\.fork\(\)') as error:
        await graphkeep.resume(orders, store.persistence(run_id), start=Pick('x'), state=Order())

    assert (error.value.run_id, error.value.status) == (run_id, 'cancelled')
    handle = store.persistence(run_id)
    handle.set_graph_types(orders)
    assert await handle.load_next() is None
    assert nodes(await handle.load_all()) == ['Pick success', 'Price created']
    assert await rows(store, run_id) == before
    await store.fork(run_id, new_run_id=f'{run_id}/fork')
    assert (await graphkeep.resume(orders, store.persistence(f'{run_id}/fork'))).output == 300


@every_store
async def test_a_run_that_does_not_exist(store: Store, run_id: str) -> None:
    with pytest.raises(RunNotFoundError) as error:
        await graphkeep.resume(orders, store.persistence(run_id))

    assert error.value.run_id == run_id
    assert isinstance(error.value, LookupError)
    with pytest.raises(RunNotFoundError):
        await store.run(run_id)


@every_store
async def test_start_or_resume(store: Store, run_id: str) -> None:
    """The same line starts the run, goes on with it, and gives its output."""
    deps = Deps(hooks={'Price': fails(ValueError())})

    async def line() -> GraphRunResult[Order, int]:
        return await graphkeep.resume(
            orders, store.persistence(run_id), deps=deps, start=Pick('tea'), state=Order()
        )

    with pytest.raises(ValueError):
        await line()
    results = [await line(), await line()]

    assert [(each.output, each.state.lines) for each in results] == [(300, ['tea', 'paid'])] * 2
    assert deps.ran == ['Pick', 'Price', 'Price', 'Pay']


async def test_start_or_resume_at_once(store: Store, run_id: str) -> None:
    deps = Deps()
    results = await asyncio.gather(
        *(
            graphkeep.resume(
                orders, store.persistence(run_id), deps=deps, start=Pick('tea'), state=Order()
            )
            for _ in range(6)
        ),
        return_exceptions=True,
    )

    lost = [each for each in results if isinstance(each, BaseException)]
    assert len(lost) < 6
    assert all(isinstance(each, RunBusyError) for each in lost)
    # A late one finds the stored output.
    assert {each.output for each in results if not isinstance(each, BaseException)} == {300}
    assert deps.ran == ['Pick', 'Price', 'Pay']


async def test_a_deleted_run(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    await orders.run(Pick('tea'), state=Order(), persistence=handle)
    await store.delete(run_id)

    with pytest.raises(RunNotFoundError):
        await graphkeep.resume(orders, handle)
    result = await graphkeep.resume(orders, handle, start=Pick('milk'), state=Order())
    assert result.output == 400


async def test_a_run_deleted_between_loading_and_running(store: Store, run_id: str) -> None:
    await stopped_after(store, run_id, steps=1)
    async with orders.iter_from_persistence(store.persistence(run_id)) as run:
        await store.delete(run_id, force=True)
        with pytest.raises(RunNotFoundError):
            await run.next()


async def test_resuming_at_once_has_one_winner(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())

    async def slow(ctx: Any, node: Any) -> None:
        await asyncio.sleep(0.02)

    deps = Deps(hooks={'Pick': slow})
    results = await asyncio.gather(
        *(graphkeep.resume(orders, store.persistence(run_id), deps=deps) for _ in range(8)),
        return_exceptions=True,
    )

    lost = [each for each in results if isinstance(each, BaseException)]
    assert len(lost) == 7
    assert all(
        isinstance(each, (RunBusyError, RunMovedError, graphkeep.LeaseLostError)) for each in lost
    )
    assert deps.ran == ['Pick', 'Price', 'Pay']
    assert await events(store, run_id) == ['start', 'step', 'step', 'end']


async def test_a_run_that_is_run_elsewhere(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    elsewhere = Worker(store, run_id)
    await elsewhere.take()
    before = await rows(store, run_id)
    handle = store.persistence(run_id)
    handle.set_graph_types(orders)

    for attempt in (lambda: graphkeep.resume(orders, handle), handle.load_next):
        with pytest.raises(RunBusyError, match='is being worked on by') as error:
            await attempt()
        assert error.value.owner == elsewhere.owner
        assert error.value.lease_until == before[0].lease_until
    assert await rows(store, run_id) == before


# --- forks ----------------------------------------------------------------------------------------


@every_store
async def test_forked_in_the_middle(store: Store, run_id: str) -> None:
    await order_tea(store, run_id)
    before = await rows(store, run_id)
    fork = await store.fork(run_id, new_run_id=f'{run_id}/fork', at=2)
    assert (fork.status, fork.parent_run_id, fork.parent_seq) == ('ready', run_id, 2)
    deps = Deps()

    result = await graphkeep.resume(orders, store.persistence(f'{run_id}/fork'), deps=deps)

    assert (result.output, deps.ran) == (300, ['Pay'])
    assert await rows(store, run_id) == before


@every_store
async def test_forked_from_the_end(store: Store, run_id: str) -> None:
    """A new run that starts from the last state: the node is the caller's to name."""
    await order_tea(store, run_id)
    await store.fork(run_id, new_run_id=f'{run_id}/fork')
    handle = store.persistence(f'{run_id}/fork')

    with pytest.raises(RunStatusError, match=r'start=Node\(\)'):
        await graphkeep.resume(orders, handle)
    result = await graphkeep.resume(orders, handle, start=Pick('gin'))

    assert (result.output, result.state) == (600, Order(['tea', 'paid', 'gin', 'paid'], 600))
    assert await events(store, f'{run_id}/fork') == ['fork', 'replace', 'step', 'step', 'end']


async def test_forked_from_the_end_and_stopped_again(store: Store, run_id: str) -> None:
    await order_tea(store, run_id)
    await store.fork(run_id, new_run_id=f'{run_id}/fork')
    deps = Deps(hooks={'Pick': fails(ValueError())})
    handle = store.persistence(f'{run_id}/fork')
    with pytest.raises(ValueError):
        await graphkeep.resume(orders, handle, start=Pick('gin'), deps=deps)

    result = await graphkeep.resume(orders, handle, start=Pick('not this one'))

    assert result.state.lines == ['tea', 'paid', 'gin', 'paid']


async def test_a_fork_from_the_end_goes_on_with_upstreams_own_iter(
    store: Store, run_id: str
) -> None:
    await order_tea(store, run_id)
    await store.fork(run_id, new_run_id=f'{run_id}/fork')
    handle = store.persistence(f'{run_id}/fork')
    handle.set_graph_types(orders)
    assert await handle.load_next() is None

    result = await orders.run(Pay(tip=1), state=Order(total=4), persistence=handle)

    assert result.output == 5


async def test_a_fork_of_a_failed_run(store: Store, run_id: str) -> None:
    deps = Deps(hooks={'Price': fails(ValueError())})
    with pytest.raises(ValueError):
        await order_tea(store, run_id, deps=deps)
    fork = await store.fork(run_id, new_run_id=f'{run_id}/fork')

    assert (fork.status, fork.error) == ('ready', None)
    assert (await graphkeep.resume(orders, store.persistence(fork.run_id))).output == 300
    assert (await store.run(run_id)).status == 'failed'


# --- the graph has changed ------------------------------------------------------------------------


@dataclass
class Refund(BaseNode[Order, Deps | None, int]):
    async def run(self, ctx: GraphRunContext[Order, Deps | None]) -> End[int]:
        return End(0)


without_price = Graph[Order, Deps | None, int](nodes=(Refund,), name='orders')


@every_store
async def test_a_node_that_is_not_in_the_graph_any_more(store: Store, run_id: str) -> None:
    await stopped_after(store, run_id, steps=1)
    before = (await store.snapshots(run_id), (await store.run(run_id)).seq)
    handle = store.persistence(run_id)

    with pytest.raises(GraphChangedError, match=r"'Price', which is not in the graph") as error:
        await graphkeep.resume(without_price, handle)

    assert (error.value.run_id, error.value.node) == (run_id, 'Price')
    assert (await store.snapshots(run_id), (await store.run(run_id)).seq) == before
    assert (await store.run(run_id)).status in ('ready', 'running')
    assert (await graphkeep.resume(orders, handle)).output == 300


@dataclass
class Priced:
    """`Order`, some releases later."""

    lines: list[str]
    total: dict[str, int]


def later(state: Any, cents: Any) -> Graph[Any, Any, int]:
    """The graph of another release: another state, or another field of `Price`."""

    class Base(BaseNode[state, None, int]):
        pass

    namespace: dict[str, Any] = {'__annotations__': {'cents': cents}}

    async def run(self: Any, ctx: Any) -> End[int]:
        return End(0)

    namespace['run'] = run
    price = dataclass(type('Price', (Base,), namespace))
    return Graph(nodes=(price,), name='orders')


@every_store
@pytest.mark.parametrize(
    ('graph', 'path'),
    [
        (later(Priced, int), 'state.total'),
        (later(Order, list[int]), 'Price.cents'),
    ],
)
async def test_a_type_that_has_changed(
    store: Store, run_id: str, graph: Graph[Any, Any, int], path: str
) -> None:
    await stopped_after(store, run_id, steps=1)
    before = await store.snapshots(run_id)
    handle = store.persistence(run_id)

    with pytest.raises(GraphChangedError, match='does not fit the graph any more') as error:
        await graphkeep.resume(graph, handle)
    assert (error.value.run_id, error.value.path) == (run_id, path)
    with pytest.raises(GraphChangedError, match='does not fit the graph'):
        await handle.load_all()

    assert await store.snapshots(run_id) == before
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 300


async def test_an_output_that_does_not_fit_any_more(store: Store, run_id: str) -> None:
    await order_tea(store, run_id)
    changed = Graph[Order, Deps | None, Any](
        nodes=(Pick, Price, Pay), run_end_type=list[str], name='orders'
    )

    with pytest.raises(GraphChangedError, match='stored output') as error:
        await graphkeep.resume(changed, store.persistence(run_id))

    assert error.value.path == 'output'


async def test_a_field_with_a_default_may_be_added(store: Store, run_id: str) -> None:
    @dataclass
    class Newer:
        lines: list[str]
        total: int
        note: str = 'none'

    await stopped_after(store, run_id, steps=1)

    await graphkeep.resume(later(Newer, int), store.persistence(run_id))

    document = await store.document(run_id)
    assert document.state == {'lines': b'["tea"]', 'total': b'0', 'note': b'"none"'}


async def test_one_handle_and_two_graphs(store: Store, run_id: str) -> None:
    """What was loaded under one graph is not written under another."""
    await stopped_after(store, run_id, steps=1)
    handle = store.persistence(run_id)
    handle.set_graph_types(later(Order, int))
    await handle.load_next()

    with pytest.raises(RunExistsError):
        await orders.run(Pick('x'), state=Order(), persistence=handle)


# --- reading never consumes -----------------------------------------------------------------------


@every_store
async def test_reading_changes_nothing(store: Store, run_id: str) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    before = await rows(store, run_id)
    calls = count_calls(store)
    handle = store.persistence(run_id)
    handle.set_graph_types(orders)

    snapshots = [await handle.load_next(), await handle.load_next()]
    for _ in range(2):
        async with orders.iter_from_persistence(handle) as run:
            assert run.next_node == Pick('tea')
            assert nodes(await handle.load_all()) == ['Pick pending']
    await handle.load_all()

    assert snapshots[0] == snapshots[1]
    assert snapshots[0] is not None
    assert snapshots[1] is not None
    assert snapshots[0].node is not snapshots[1].node
    assert writes(calls) == {}
    assert await rows(store, run_id) == before
    assert (await graphkeep.resume(orders, handle)).output == 300


async def test_a_snapshot_of_load_next_that_is_changed_and_dropped(
    store: Store, run_id: str
) -> None:
    handle, snapshot = await loaded(store, run_id)
    snapshot.state.lines.append('spoiled')

    assert (await graphkeep.resume(orders, handle)).state.lines == ['tea', 'paid']
