"""Contract: renewing and releasing claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ..errors import LeaseLostError
from ..runs import Claim, Status
from ._base import Contract
from ._calls import ELSEWHERE, eventually, take

__all__ = ('Leasing',)


class Leasing(Contract):
    """A lease is renewed or given up by the claim that has it, and by no other."""

    async def test_a_renewal_starts_the_lease_anew(self) -> None:
        async with self.make_store(lease=300.0) as store:
            worker = self.worker(store, ttl=30.0)
            before = await worker.create()
            assert await store.renew([worker.claim]) == [None]
            run = await store.run('run-1')
            assert before.lease_until is not None
            assert run.lease_until is not None
            assert (run.lease_until - before.lease_until).total_seconds() > 260
            assert replace(run, lease_until=before.lease_until) == before
            await worker.check()

    async def test_a_lease_that_passed_can_be_renewed_while_nobody_took_the_run(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=0.0)
            await worker.create()
            assert (await store.run('run-1')).interrupted
            assert await store.renew([worker.claim]) == [None]
            assert not (await store.run('run-1')).interrupted
            await worker.append(worker.commit(ttl=30.0))
            await worker.check()

    async def test_each_claim_is_renewed_or_lost_alone(self) -> None:
        async with self.make_store(lease=300.0) as store:
            names = [f'run-{number}' for number in range(6)]
            workers = [self.worker(store, name, ttl=30.0) for name in names]
            for worker in workers:
                await worker.create()
            await store.release(workers[0].claim)
            await store.cancel('run-2')
            await store.delete('run-3', force=True)
            old = workers[4].claim
            await take(store, 'run-4', expected_epoch=old.epoch)
            nobody = Claim(run_id='nowhere', owner=ELSEWHERE, epoch=1)
            before = {run.run_id: run for run in await store.runs()}

            results = await store.renew([nobody, *(worker.claim for worker in workers)])
            lost = {'nowhere', 'run-0', 'run-2', 'run-3', 'run-4'}
            for name, result in zip(['nowhere', *names], results, strict=True):
                assert isinstance(result, LeaseLostError) == (name in lost), name
                if isinstance(result, LeaseLostError):
                    assert result.run_id == name
            assert isinstance(results[5], LeaseLostError)
            assert results[5].epoch == old.epoch
            for run in await store.runs():
                assert (run == before[run.run_id]) == (run.run_id in lost), run.run_id

    async def test_renewing_nothing_is_fine(self) -> None:
        async with self.make_store() as store:
            assert await store.renew([]) == []

    async def test_a_released_run_is_ready_at_once(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=2)
            before = await store.run('run-1')
            await store.release(worker.claim)
            run = await store.run('run-1')
            assert (run.status, run.owner, run.lease_until) == ('ready', None, None)
            assert (run.interrupted, run.seq, run.epoch) == (False, 2, before.epoch)
            await worker.check()
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit())
            claimed = await take(store, 'run-1')
            assert claimed.claim.epoch == before.epoch + 1

    async def test_a_release_ends_no_claim_but_its_own(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0)
            await worker.create()
            old = worker.claim
            await take(store, 'run-1', owner='somebody', ttl=30.0, expected_epoch=old.epoch)
            before = await store.run('run-1')
            await store.release(old)
            assert await store.run('run-1') == before
            await store.release(before.claim())
            assert (await store.run('run-1')).status == 'ready'

    async def test_releasing_twice_or_what_is_gone_is_fine(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await store.release(worker.claim)
            before = await store.run('run-1')
            await store.release(worker.claim)
            assert await store.run('run-1') == before
            await store.delete('run-1')
            await store.release(worker.claim)
            assert await store.runs() == []

    @pytest.mark.parametrize('status', ['failed', 'done', 'paused', 'cancelled'])
    async def test_a_release_leaves_a_run_that_has_left_its_claim(self, status: Status) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            claim = worker.claim
            await worker.ends_as(status)
            before = await store.run('run-1')
            await store.release(claim)
            assert await store.run('run-1') == before

    async def test_closing_gives_up_the_claims_it_looks_after(self) -> None:
        async with self.make_store() as other:
            async with self.make_store() as store:
                await self.started(store, claimed=False)
                claimed = await store.claim('run-1')
                lease = store.leases.hold(claimed.claim)
                lease.busy = True
                assert (await other.run('run-1')).status == 'running'
            assert (await other.run('run-1')).status == 'ready'

    async def test_a_running_step_keeps_its_lease(self) -> None:
        async with self.make_store(lease=20.0, heartbeat=0.1) as store:
            await self.started(store, claimed=False)
            claimed = await store.claim('run-1')
            lease = store.leases.hold(claimed.claim)
            lease.busy = True
            first = claimed.run.lease_until
            assert first is not None

            async def renewed() -> bool:
                run = await store.run('run-1')
                assert run.epoch == claimed.claim.epoch
                return run.lease_until is not None and run.lease_until > first

            await eventually(renewed, what='the claim of a running step is renewed')
            await store.leases.give_up(lease)
