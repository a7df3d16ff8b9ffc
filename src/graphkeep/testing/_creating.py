"""Contract: creating runs, and what a header says."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ..errors import RunExistsError, RunNotFoundError
from ..runs import Draft, NewRun, Run
from ..store import new_nonce
from ._base import Contract
from ._calls import ELSEWHERE, text_at

__all__ = ('Creating',)


class Creating(Contract):
    """A run comes into being once."""

    async def test_created_unclaimed_a_run_is_ready(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store)
            created = await worker.create(claimed=False, graph='orders', labels={'shop': 'Zürich'})
            run = await store.run('run-1')
            assert run == created
            assert (run.run_id, run.graph, run.status) == ('run-1', 'orders', 'ready')
            assert (run.seq, run.full_seq) == (0, 0)
            assert (run.owner, run.lease_until, run.interrupted) == (None, None, False)
            assert dict(run.labels) == {'shop': 'Zürich'}
            assert (run.error, run.parent_run_id, run.parent_seq) == (None, None, None)
            await worker.check()

    async def test_created_claimed_a_run_is_running(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0)
            created = await worker.create()
            run = await store.run('run-1')
            assert run == created
            assert (run.status, run.owner, run.interrupted) == ('running', ELSEWHERE, False)
            assert run.lease_until is not None
            left = run.lease_until - run.created_at
            assert timedelta(seconds=29) < left < timedelta(seconds=31)
            assert run.claim() == worker.claim
            await worker.check()

    async def test_without_graph_and_labels_they_are_none_and_empty(self) -> None:
        async with self.make_store() as store:
            await self.started(store)
            run = await store.run('run-1')
            assert run.graph is None
            assert dict(run.labels) == {}

    async def test_a_fork_records_its_parent(self) -> None:
        async with self.make_store() as store:
            new = NewRun(run_id='child', parent_run_id='run "1"', parent_seq=12, nonce=new_nonce())
            worker = await self.started(store)
            draft = Draft(seq=0, kind='full', event='fork', data=worker.texts[0])
            await store.create(new, draft)
            run = await store.run('child')
            assert (run.parent_run_id, run.parent_seq) == ('run "1"', 12)
            assert [s.event for s in await store.snapshots('child')] == ['fork']

    async def test_an_epoch_starts_at_the_clock_in_microseconds(self) -> None:
        async with self.make_store() as store:
            run = await self.worker(store).create()
            started = run.created_at.timestamp() * 1_000_000
            assert abs(run.epoch - started) < 60_000_000

    async def test_times_are_aware_utc_with_microseconds(self) -> None:
        async with self.make_store() as store:
            micros: set[int] = set()
            for number in range(5):
                worker = self.worker(store, f'run-{number}', ttl=30.0)
                await worker.create()
                await worker.step()
                run = await store.run(worker.run_id)
                assert run.lease_until is not None
                times = [run.created_at, run.updated_at, run.lease_until]
                times += [s.created_at for s in await store.snapshots(worker.run_id)]
                for time in times:
                    assert time.utcoffset() == timedelta(0)
                    micros.add(time.microsecond % 1000)
                now = datetime.now(tz=UTC)
                assert abs(now - run.created_at) < timedelta(minutes=5)
            assert len(micros) > 1, 'times are cut to milliseconds'

    async def test_the_database_tells_when_a_run_was_written(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            created = (await store.run('run-1')).created_at
            last = created
            for _ in range(4):
                await worker.step()
                run = await store.run('run-1')
                assert run.created_at == created
                assert run.updated_at >= last
                last = run.updated_at
            stamps = [s.created_at for s in await store.snapshots('run-1')]
            assert stamps == sorted(stamps)
            assert stamps[0] == created
            assert stamps[-1] == last

    @pytest.mark.parametrize('claimed', [True, False])
    async def test_an_id_is_used_once(self, claimed: bool) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, claimed=claimed)
            before = await store.run('run-1')
            with pytest.raises(RunExistsError) as caught:
                await self.worker(store).create(state={'other': 'state'})
            assert caught.value.run_id == 'run-1'
            assert caught.value.status == before.status
            assert await store.run('run-1') == before
            await worker.check()

    async def test_an_ended_run_keeps_its_id(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(status='done', event='end', output=1)
            with pytest.raises(RunExistsError) as caught:
                await self.worker(store).create()
            assert caught.value.status == 'done'
            await worker.check()

    @pytest.mark.parametrize('claimed', [True, False])
    async def test_the_same_create_again_is_the_same_run(self, claimed: bool) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = self.worker(store)
            first = await worker.create(claimed=claimed, nonce='0123456789abcdef')
            again = await self.worker(other).create(claimed=claimed, nonce='0123456789abcdef')
            assert (again.epoch, again.created_at) == (first.epoch, first.created_at)
            assert (again.status, again.owner) == (first.status, first.owner)
            await worker.check()
            if claimed:
                await worker.step()
                await worker.check()

    async def test_a_late_create_again_does_not_get_a_run_that_went_on(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store)
            await worker.create(nonce='0123456789abcdef')
            await worker.step()
            with pytest.raises(RunExistsError):
                await self.worker(store).create(nonce='0123456789abcdef')
            await worker.check()

    async def test_of_many_creators_one_wins(self) -> None:
        async with self.make_store() as store, self.make_store() as other:

            async def create(number: int) -> Run | RunExistsError:
                worker = self.worker((store, other)[number % 2])
                try:
                    return await worker.create(state={'by': number})
                except RunExistsError as e:
                    return e

            results = await asyncio.gather(*(create(number) for number in range(16)))
            winners = [n for n, result in enumerate(results) if isinstance(result, Run)]
            assert len(winners) == 1
            assert json.loads(await text_at(store, 'run-1'))['state']['by'] == winners[0]
            assert len(await store.snapshots('run-1')) == 1

    async def test_what_does_not_exist_is_not_found(self) -> None:
        async with self.make_store() as store:
            await self.started(store, 'another')
            calls: list[Any] = [
                store.run('run-1'),
                store.snapshots('run-1'),
                store.document('run-1'),
                store.document('run-1', at=0),
                store.read('run-1'),
                store.fork('run-1', new_run_id='run-2'),
                store.cancel('run-1'),
                store.delete('run-1'),
                store.delete('run-1', force=True),
                store.claim('run-1'),
                store.claim('run-1', expected_seq=0),
            ]
            for call in calls:
                with pytest.raises(RunNotFoundError) as caught:
                    await call
                assert caught.value.run_id == 'run-1'
            assert [run.run_id for run in await store.runs()] == ['another']

    async def test_two_stores_see_each_others_writes_at_once(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store)
            for number in range(1, 6):
                writer = (store, other)[number % 2]
                reader = (other, store)[number % 2]
                worker.store = writer
                await worker.step(state={'number': number})
                await worker.check(store=reader)
                assert [run.seq for run in await reader.runs()] == [number]

    async def test_many_stores_may_open_a_new_database_at_once(self) -> None:
        stores = [self.make_store() for _ in range(6)]
        try:
            await asyncio.gather(*(store.open() for store in stores))
            workers = [self.worker(store, f'run-{n}') for n, store in enumerate(stores)]
            await asyncio.gather(*(worker.create() for worker in workers))
            assert len(await stores[0].runs()) == len(stores)
        finally:
            await asyncio.gather(*(store.close() for store in stores))

    async def test_runs_outlive_the_store(self) -> None:
        if not self.outlives_process:
            pytest.skip('this store keeps nothing')
        async with self.make_store() as store:
            worker = await self.started(store, steps=3, graph='orders', labels={'a': 'b'})
            before = await store.run('run-1')
        async with self.make_store() as store:
            assert await store.run('run-1') == before
            await worker.check(store=store)
