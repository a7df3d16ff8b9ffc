"""A commit that the database refuses, or that never reaches it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_graph import End

import graphkeep
from graphkeep import (
    Store,
    StoreUnavailableError,
    StoreWriteError,
)
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import (
    Deps,
    Order,
    Pay,
    Pick,
    count_calls,
    events,
    order_tea,
    orders,
    status,
    tea_by_node,
    writes_through,
)


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
        await order_tea(store, run_id, deps=deps)

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
        await order_tea(store, run_id)

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
        await order_tea(store, run_id)

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
    result = await order_tea(store, run_id)

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
    async with tea_by_node(store, run_id) as run:
        await run.next()
        with pytest.raises(StoreWriteError):
            await run.next(Pay(tip=1))
        assert await status(store, run_id) == 'ready'

        assert await run.next(Pay(tip=2)) == End(2)
    assert await events(store, run_id) == ['start', 'step', 'replace', 'end']
