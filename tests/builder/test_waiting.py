"""`on_pause='wait'`: a process that stays until a run has ended, whoever goes on with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic_graph import GraphBuilder, StepContext

import graphkeep
from graphkeep import (
    PersistentGraph,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    RunPausedError,
    RunStatusError,
    Store,
    Worker,
    wait_for,
)
from tests.classic.conftest import MakeStore, every_store


@dataclass
class State:
    runs: int = 0
    said: str = ''


Ctx = StepContext[State, None, Any]


def asking(*, then: Any = None, **options: Any) -> PersistentGraph[State, None, None, str]:
    """Asks, then does something more."""
    g = GraphBuilder(state_type=State, output_type=str, auto_instrument=False)

    @g.step
    async def ask(ctx: Ctx) -> str:
        ctx.state.runs += 1
        return await wait_for(str, 'what', **options)

    @g.step
    async def after(ctx: Ctx) -> str:
        ctx.state.said = ctx.inputs
        return ctx.inputs if then is None else await then(ctx)

    g.add(
        g.edge_from(g.start_node).to(ask),
        g.edge_from(ask).to(after),
        g.edge_from(after).to(g.end_node),
    )
    return graphkeep.persist(g.build())


async def paused(store: Store, run_id: str) -> None:
    """Wait until a run has paused."""
    with_in = asyncio.timeout(10)
    async with with_in:
        while True:
            try:
                if (await store.run(run_id)).status == 'paused':
                    return
            except RunNotFoundError:
                pass
            await asyncio.sleep(0.005)


@every_store
async def test_a_run_that_waits_goes_on_with_the_answer(make_store: MakeStore, run_id: str) -> None:
    store, elsewhere, kept, state = make_store(), make_store(), asking(), State()
    running = asyncio.create_task(
        kept.run(state=state, persistence=store.persistence(run_id), on_pause='wait')
    )
    await paused(elsewhere, run_id)
    await elsewhere.answer(run_id, '0:what', 'yes')
    async with asyncio.timeout(10):
        assert await running == 'yes'
    # The caller's object is the state, as without a pause.
    assert state == State(1, 'yes')


@every_store
async def test_a_deadline_wakes_a_run_that_waits(store: Store, run_id: str) -> None:
    kept = asking(timeout=timedelta(seconds=0.05), default='nobody')
    async with asyncio.timeout(10):
        output = await kept.run(
            state=State(), persistence=store.persistence(run_id), on_pause='wait'
        )
    assert output == 'nobody'


async def test_it_waits_for_a_run_that_is_paused_already(store: Store, run_id: str) -> None:
    kept = asking()
    handle = store.persistence(run_id, if_exists='resume')
    with pytest.raises(RunPausedError):
        await kept.run(state=State(), persistence=handle)
    waiting = [
        asyncio.create_task(kept.run(state=State(), persistence=handle, on_pause='wait')),
        asyncio.create_task(kept.resume(store.persistence(run_id), on_pause='wait')),
        asyncio.create_task(graphkeep.resume(kept, store.persistence(run_id), on_pause='wait')),
    ]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    await store.answer(run_id, '0:what', 'yes')
    async with asyncio.timeout(10):
        # One goes on with it, the others wait for its end.
        assert await asyncio.gather(*waiting) == ['yes'] * 3
    assert (await store.run(run_id)).status == 'done'


async def test_a_run_that_was_started_before_is_no_reason_to_wait(
    store: Store, run_id: str
) -> None:
    kept = asking()
    with pytest.raises(RunPausedError):
        await kept.run(state=State(), persistence=store.persistence(run_id))
    with pytest.raises(RunExistsError):
        await kept.run(state=State(), persistence=store.persistence(run_id), on_pause='wait')
    with pytest.raises(RunNotFoundError):
        await kept.resume(store.persistence('another'), on_pause='wait')


@every_store
async def test_a_worker_elsewhere_may_be_the_one_that_goes_on(
    make_store: MakeStore, run_id: str
) -> None:
    store, elsewhere = make_store(), make_store()
    name = f'graph-{run_id}'  # other tests share the database
    kept = asking()
    kept.graph.name = name
    state = State()
    running = asyncio.create_task(
        kept.run(state=state, persistence=store.persistence(run_id), on_pause='wait')
    )
    await paused(elsewhere, run_id)
    async with Worker(elsewhere, {name: kept}, poll=0.02):
        await elsewhere.answer(run_id, '0:what', 'yes')
        async with asyncio.timeout(15):
            assert await running == 'yes'
    assert state == State(1, 'yes')


@pytest.mark.parametrize('end', ['cancelled', 'deleted', 'failed'])
async def test_it_hears_of_another_end(make_store: MakeStore, run_id: str, end: str) -> None:
    store, elsewhere = make_store(), make_store()

    async def fail(ctx: Ctx) -> str:
        raise ValueError('here')

    kept = asking(then=fail)
    running = asyncio.create_task(
        kept.run(state=State(), persistence=store.persistence(run_id), on_pause='wait')
    )
    await paused(elsewhere, run_id)
    error: type[Exception] = RunStatusError
    if end == 'cancelled':
        await elsewhere.cancel(run_id)
    elif end == 'deleted':
        await elsewhere.delete(run_id)
        error = RunNotFoundError
    else:
        # Claimed before we hear of it.
        await elsewhere.answer(run_id, '0:what', 'x')
        try:
            await kept.resume(elsewhere.persistence(run_id))
        except (ValueError, RunBusyError):
            pass
        error = Exception
    async with asyncio.timeout(15):
        with pytest.raises(error):
            await running


async def test_a_pause_of_another_run_inside_of_a_step_is_its_failure(
    store: Store, run_id: str
) -> None:
    inner = asking()

    async def start_inner(ctx: Ctx) -> str:
        handle = store.persistence(f'{run_id}-inner', if_exists='resume')
        return await inner.run(state=State(), persistence=handle)

    outer = asking(then=start_inner, timeout=0.01, default='go')
    async with asyncio.timeout(10):
        with pytest.raises(RunPausedError) as caught:
            await outer.run(state=State(), persistence=store.persistence(run_id), on_pause='wait')
    assert caught.value.run_id == f'{run_id}-inner'
    assert (await store.run(run_id)).status == 'failed'
    await store.answer(f'{run_id}-inner', '0:what', 'inside')
    assert await outer.resume(store.persistence(run_id)) == 'inside'


async def test_a_waiting_run_can_be_cancelled(store: Store, run_id: str) -> None:
    kept = asking()
    running = asyncio.create_task(
        kept.run(state=State(), persistence=store.persistence(run_id), on_pause='wait')
    )
    await paused(store, run_id)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await store.run(run_id)
    assert (run.status, run.owner) == ('paused', None)
    await store.answer(run_id, '0:what', 'later')
    assert await kept.resume(store.persistence(run_id)) == 'later'


async def test_a_started_run_is_there_for_whoever_comes(store: Store, run_id: str) -> None:
    kept = asking(timeout=0.01, default='x')
    state = State(said='at the start')
    await kept.start(state=state, persistence=store.persistence(run_id))
    run = await store.run(run_id)
    assert (run.status, run.owner, run.seq) == ('ready', None, 0)
    with pytest.raises(RunExistsError):
        await kept.start(state=state, persistence=store.persistence(run_id))
    again = store.persistence(run_id, if_exists='resume')
    await kept.start(state=State(7), persistence=again)
    assert state == State(said='at the start')
    assert await kept.resume(again, on_pause='wait') == 'x'
