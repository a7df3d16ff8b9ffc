"""Contract: commits are fenced, written once, and say what they did."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, get_args

import pytest

from ..errors import LeaseLostError
from ..runs import Claim, Event, Status
from ..store import new_nonce
from ._base import Contract
from ._calls import ELSEWHERE, take
from ._worker import STARTED, Worker

__all__ = ('Committing',)

_LEAVES: tuple[Status, ...] = ('ready', 'paused', 'failed', 'done', 'cancelled')


class Committing(Contract):
    """A commit is one snapshot: fenced by epoch, seq and status, written once."""

    async def test_a_commit_that_goes_on_keeps_claim_and_renews_the_lease(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=30.0, reclaims=False)
            before = await worker.create(graph='orders', labels={'a': 'b'})
            await worker.step(ttl=300.0)
            run = await store.run('run-1')
            assert run.lease_until is not None
            left = run.lease_until - run.updated_at
            assert timedelta(seconds=299) < left < timedelta(seconds=301)
            assert run == replace(
                before,
                seq=1,
                full_seq=run.full_seq,
                updated_at=run.updated_at,
                lease_until=run.lease_until,
            )
            await worker.check()

    @pytest.mark.parametrize('status', _LEAVES)
    async def test_a_commit_with_another_status_gives_the_claim_up(self, status: Status) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=1)
            await worker.step(status=status)
            run = await store.run('run-1')
            assert (run.status, run.seq) == (status, 2)
            assert (run.owner, run.lease_until, run.interrupted) == (None, None, False)
            assert run.epoch == worker.claim.epoch
            with pytest.raises(LeaseLostError):
                await worker.append(worker.commit())
            assert await store.run('run-1') == run
            await worker.check()

    async def test_a_commit_outside_its_lease_goes_through_while_nobody_took_the_run(self) -> None:
        async with self.make_store() as store:
            worker = self.worker(store, ttl=0.0)
            await worker.create()
            assert (await store.run('run-1')).interrupted
            await worker.step(ttl=30.0)
            assert not (await store.run('run-1')).interrupted
            await worker.check()

    async def test_full_and_delta_snapshots_are_told_apart(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, state={'items': list(range(100))})
            for number in range(1, 12):
                kind = 'full' if number in (4, 5, 9) else 'delta'
                await worker.step(kind=kind, state={'items': list(range(100 + number))})
            await worker.check()

    @pytest.mark.parametrize('event', get_args(Event))
    async def test_every_event_is_kept(self, event: Event) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(event=event)
            assert [s.event for s in await store.snapshots('run-1')] == ['start', event]

    async def test_what_a_snapshot_says_of_its_step_is_kept(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            cases: list[dict[str, Any]] = [
                {'node': 'Ask', 'task': '0', 'started_at': STARTED, 'duration': 0.1},
                {'node': None, 'task': None, 'started_at': None, 'duration': None},
                {'node': "'; --", 'task': 'ünï "{}"', 'started_at': STARTED, 'duration': 0.0},
                {'node': 'A' * 600, 'task': '漢字 🎉', 'started_at': None, 'duration': 1e-7},
                {'node': 'N', 'task': '1', 'started_at': STARTED, 'duration': 1 / 3},
                {
                    'node': 'N',
                    'task': '1',
                    'started_at': datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5.5))),
                    'duration': 123456.789,
                },
            ]
            for case in cases:
                await worker.step(**case)
            for snapshot, case in zip((await store.snapshots('run-1'))[1:], cases, strict=True):
                found = {key: getattr(snapshot, key) for key in case}
                assert found == case
                if snapshot.started_at is not None:
                    assert snapshot.started_at.utcoffset() == timedelta(0)
                assert snapshot.error is None

    async def test_an_error_is_kept_in_header_and_snapshot(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            error = {
                'type': 'ValueError',
                'message': 'NUL \0, lone \ud800 and \udfff, "quotes" \\ \' \n and ünï 🎉 \u2028',
                'node': None,
                'traceback': ['line 1', {'deep': [1, 2.5, True, None, 10**30]}],
                '\0 key \ud800': '',
            }
            await worker.step(status='failed', event='error', error=error)
            for record in (
                await store.run('run-1'),
                (await store.snapshots('run-1'))[1],
                (await store.runs())[0],
            ):
                assert record.error == error
            await worker.take(allow=('failed',))
            await worker.step()
            assert (await store.run('run-1')).error is None
            snapshots = await store.snapshots('run-1')
            assert [s.error for s in snapshots] == [None, error, None]

    # --- fencing ---------------------------------------------------------------------------------

    async def test_a_commit_of_an_older_claim_is_refused(self) -> None:
        await self._refused(lambda worker: worker.commit(claim=_epoch(worker, -1)))

    async def test_a_commit_of_a_claim_that_never_was_is_refused(self) -> None:
        await self._refused(lambda worker: worker.commit(claim=_epoch(worker, 1)))

    @pytest.mark.parametrize('seq', [0, 2, 4, 100])
    async def test_a_commit_with_another_seq_than_the_next_is_refused(self, seq: int) -> None:
        await self._refused(lambda worker: worker.commit(seq=seq, kind='full'))

    async def _refused(self, make: Callable[[Worker], Any]) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=2)
            before = await store.run('run-1')
            commit = make(worker)
            ending = await store.append(commit)
            assert isinstance(ending.error, LeaseLostError)
            assert ending.error.run_id == 'run-1'
            assert ending.error.epoch == commit.claim.epoch
            assert await store.run('run-1') == before
            await worker.check()
            await worker.step()
            await worker.check()

    async def test_a_zombie_cannot_write(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            zombie = self.worker(store, ttl=0.0)
            await zombie.create()
            await zombie.step()
            heir = zombie.successor(other)
            await heir.take()
            await heir.append(heir.commit(state={'by': 'heir'}))
            for _ in range(2):
                ending = await store.append(zombie.commit(state={'by': 'zombie'}))
                assert isinstance(ending.error, LeaseLostError)
                # Not even when it guesses the seq right.
                zombie.seq += 1
            await heir.append(heir.commit(status='done', event='end', output='heir'))
            ending = await store.append(zombie.commit(status='done', output='zombie'))
            assert isinstance(ending.error, LeaseLostError)
            await heir.check()

    async def test_nobody_writes_a_run_that_is_gone(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await store.delete('run-1', force=True)
            ending = await store.append(worker.commit())
            assert isinstance(ending.error, LeaseLostError)
            assert await store.runs() == []

    # --- again, after a lost reply ---------------------------------------------------------------

    @pytest.mark.parametrize('status', ['running', 'done', 'failed', 'paused'])
    async def test_the_same_commit_again_is_written_once(self, status: Status) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, steps=1)
            commit = worker.commit(status=status)
            await worker.append(commit)
            before = await store.run('run-1')
            for again in (store, other, store):
                assert (await again.append(commit)).error is None
            assert await store.run('run-1') == before
            await worker.check()

    async def test_the_same_commit_again_after_a_cancel_was_written(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            commit = worker.commit()
            await worker.append(commit)
            await store.cancel('run-1')
            assert (await store.append(commit)).error is None
            await worker.check()

    async def test_a_late_commit_again_is_refused(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            commit = worker.commit()
            await worker.append(commit)
            await worker.append(worker.commit())
            before = await store.run('run-1')
            ending = await store.append(commit)
            assert isinstance(ending.error, LeaseLostError)
            assert await store.run('run-1') == before
            await worker.check()

    async def test_a_commit_again_after_another_claim_is_refused(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            commit = worker.commit()
            await worker.append(commit)
            await take(store, 'run-1', expected_epoch=worker.claim.epoch)
            ending = await store.append(commit)
            assert isinstance(ending.error, LeaseLostError)
            await worker.check()

    # --- history ---------------------------------------------------------------------------------

    async def test_the_latest_history_begins_at_the_newest_full_snapshot(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            for number in range(1, 10):
                kind = 'full' if number in (4, 7) else 'delta'
                await worker.step(kind=kind, history='latest')
                full = (await store.run('run-1')).full_seq
                await worker.check(first=full)
                for gone in range(full):
                    with pytest.raises(ValueError, match='no longer has snapshot'):
                        await store.document('run-1', at=gone)

    async def test_all_of_the_history_is_kept_unless_asked(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            for number in range(1, 10):
                await worker.step(kind='full' if number % 3 == 0 else 'delta')
            await worker.check()

    async def test_a_refused_commit_drops_no_history(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, steps=2)
            commit = worker.commit(kind='full', history='latest', claim=_epoch(worker, -1))
            assert isinstance((await store.append(commit)).error, LeaseLostError)
            await worker.check()

    # --- batches ---------------------------------------------------------------------------------

    async def test_each_commit_of_a_batch_goes_through_or_fails_alone(self) -> None:
        async with self.make_store() as store:
            workers = {name: await self.started(store, name, steps=1) for name in 'hbgaecfd'}
            await store.cancel('c')
            await store.delete('d', force=True)
            again = workers['e'].commit()
            await workers['e'].append(again)
            commits = {name: worker.commit() for name, worker in workers.items()}
            commits['a'] = workers['a'].commit(claim=_epoch(workers['a'], -1))
            commits['b'] = workers['b'].commit(seq=9)
            commits['e'] = again
            commits['f'] = workers['f'].commit(status='done', event='end', output='over')
            lost = {'a', 'b', 'c', 'd'}

            results = await store._append(list(commits.values()))
            for (name, commit), result in zip(commits.items(), results, strict=True):
                assert isinstance(result, LeaseLostError) == (name in lost), name
                if isinstance(result, LeaseLostError):
                    assert (result.run_id, result.epoch) == (name, commit.claim.epoch)
                elif name != 'e':
                    assert result is None
                    workers[name].written(commit)
                if name != 'd':
                    await workers[name].check()

    async def test_a_batch_may_be_empty(self) -> None:
        async with self.make_store() as store:
            await store.open()
            assert list(await store._append([])) == []

    async def test_a_batch_of_unknown_runs_writes_nothing(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            nobody = Claim(run_id='nowhere', owner=ELSEWHERE, epoch=worker.claim.epoch)
            commits = [worker.commit(claim=nobody, nonce=new_nonce()) for _ in range(3)]
            results = await store._append(commits)
            assert all(isinstance(result, LeaseLostError) for result in results)
            assert [run.run_id for run in await store.runs()] == ['run-1']


def _epoch(worker: Worker, by: int) -> Claim:
    return replace(worker.claim, epoch=worker.claim.epoch + by)
