"""Contract: many runs and waiters at once, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from ..errors import LeaseLostError, StoreClosedError
from ..runs import Draft, NewRun
from ..store import new_nonce
from ._base import Contract
from ._calls import eventually, take

__all__ = ('Together',)


class Together(Contract):
    """Runs do not disturb each other, and a store ends in order."""

    async def test_many_runs_are_written_at_once(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            workers = [self.worker(store, f'run-{number}') for number in range(64)]

            async def drive(number: int) -> None:
                worker = workers[number]
                await worker.create(state={'number': number})
                for step in range(1, 6):
                    await worker.step(state={'text': f'{number}/{step}' * (number % 5)})
                await worker.step(status='done', event='end', output=number)

            await asyncio.gather(*(drive(number) for number in range(64)))
            assert len(await other.runs(status='done')) == 64
            for worker in workers:
                await worker.check(store=other)

    async def test_a_lost_claim_among_many_is_lost_alone(self) -> None:
        async with self.make_store() as store:
            workers = [await self.started(store, f'run-{n}') for n in range(24)]
            for worker in workers[::3]:
                await take(store, worker.run_id, expected_epoch=worker.claim.epoch)
            commits = [worker.commit() for worker in workers]
            endings = await asyncio.gather(*(store.append(commit) for commit in commits))
            for number, (worker, ending) in enumerate(zip(workers, endings, strict=True)):
                if number % 3 == 0:
                    assert isinstance(ending.error, LeaseLostError)
                    assert ending.error.run_id == worker.run_id
                else:
                    assert ending.error is None
                    worker.written(commits[number])
                await worker.check()

    @pytest.mark.parametrize('cancels', [1, 3])
    async def test_the_commit_of_a_cancelled_waiter_is_written(self, cancels: int) -> None:
        async with self.make_store() as store:
            workers = [await self.started(store, f'run-{n}') for n in range(6)]
            commits = [worker.commit() for worker in workers]
            waiters = [asyncio.create_task(store.append(commit)) for commit in commits]
            await asyncio.sleep(0)
            for _ in range(cancels):
                for waiter in waiters:
                    waiter.cancel()
                await asyncio.sleep(0)
            for waiter, worker, commit in zip(waiters, workers, commits, strict=True):
                ending = await waiter
                assert ending.error is None
                assert isinstance(ending.cancelled, asyncio.CancelledError | None)
                worker.written(commit)
                await worker.check()
            if store.grouped:
                assert any(waiter.result().cancelled is not None for waiter in waiters)

    async def test_the_commit_of_a_waiter_that_left_is_written(self) -> None:
        async with self.make_store() as store:
            if not store.grouped:
                pytest.skip('nobody waits for a commit of this store')
            worker = await self.started(store)
            commit = worker.commit()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    (await store.append(commit)).unwrap()
            # A timeout of zero may strike before the commit was handed in; then nothing is written.
            await asyncio.sleep(0)
            if (await store.run('run-1')).seq == 1:
                worker.written(commit)
            await worker.check()

    async def test_closing_writes_what_was_handed_in(self) -> None:
        async with self.make_store() as other:
            store = self.make_store()
            workers = [await self.started(store, f'run-{n}') for n in range(40)]
            commits = [worker.commit() for worker in workers]
            waiters = [asyncio.create_task(store.append(commit)) for commit in commits]
            await asyncio.sleep(0)
            await store.close()
            for waiter, worker, commit in zip(waiters, workers, commits, strict=True):
                assert (await waiter).error is None
                worker.written(commit)
                await worker.check(store=other)

    async def test_closing_writes_first_and_gives_claims_up_then(self) -> None:
        async with self.make_store() as other:
            store = self.make_store()
            workers = [await self.started(store, f'run-{n}') for n in range(8)]
            for worker in workers:
                store.leases.hold(worker.claim).busy = True
            commits = [worker.commit() for worker in workers]
            waiters = [asyncio.create_task(store.append(commit)) for commit in commits]
            await asyncio.sleep(0)
            await store.close()
            for waiter, worker, commit in zip(waiters, workers, commits, strict=True):
                assert (await waiter).error is None
                worker.written(commit)
                await worker.check(store=other)
                assert (await other.run(worker.run_id)).status == 'ready'

    async def test_a_store_opens_at_its_first_use(self) -> None:
        store = self.make_store()
        try:
            assert await store.runs() == []
        finally:
            await store.close()

    async def test_closing_twice_or_unopened_is_fine(self) -> None:
        store = self.make_store()
        await store.close()
        await store.close()
        async with self.make_store() as store:
            await self.started(store)
            await store.close()
            await store.close()

    async def test_a_closed_store_says_so(self) -> None:
        store = self.make_store()
        worker = await self.started(store)
        await store.close()
        claim, commit = worker.claim, worker.commit()
        draft = Draft(seq=0, kind='full', event='start', data=worker.texts[0])
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            store.open,
            lambda: store.run('run-1'),
            store.runs,
            store.interrupted,
            lambda: store.snapshots('run-1'),
            lambda: store.document('run-1'),
            lambda: store.fork('run-1', new_run_id='fork'),
            lambda: store.cancel('run-1'),
            lambda: store.delete('run-1'),
            lambda: store.prune(older_than=timedelta(0)),
            lambda: store.create(NewRun(run_id='new', nonce=new_nonce()), draft),
            lambda: store.claim('run-1'),
            lambda: store.append(commit),
            lambda: store.renew([claim]),
            lambda: store.release(claim),
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                await call()

    async def test_closing_one_store_leaves_the_others_open(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            async with self.make_store() as other:
                await worker.check(store=other)
            await worker.step()
            await worker.check()

    async def test_a_cancelled_open_leaves_nothing_behind(self) -> None:
        for turns in range(12):
            store = self.make_store()
            opening = asyncio.create_task(store.open())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            try:
                await opening
            except asyncio.CancelledError:
                pass
            await store.close()

        async with self.make_store() as store:
            worker = await self.started(store, steps=1)
            await worker.check()

    async def test_a_close_while_it_opens_leaves_it_closed(self) -> None:
        store = self.make_store()
        opening = asyncio.create_task(store.open())
        await asyncio.sleep(0)
        await store.close()
        try:
            await opening
        except StoreClosedError:
            pass
        with pytest.raises(StoreClosedError):
            await store.runs()

    async def test_readers_are_served_while_others_write(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            stop = asyncio.Event()

            async def write() -> None:
                while not stop.is_set():
                    await worker.step()

            writer = asyncio.create_task(write())

            async def moved() -> bool:
                run, replay = await store.read('run-1')
                assert replay.seq == run.seq
                return run.seq >= 20

            try:
                await eventually(moved, what='twenty steps are written')
            finally:
                stop.set()
                await writer
            await worker.check()
