"""Contract: who may claim a run, and one winner."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
import asyncio
from datetime import timedelta

import pytest

from ..errors import (
    LeaseLostError,
    RunBusyError,
    RunMovedError,
    RunNotFoundError,
    RunStatusError,
)
from ..runs import Claimed
from ..store import new_nonce
from ._base import Contract
from ._calls import ELSEWHERE, eventually, shape, take

__all__ = ('Claiming',)


class Claiming(Contract):
    """A claim is the right to write a run: at most one owner has it."""

    async def test_a_ready_run_can_be_claimed(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, claimed=False)
            before = await store.run('run-1')
            claimed = await take(store, 'run-1', owner='somebody', ttl=30.0)
            run = await store.run('run-1')
            assert claimed.run == run
            assert (run.status, run.owner, run.interrupted) == ('running', 'somebody', False)
            assert run.epoch == before.epoch + 1
            assert run.lease_until is not None
            left = run.lease_until - run.updated_at
            assert timedelta(seconds=29) < left < timedelta(seconds=31)
            assert (run.seq, run.full_seq) == (0, 0)
            assert run.created_at == before.created_at
            assert claimed.claim == run.claim()
            assert [s.data for s in claimed.snapshots] == [worker.texts[0]]

    async def test_a_claim_brings_the_snapshots_since_the_last_full_one(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=3)
            await worker.step(kind='full')
            await worker.step()
            await worker.step()
            await worker.ends_as('ready')
            claimed = await take(store, 'run-1')
            kinds = sorted(worker.kinds.items())
            assert shape(claimed.snapshots) == kinds[(await store.run('run-1')).full_seq :]
            stored = await store.snapshots('run-1')
            assert list(claimed.snapshots) == stored[-len(claimed.snapshots) :]

    async def test_a_claim_that_names_the_seq_brings_no_snapshots(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=2)
            await worker.ends_as('ready')
            claimed = await take(store, 'run-1', expected_seq=2)
            assert claimed.snapshots == ()
            assert claimed.run.seq == 2

    async def test_a_refusal_says_what_the_run_is_like(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, 'busy', ttl=30.0)
            await worker.create()
            run = await store.run('busy')
            with pytest.raises(RunBusyError) as busy:
                await take(store, 'busy', owner='somebody')
            assert busy.value.run_id == 'busy'
            assert busy.value.owner == ELSEWHERE
            assert busy.value.lease_until == run.lease_until
            assert busy.value.epoch == run.epoch

            worker = await self.started(store, 'failed')
            await worker.ends_as('failed')
            with pytest.raises(RunStatusError) as status:
                await take(store, 'failed')
            assert (status.value.run_id, status.value.status) == ('failed', 'failed')

            with pytest.raises(RunMovedError) as moved:
                await take(store, 'failed', expected_seq=7)
            assert (moved.value.run_id, moved.value.seq) == ('failed', 1)
            assert moved.value.expected_seq == 7

            with pytest.raises(RunNotFoundError) as missing:
                await take(store, 'nowhere', expected_seq=7)
            assert missing.value.run_id == 'nowhere'

    async def test_this_process_claims_through_the_public_method(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0)
            await worker.create()
            # The owner is on another machine: nothing proves that it is dead.
            with pytest.raises(RunBusyError):
                await store.claim('run-1')
            await worker.ends_as('failed')
            with pytest.raises(RunStatusError):
                await store.claim('run-1')
            claimed = await store.claim('run-1', allow=('ready', 'failed'), expected_seq=1)
            lease = store.leases.hold(claimed.claim)
            try:
                lease.busy = True
                with pytest.raises(RunBusyError):
                    await store.claim('run-1')
            finally:
                lease.busy = False
                await store.leases.give_up(lease)
            assert (await store.run('run-1')).status == 'ready'

    async def test_a_failed_run_keeps_its_error_until_the_next_commit(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.ends_as('failed')
            claimed = await worker.take(allow=('failed',))
            assert dict(claimed.run.error or {}) == {'type': 'ValueError'}
            await worker.step()
            assert (await store.run('run-1')).error is None

    async def test_the_same_claim_again_is_the_same_claim(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, steps=2, claimed=True)
            await worker.ends_as('ready')
            nonce = new_nonce()
            first = await take(store, 'run-1', ttl=30.0, nonce=nonce)
            again = await take(other, 'run-1', ttl=30.0, nonce=nonce)
            assert again.claim == first.claim
            assert again.snapshots == first.snapshots
            assert (await store.run('run-1')).epoch == first.claim.epoch
            worker = worker.successor()
            worker._claim = again.claim
            await worker.step()
            await worker.check()

    async def test_a_claim_with_its_seq_again_is_the_same_claim(self) -> None:
        async with self.make_store() as store:
            await self.started(store, claimed=False)
            nonce = new_nonce()
            first = await take(store, 'run-1', expected_seq=0, nonce=nonce)
            again = await take(store, 'run-1', expected_seq=0, nonce=nonce)
            assert again.claim == first.claim
            assert again.snapshots == ()

    async def test_a_late_claim_again_gets_nothing(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, claimed=False)
            worker.ttl = 30.0
            nonce = new_nonce()
            await worker.take(nonce=nonce)
            await worker.append(worker.commit())
            with pytest.raises(RunBusyError):
                await take(store, 'run-1', nonce=nonce)
            assert (await store.run('run-1')).epoch == worker.claim.epoch

    async def test_a_claim_again_after_a_cancel_gets_nothing(self) -> None:
        async with self.make_store() as store:
            await self.started(store, claimed=False)
            nonce = new_nonce()
            await take(store, 'run-1', nonce=nonce)
            await store.cancel('run-1')
            with pytest.raises(RunStatusError):
                await take(store, 'run-1', nonce=nonce)

    @pytest.mark.parametrize('stores', [1, 4])
    async def test_of_many_claimers_one_wins(self, stores: int) -> None:
        opened = [self.make_store() for _ in range(stores)]
        try:
            worker = await self.started(opened[0], claimed=False)
            before = await opened[0].run('run-1')

            async def claim(number: int) -> Claimed | RunBusyError:
                store = opened[number % stores]
                try:
                    return await take(store, 'run-1', owner=f'owner-{number}')
                except RunBusyError as e:
                    return e

            results = await asyncio.gather(*(claim(number) for number in range(24)))
            winners = [result for result in results if isinstance(result, Claimed)]
            assert len(winners) == 1
            run = await opened[-1].run('run-1')
            assert run.epoch == before.epoch + 1
            assert run.owner == winners[0].claim.owner
            assert {r.owner for r in results if isinstance(r, RunBusyError)} == {run.owner}
            await worker.check()
        finally:
            for store in opened:
                await store.close()

    async def test_of_many_who_saw_the_same_dead_owner_one_wins(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = self.worker(store, ttl=30.0)
            run = await worker.create()

            async def claim(number: int) -> Claimed | RunBusyError:
                try:
                    return await take(
                        (store, other)[number % 2],
                        'run-1',
                        owner=f'owner-{number}',
                        expected_epoch=run.epoch,
                    )
                except RunBusyError as e:
                    return e

            results = await asyncio.gather(*(claim(number) for number in range(16)))
            assert sum(isinstance(result, Claimed) for result in results) == 1
            assert (await store.run('run-1')).epoch == run.epoch + 1
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit())

    async def test_a_lease_passes_by_itself(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=0.15)
            run = await worker.create()
            assert not run.interrupted
            with pytest.raises(RunBusyError):
                await take(store, 'run-1', owner='somebody')

            async def passed() -> bool:
                return (await store.run('run-1')).interrupted

            await eventually(passed, what='the lease passes')
            run = await store.run('run-1')
            assert (run.status, run.owner) == ('running', ELSEWHERE)
            claimed = await take(store, 'run-1', owner='somebody')
            assert claimed.claim.epoch == run.epoch + 1
            assert not (await store.run('run-1')).interrupted
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit())
