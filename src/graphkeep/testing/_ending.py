"""Contract: cancel, delete, fork and prune."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from ..errors import (
    LeaseLostError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    RunStatusError,
)
from ..runs import Claim, Status
from ._base import Contract
from ._calls import ELSEWHERE, take, text_at

__all__ = ('Ending',)

# Farther back than any two clocks differ: everything that there is was written before.
_EVERYTHING = timedelta(days=-1)


class Ending(Contract):
    """What ends a run, removes it, or starts another one from it."""

    # --- cancel ----------------------------------------------------------------------------------

    @pytest.mark.parametrize('status', ['ready', 'running', 'paused', 'failed'])
    async def test_a_run_that_is_not_done_can_be_cancelled(self, status: Status) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=1)
            await worker.ends_as(status)
            before = await store.run('run-1')
            cancelled = await store.cancel('run-1')
            run = await store.run('run-1')
            assert run == cancelled
            assert (run.status, run.seq) == ('cancelled', before.seq)
            assert (run.owner, run.lease_until, run.interrupted) == (None, None, False)
            assert run.epoch == before.epoch + 1
            assert run.updated_at >= before.updated_at
            await worker.check()

    async def test_a_cancel_fences_the_owner(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, steps=1)
            await other.cancel('run-1')
            before = await store.run('run-1')
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit(status='done', output=1))
            [lost] = await store.renew([worker.claim])
            assert isinstance(lost, LeaseLostError)
            await store.release(worker.claim)
            assert await store.run('run-1') == before
            await worker.check()

    async def test_a_cancelled_run_is_not_claimed_by_accident(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=0.0)
            await worker.create()
            await store.cancel('run-1')
            with pytest.raises(RunStatusError) as caught:
                await take(store, 'run-1', expected_epoch=worker.claim.epoch)
            assert caught.value.status == 'cancelled'

    async def test_cancelling_twice_changes_nothing_more(self) -> None:
        async with self.make_store() as store:
            await self.started(store)
            first = await store.cancel('run-1')
            assert await store.cancel('run-1') == first
            assert await store.run('run-1') == first

    async def test_a_done_run_cannot_be_cancelled(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.ends_as('done')
            before = await store.run('run-1')
            with pytest.raises(RunStatusError) as caught:
                await store.cancel('run-1')
            assert (caught.value.run_id, caught.value.status) == ('run-1', 'done')
            assert await store.run('run-1') == before

    # --- delete ----------------------------------------------------------------------------------

    @pytest.mark.parametrize('status', ['ready', 'paused', 'failed', 'done', 'cancelled'])
    async def test_a_deleted_run_is_gone_with_its_snapshots(self, status: Status) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, steps=2, graph='orders', labels={'a': 'b'})
            await worker.ends_as(status)
            kept = await self.started(store, 'run-2', steps=1)
            await store.delete('run-1')
            for reader in (store, other):
                for call in (reader.run, reader.snapshots, reader.document, reader.delete):
                    with pytest.raises(RunNotFoundError):
                        await call('run-1')
                assert [run.run_id for run in await reader.runs()] == ['run-2']
                assert await reader.runs(status=status) == []
                assert await reader.runs(graph='orders', labels={'a': 'b'}) == []
            await kept.check()

    async def test_a_run_in_work_is_deleted_by_force_only(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0)
            await worker.create()
            before = await store.run('run-1')
            with pytest.raises(RunBusyError) as caught:
                await store.delete('run-1')
            assert (caught.value.run_id, caught.value.owner) == ('run-1', ELSEWHERE)
            assert (caught.value.epoch, caught.value.lease_until) == (
                before.epoch,
                before.lease_until,
            )
            assert await store.run('run-1') == before
            await worker.check()
            await store.delete('run-1', force=True)
            assert await store.runs() == []
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit())

    async def test_an_interrupted_run_can_be_deleted(self) -> None:
        async with self.make_store() as store:
            await self.worker(store, ttl=0.0).create()
            await store.delete('run-1')
            assert await store.runs() == []

    async def test_a_run_created_again_never_meets_an_old_claim(self) -> None:
        async with self.make_store() as store:
            zombie = await self.started(store, steps=3)
            for _ in range(3):
                await take(store, 'run-1', expected_epoch=(await store.run('run-1')).epoch)
            old = await store.run('run-1')
            await store.delete('run-1', force=True)
            worker = await self.started(store, steps=3, state={'second': 'life'})
            assert (await store.run('run-1')).epoch > old.epoch
            before = await store.run('run-1')
            for epoch in range(zombie.claim.epoch, old.epoch + 1):
                claim = Claim(run_id='run-1', owner=ELSEWHERE, epoch=epoch)
                ending = await store.append(zombie.commit(claim=claim))
                assert isinstance(ending.error, LeaseLostError)
                await store.release(claim)
                assert isinstance((await store.renew([claim]))[0], LeaseLostError)
            assert await store.run('run-1') == before
            await worker.check()

    # --- fork ------------------------------------------------------------------------------------

    async def test_a_fork_starts_from_any_snapshot(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, graph='orders', labels={'a': 'b'})
            for number in range(1, 6):
                await worker.step(kind='full' if number == 3 else 'delta', state={'n': number})
            before = await store.run('run-1')
            for at in range(6):
                fork = await store.fork('run-1', new_run_id=f'fork-{at}', at=at)
                assert fork == await store.run(f'fork-{at}')
                assert (fork.status, fork.owner, fork.lease_until) == ('ready', None, None)
                assert (fork.seq, fork.full_seq) == (0, 0)
                assert (fork.parent_run_id, fork.parent_seq) == ('run-1', at)
                assert (fork.graph, dict(fork.labels)) == ('orders', {'a': 'b'})
                assert await text_at(store, f'fork-{at}') == worker.texts[at]
                [snapshot] = await store.snapshots(f'fork-{at}')
                assert (snapshot.event, snapshot.kind) == ('fork', 'full')
            assert await store.run('run-1') == before
            assert len(await store.runs(parent_run_id='run-1')) == 6
            await worker.step()
            await worker.check()

    async def test_a_fork_and_its_parent_go_their_own_ways(self) -> None:
        async with self.make_store() as store:
            parent = await self.started(store, steps=2)
            await store.fork('run-1', new_run_id='fork')
            await take(store, 'fork', owner='somebody')
            await store.delete('run-1', force=True)
            assert await text_at(store, 'fork') == parent.texts[2]
            assert (await store.run('fork')).parent_run_id == 'run-1'

    @pytest.mark.parametrize('status', ['running', 'done', 'failed', 'cancelled'])
    async def test_whatever_its_status_a_run_can_be_forked(self, status: Status) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=1)
            await worker.ends_as(status)
            fork = await store.fork('run-1', new_run_id='fork')
            assert (fork.status, fork.error) == ('ready', None)
            document = json.loads(await text_at(store, 'fork'))
            assert 'output' not in document
            assert document['state']['seq'] == worker.seq

    async def test_a_fork_needs_an_id_of_its_own(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=1)
            for taken in ('run-1', 'other'):
                if taken == 'other':
                    await self.started(store, 'other')
                with pytest.raises(RunExistsError) as caught:
                    await store.fork('run-1', new_run_id=taken)
                assert caught.value.run_id == taken
            await worker.check()

    # --- prune -----------------------------------------------------------------------------------

    async def test_prune_removes_what_ended_long_ago(self) -> None:
        async with self.make_store() as store:
            for status in ('ready', 'paused', 'failed', 'done', 'cancelled'):
                await (await self.started(store, status)).ends_as(status)
            await self.worker(store, 'running', ttl=30.0).create()
            assert await store.prune(older_than=timedelta(days=1)) == 0
            assert len(await store.runs()) == 6
            # A failed run has not ended: it can be resumed.
            assert await store.prune(older_than=_EVERYTHING) == 2
            left = {run.run_id for run in await store.runs()}
            assert left == {'ready', 'paused', 'failed', 'running'}
            assert await store.prune(older_than=_EVERYTHING, status=('failed', 'paused')) == 2
            assert {run.run_id for run in await store.runs()} == {'ready', 'running'}

    async def test_prune_takes_a_query(self) -> None:
        async with self.make_store() as store:
            for number in range(8):
                worker = await self.started(
                    store, f'run-{number}', graph='AB'[number & 1], labels={'l': str(number & 2)}
                )
                await worker.ends_as('done' if number & 4 else 'failed')
            old, labels = _EVERYTHING, {'l': '2'}
            assert await store.prune(older_than=old, status='done', graph='A', labels=labels) == 1
            assert await store.prune(older_than=old, graph='A', labels=labels) == 0
            both: tuple[Status, ...] = ('done', 'failed')
            assert await store.prune(older_than=old, status=both, graph='A', labels=labels) == 1
            left = {run.run_id for run in await store.runs()}
            assert left == {f'run-{number}' for number in (0, 1, 3, 4, 5, 7)}

    async def test_prune_leaves_a_run_in_work(self) -> None:
        async with self.make_store() as store:
            await self.worker(store, 'alive', ttl=30.0).create()
            await self.worker(store, 'interrupted', ttl=0.0).create()
            assert await store.prune(older_than=_EVERYTHING, status='running') == 1
            assert [run.run_id for run in await store.runs()] == ['alive']

    async def test_prune_goes_through_all_pages(self) -> None:
        async with self.make_store() as store:
            for number in range(120):
                await self.worker(store, f'run-{number}').create(claimed=False)
            assert await store.prune(older_than=_EVERYTHING, status='ready') == 120
            assert await store.runs() == []
