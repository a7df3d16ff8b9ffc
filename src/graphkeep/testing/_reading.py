"""Contract: reading gives one consistent version, and changes nothing."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
import asyncio
import json

import pytest

from ..errors import DamagedRunError
from ..runs import RunQuery
from ._base import Contract
from ._calls import shape, text_at

__all__ = ('Reading',)


class Reading(Contract):
    """Documents and snapshots, at the end and at any seq."""

    async def test_every_version_can_be_read(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, state={'items': [], 'word': 'a'})
            for number in range(1, 15):
                kind = 'full' if number in (5, 9, 10) else 'delta'
                state = {'items': list(range(number)), 'word': 'ab' * number}
                await worker.step(kind=kind, state=state)
            await worker.step(status='done', event='end', output={'fin': True})
            await worker.check()

    async def test_a_read_brings_no_more_snapshots_than_needed(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            for number in range(1, 9):
                await worker.step(kind='full' if number in (3, 6) else 'delta')
            for at in (None, *range(9)):
                end = 8 if at is None else at
                full = max(s for s, kind in worker.kinds.items() if kind == 'full' and s <= end)
                found = await store._read('run-1', at)
                assert found is not None
                run, snapshots = found
                assert shape(snapshots) == sorted(worker.kinds.items())[full : end + 1]
                assert run == await store.run('run-1')

    @pytest.mark.parametrize('at', [-1, 4, 1_000_000])
    async def test_a_seq_that_there_is_not_is_refused(self, at: int) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=3)
            with pytest.raises(ValueError, match=str(at)) as caught:
                await store.document('run-1', at=at)
            assert not isinstance(caught.value, DamagedRunError)
            with pytest.raises(ValueError, match=str(at)):
                await store.fork('run-1', new_run_id='run-2', at=at)
            assert len(await store.runs()) == 1
            await worker.check()

    async def test_snapshots_come_in_pages(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=11)
            every = await store.snapshots('run-1')
            assert [s.seq for s in every] == list(range(12))
            for after, limit in ((-1, 5), (4, 5), (10, 5), (11, 5), (50, 1), (-1, 1), (-1, 12)):
                page = await store.snapshots('run-1', after=after, limit=limit)
                assert page == every[after + 1 :][:limit], (after, limit)
            assert await store.snapshots('run-1', after=6) == every[7:]
            assert list(await store._history('run-1', -1, 3)) == every[:3]
            assert list(await store._history('nowhere', -1, 3)) == []
            assert worker.kinds == {s.seq: s.kind for s in every}

    async def test_reading_changes_nothing(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0)
            await worker.create(graph='orders', labels={'a': 'b'})
            await worker.append(worker.commit())
            before = await store.run('run-1')
            for _ in range(2):
                await store.document('run-1')
                await store.document('run-1', at=0)
                await store.snapshots('run-1')
                await store.runs(graph='orders', labels={'a': 'b'})
                await store.interrupted()
                await store.fork('run-1', new_run_id='fork')
                await store.delete('fork')
            assert await store.run('run-1') == before
            await worker.append(worker.commit())
            await worker.check()

    async def test_a_reader_beside_a_writer_sees_whole_versions(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, state={'items': []})
            done = asyncio.Event()

            async def read() -> int:
                seen: set[int] = set()
                while not done.is_set():
                    run, replay = await other.read('run-1')
                    text = replay.document.to_json()
                    assert text == worker.texts.get(run.seq, text)
                    assert json.loads(text)['state']['seq'] == run.seq
                    [listed] = await other.runs()
                    assert listed.seq >= run.seq
                    seen.add(run.seq)
                    await asyncio.sleep(0)
                return len(seen)

            reader = asyncio.create_task(read())
            for number in range(1, 41):
                kind = 'full' if number % 7 == 0 else 'delta'
                history = 'latest' if number > 20 else 'all'
                state = {'items': list(range(number))}
                await worker.step(kind=kind, history=history, state=state)
            done.set()
            assert await reader > 1
            assert await text_at(other, 'run-1') == worker.texts[40]

    async def test_the_same_snapshot_is_the_same_everywhere(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, steps=4)
            await worker.ends_as('ready')
            stored = await store.snapshots('run-1')
            assert await other.snapshots('run-1') == stored
            found = await other._read('run-1', None)
            assert found is not None
            data = [(snapshot.seq, snapshot.kind, snapshot.data) for snapshot in stored]
            assert [(s.seq, s.kind, s.data) for s in found[1]] == data[-len(found[1]) :]

    async def test_the_header_is_the_same_wherever_it_comes_from(self) -> None:
        async with self.make_store() as store:
            for status in ('ready', 'paused', 'failed', 'done', 'cancelled'):
                worker = await self.started(store, status, graph='orders', labels={'a': status})
                await worker.ends_as(status)
            interrupted = self.worker(store, 'interrupted', ttl=0.0)
            await interrupted.create()
            running = self.worker(store, 'running', ttl=30.0)
            await running.create()
            listed = {run.run_id: run for run in await store.find(RunQuery())}
            assert len(listed) == 7
            for run_id, run in listed.items():
                assert run == await store.run(run_id)
                assert (await store.read(run_id))[0] == run
