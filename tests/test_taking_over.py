"""A run is taken over from the dead, and from nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from graphkeep import owner as owners
from graphkeep.errors import (
    LeaseLostError,
    RunBusyError,
    RunStatusError,
)
from graphkeep.runs import (
    Claimed,
    ClaimRequest,
)
from graphkeep.store import new_nonce
from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import Worker
from tests.bad_wire import Wire, wired


@pytest.fixture(scope='module')
def dead_owner() -> str:
    """The owner of a process that has ended."""
    code = 'from graphkeep import owner; print(owner.current())'
    child = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    return child.stdout.strip()


@pytest.fixture
def living_owner() -> Iterator[str]:
    """The owner of a process that waits."""
    code = 'from graphkeep import owner; print(owner.current(), flush=True); input()'
    child = subprocess.Popen(
        [sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.kill()


linux = pytest.mark.skipif(sys.platform != 'linux', reason='proof of death is for Linux')


@linux
async def test_a_run_is_taken_over_from_the_dead_at_once(dead_owner: str) -> None:
    async with Wire() as store:
        dead = Worker(store, owner=dead_owner)
        before = await dead.create()
        await dead.step()
        claimed = await store.claim('run-1')
        assert claimed.claim.owner == owners.current()
        assert claimed.claim.epoch == before.epoch + 1
        assert [s.seq for s in claimed.snapshots] == [0, 1]
        # First asked for without, then for the very claim of the dead.
        assert [r.expected_epoch for r in store.called('claim')] == [None, before.epoch]
        nonces = {request.nonce for request in store.called('claim')}
        assert len(nonces) == 2
        ending = await store.append(dead.commit())
        assert isinstance(ending.error, LeaseLostError)


@linux
async def test_a_run_is_not_taken_from_the_living(living_owner: str) -> None:
    async with Wire() as store:
        before = await Worker(store, owner=living_owner).create()
        with pytest.raises(RunBusyError) as caught:
            await store.claim('run-1')
        assert caught.value.owner == living_owner
        assert await store.run('run-1') == before
        assert len(store.called('claim')) == 1


async def test_a_run_is_not_taken_from_another_machine() -> None:
    async with wired() as (store, worker):
        with pytest.raises(RunBusyError):
            await store.claim('run-1')
        await worker.step()


@linux
async def test_of_two_who_see_the_same_dead_owner_one_takes_over(dead_owner: str) -> None:
    async with Wire() as store:
        dead = await Worker(store, owner=dead_owner).create()
        other = Worker(store)

        async def other_is_faster(request: ClaimRequest) -> Claimed:
            if request.expected_epoch is not None and not other.texts:
                other.texts[0] = b''
                await other.take(expected_epoch=dead.epoch)
            return await MemoryStore._claim(store, request)

        store._claim = other_is_faster
        with pytest.raises(RunBusyError) as caught:
            await store.claim('run-1')
        assert caught.value.owner == other.owner
        assert (await store.run('run-1')).epoch == dead.epoch + 1


@linux
async def test_a_second_dead_owner_is_taken_over_too(dead_owner: str) -> None:
    async with Wire() as store:
        first = await Worker(store, owner=dead_owner).create()
        second = Worker(store, owner=dead_owner)

        async def second_dies_meanwhile(request: ClaimRequest) -> Claimed:
            if request.expected_epoch == first.epoch:
                await MemoryStore._claim(
                    store,
                    ClaimRequest(
                        run_id='run-1',
                        owner=second.owner,
                        ttl=30.0,
                        expected_epoch=first.epoch,
                        nonce=new_nonce(),
                    ),
                )
            return await MemoryStore._claim(store, request)

        store._claim = second_dies_meanwhile
        assert (await store.claim('run-1')).claim.epoch == first.epoch + 2


@linux
async def test_an_epoch_that_was_named_and_refused_is_not_named_again(dead_owner: str) -> None:
    async with Wire() as store:
        run = await Worker(store, owner=dead_owner).create()
        requests: list[ClaimRequest] = []

        async def stubborn(request: ClaimRequest) -> Claimed:
            requests.append(request)
            raise RunBusyError(
                run_id='run-1', owner=dead_owner, lease_until=run.lease_until, epoch=run.epoch
            )

        store._claim = stubborn
        with pytest.raises(RunBusyError):
            await store.claim('run-1')
        assert [request.expected_epoch for request in requests] == [None, run.epoch]


@linux
async def test_what_the_dead_left_is_listed_as_interrupted(
    dead_owner: str, living_owner: str
) -> None:
    async with Wire() as store:
        await Worker(store, 'dead', owner=dead_owner).create(graph='a')
        await Worker(store, 'living', owner=living_owner).create(graph='a')
        await Worker(store, 'elsewhere').create(graph='a')
        await Worker(store, 'passed', ttl=0.0).create(graph='b')
        await Worker(store, 'mine', owner=owners.current()).create(graph='a')
        await Worker(store, 'ready', owner=dead_owner).create(claimed=False)
        names = [run.run_id for run in await store.interrupted()]
        assert names == ['passed', 'dead']
        assert [run.run_id for run in await store.interrupted(graph='a')] == ['dead']
        assert [run.run_id for run in await store.interrupted(limit=1)] == ['passed']


async def test_statuses_come_before_owners() -> None:
    async with wired() as (store, worker):
        await worker.ends_as('done')
        with pytest.raises(RunStatusError) as caught:
            await store.claim('run-1')
        assert caught.value.status == 'done'
        assert 'fork' in str(caught.value)
