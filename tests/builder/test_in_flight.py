"""A run that is lost, cancelled, deleted or fails while several of its steps are in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import graphkeep
from graphkeep import LeaseLostError, RunStatusError, Store
from tests.classic.conftest import MakeStore, every_store, on_sqlite

from .fan import (
    ITEMS,
    Tally,
    Worker,
    check_undisturbed,
    ends,
    kept,
    output,
    stored,
    until_committed,
)


def begin(store: Store, run_id: str, worker: Worker, state: Tally) -> asyncio.Task[list[int]]:
    persistence = store.persistence(run_id)
    return asyncio.create_task(
        kept.run(state=state, inputs=ITEMS, deps=worker, persistence=persistence)
    )


async def resume(store: Store, run_id: str, worker: Worker) -> list[int]:
    return await kept.resume(store.persistence(run_id), deps=worker)


# --- zombies --------------------------------------------------------------------------------------


class Wire:
    """What the renewals of a store go over, cut until it is mended."""

    def __init__(self, store: Store) -> None:
        self._cut = True
        self._refused = asyncio.Event()
        self._renew = store._renew
        store._renew = self._over

    async def _over(self, claims: Any, ttl: float) -> Any:
        if self._cut:
            raise graphkeep.StoreUnavailableError('cut off')
        errors = await self._renew(claims, ttl)
        if any(isinstance(error, LeaseLostError) for error in errors):
            self._refused.set()
        return errors

    async def until_refused(self) -> None:
        """The store reaches the database again, and hears that it has lost a claim."""
        self._cut = False
        async with asyncio.timeout(10):
            await self._refused.wait()


async def until_interrupted(store: Store, run_id: str) -> None:
    async with asyncio.timeout(10):
        while not (await store.run(run_id)).interrupted:
            await asyncio.sleep(0.02)


SHORT: dict[str, Any] = {'lease': 0.3, 'heartbeat': 0.05}


@dataclass
class Zombie:
    """A worker with two steps in flight, whose renewals reach the database no more."""

    run_id: str
    wire: Wire
    worker: Worker
    state: Tally
    run: asyncio.Task[list[int]]


@pytest.fixture
async def zombie(make_store: MakeStore, store: Store, run_id: str) -> AsyncIterator[Zombie]:
    """`work-0` and `work-1` are committed, the others in flight; the lease has passed."""
    theirs = make_store(**SHORT)
    wire, worker, state = Wire(theirs), Worker(held={'work-2', 'work-3'}), Tally()
    zombie = Zombie(run_id, wire, worker, state, begin(theirs, run_id, worker, state))
    await until_committed(store, run_id, 'work-0', 'work-1')
    await worker.runs('work-2', 'work-3')
    await until_interrupted(store, run_id)
    yield zombie
    if not zombie.run.done():
        zombie.run.cancel()
        await asyncio.wait((zombie.run,))


async def refused(zombie: Zombie, store: Store) -> None:
    """Its next step ends: it hears that it was one too many, and all of its steps are stopped."""
    before = (await store.run(zombie.run_id)).seq, await stored(store, zombie.run_id)
    await zombie.worker.let_go('work-2')
    with pytest.raises(LeaseLostError, match='another process took the run over') as caught:
        await zombie.run
    assert caught.value.run_id == zombie.run_id
    assert zombie.worker.stopped == ['work-3']
    # What it could not commit is not in the caller's state either.
    assert sorted(zombie.state.ends) == ['count', 'work-0', 'work-1']
    assert before == ((await store.run(zombie.run_id)).seq, await stored(store, zombie.run_id))


@every_store
@pytest.mark.parametrize('hears', ['at its commit', 'at a renewal', 'when it asks'])
async def test_a_zombie_whose_heir_has_ended_the_run(
    zombie: Zombie, store: Store, run_id: str, hears: str
) -> None:
    heir = Worker()
    assert await resume(store, run_id, heir) == output()
    assert heir.ran == {'work-2': 1, 'work-3': 1, 'last': 1}
    zombie.worker.asks = hears == 'when it asks'
    if hears == 'at a renewal':
        await zombie.wire.until_refused()
    await refused(zombie, store)
    await check_undisturbed(store, run_id)


@every_store
@pytest.mark.parametrize('hears', ['at its commit', 'at a renewal'])
async def test_a_zombie_beside_an_heir_that_runs_the_same_steps(
    zombie: Zombie, store: Store, run_id: str, hears: str
) -> None:
    """The run is still at the snapshot that the zombie knows: only the epoch has changed."""
    heir = Worker(held={'work-2', 'work-3'})
    heirs = asyncio.create_task(resume(store, run_id, heir))
    await heir.runs('work-2', 'work-3')
    if hears == 'at a renewal':
        await zombie.wire.until_refused()
    await refused(zombie, store)
    await heir.let_go('work-2', 'work-3')
    assert await heirs == output()
    assert heir.ran == {'work-2': 1, 'work-3': 1, 'last': 1}
    await check_undisturbed(store, run_id)


@pytest.mark.parametrize('step', ['work-2', 'last'])
@pytest.mark.parametrize('heir', ['runs it', 'has left it'])
async def test_who_watches_a_zombie_hears_the_same_again(
    step: str, heir: str, make_store: MakeStore, store: Store, run_id: str
) -> None:
    """It goes on with nothing that was refused, and takes it for no end, also where it could have
    the run again.
    """
    theirs = make_store(**SHORT)
    wire, worker, state = Wire(theirs), Worker(held={step}), Tally()
    async with kept.iter(
        state=state, inputs=ITEMS, deps=worker, persistence=theirs.persistence(run_id)
    ) as run:

        async def watch() -> None:
            async for _ in run:
                pass

        watching = asyncio.create_task(watch())
        await worker.runs(step)
        await until_interrupted(store, run_id)
        others = Worker(held={step})
        other = asyncio.create_task(resume(store, run_id, others))
        await others.runs(step)
        if heir == 'has left it':
            other.cancel()
            await asyncio.wait((other,))
        await wire.until_refused()
        before = await stored(store, run_id)
        await worker.let_go(step)
        with pytest.raises(LeaseLostError):
            await watching
        for _ in range(2):
            with pytest.raises(LeaseLostError):
                await run.next()
        assert run.output is None
        assert state == before == await stored(store, run_id)
    await others.let_go(step)
    assert await (resume(store, run_id, others) if other.cancelled() else other) == output()
    await check_undisturbed(store, run_id)


# --- cancel, delete, failures ---------------------------------------------------------------------


@every_store
async def test_cancelled_with_steps_in_flight(store: Store, run_id: str) -> None:
    worker, state = Worker(held={'work-2', 'work-3'}), Tally()
    run = begin(store, run_id, worker, state)
    await until_committed(store, run_id, 'work-0', 'work-1')
    await worker.runs('work-2', 'work-3')
    cancelled = await store.cancel(run_id)
    await worker.let_go('work-3')
    with pytest.raises(LeaseLostError, match='was cancelled'):
        await run
    assert worker.stopped == ['work-2']
    assert sorted(state.ends) == ['count', 'work-0', 'work-1']
    found = await store.run(run_id)
    assert (found.status, found.seq) == ('cancelled', cancelled.seq)
    with pytest.raises(RunStatusError):
        await resume(store, run_id, worker)

    # A fork goes on with what was in flight.
    fork, other = f'{run_id}-2', Worker()
    await store.fork(run_id, new_run_id=fork)
    assert await resume(store, fork, other) == output()
    assert other.ran == {'work-2': 1, 'work-3': 1, 'last': 1}
    await check_undisturbed(store, fork)


@every_store
async def test_deleted_with_steps_in_flight(store: Store, run_id: str) -> None:
    worker = Worker(held={'work-2', 'work-3'})
    run = begin(store, run_id, worker, Tally())
    await until_committed(store, run_id, 'work-0', 'work-1')
    await worker.runs('work-2', 'work-3')
    await store.delete(run_id, force=True)
    await worker.let_go('work-3')
    with pytest.raises(LeaseLostError, match='deleted'):
        await run
    assert worker.stopped == ['work-2']
    with pytest.raises(graphkeep.RunNotFoundError):
        await store.run(run_id)


@every_store
@pytest.mark.parametrize('beside', ['in flight', 'ending too'])
async def test_a_step_fails_beside_others(store: Store, run_id: str, beside: str) -> None:
    """Those that ended before are kept, all others run again, and only they."""
    worker, state = Worker(held={'work-2', 'work-3'}, fails={'work-2'}), Tally()
    run = begin(store, run_id, worker, state)
    await until_committed(store, run_id, 'work-0', 'work-1')
    await worker.runs('work-2', 'work-3')
    if beside == 'in flight':
        await worker.let_go('work-2')
    else:
        await worker.let_go('work-2', 'work-3')
    with pytest.raises(ValueError, match='work-2 fails'):
        await run
    failed = await store.run(run_id)
    assert failed.status == 'failed'
    assert failed.error is not None
    assert failed.error['node'] == 'work'
    committed = await stored(store, run_id)
    assert committed == state
    assert worker.stopped == (['work-3'] if beside == 'in flight' else [])

    other = Worker()
    assert await resume(store, run_id, other) == output()
    assert other.ran == Counter(ends()) - Counter(committed.ends)
    await check_undisturbed(store, run_id)


@on_sqlite
async def test_a_cancellation_is_heard_while_the_database_is_away(
    store: Store, run_id: str
) -> None:
    """The commit that waits cannot be made, and whoever cancelled hears that it was heard."""
    worker = Worker(held={'work-2', 'work-3'})
    run = begin(store, run_id, worker, Tally())
    await until_committed(store, run_id, 'work-0', 'work-1')
    await worker.runs('work-2', 'work-3')
    waits, goes = asyncio.Event(), asyncio.Event()
    append = store._append

    async def away(commits: Any) -> Any:
        waits.set()
        await goes.wait()
        raise graphkeep.StoreUnavailableError('away')

    store.retry, store._append = 0.0, away
    await worker.let_go('work-2')
    await waits.wait()
    run.cancel()
    await asyncio.sleep(0)
    goes.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert worker.stopped == ['work-3']

    store._append = append
    assert await resume(store, run_id, Worker()) == output()
    await check_undisturbed(store, run_id)


class Slow:
    """Commits of a store, held until they are let go."""

    def __init__(self, store: Store) -> None:
        self.reached, self.goes = asyncio.Event(), asyncio.Event()
        self._append = store._append
        store._append = self._held

    async def _held(self, commits: Any) -> Any:
        self.reached.set()
        await self.goes.wait()
        return await self._append(commits)


@on_sqlite
async def test_what_ends_while_a_commit_is_written_is_kept_beside_a_failure(
    store: Store, run_id: str
) -> None:
    """A step fails while an earlier one is committed, and others end after it, before it shows."""
    worker = Worker(held={'work-1', 'work-2', 'work-3'}, fails={'work-1'})
    worker.held.add('work-0')
    run = begin(store, run_id, worker, Tally())
    await worker.runs('work-0', 'work-1', 'work-2', 'work-3')
    slow = Slow(store)
    await worker.let_go('work-0')
    await slow.reached.wait()
    await worker.let_go('work-1')
    await worker.let_go('work-2', 'work-3')
    slow.goes.set()
    with pytest.raises(ValueError, match='work-1 fails'):
        await run
    assert worker.stopped == []
    assert (await store.run(run_id)).status == 'failed'

    heir = Worker()
    assert await resume(store, run_id, heir) == output()
    assert heir.ran == {'work-1': 1, 'last': 1}
    await check_undisturbed(store, run_id)
