"""Contract: requests are stored with the commit that asks, and answered once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from ..errors import (
    InvalidAnswerError,
    LeaseLostError,
    RequestClosedError,
    RequestNotFoundError,
    RunNotFoundError,
    RunStatusError,
)
from ..requests import Request
from ..runs import Status
from ..store import Store
from ._base import Contract
from ._calls import UNSTORABLE, eventually, take
from ._worker import asks

__all__ = ('Answering',)

_OK = {'ok': True}


async def names(store: Store, **query: object) -> list[str]:
    """The ids of the requests that match, in order."""
    found: Sequence[Request] = await store.requests(**query)  # type: ignore[arg-type]
    return [request.request_id for request in found]


class Answering(Contract):
    """Asking, pausing, answering, expiring."""

    # --- asking -----------------------------------------------------------------------------------

    async def test_a_request_is_stored_as_it_was_asked(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store, graph='orders', labels={'team': 'a'})
            new = asks('manager', prompt='Nul \0, lone \ud800, “quotes”', timeout=3600)
            await worker.pauses(new, asks('director', prompt=None, schema=b'true', payload=b'null'))
            director, manager = await other.requests()
            assert [director.request_id, manager.request_id] == ['0:director', '0:manager']
            assert (manager.run_id, manager.name, manager.node) == ('run-1', 'manager', 'Node0')
            assert (manager.task, manager.status) == ('0', 'open')
            assert manager.prompt == new.prompt
            assert (manager.payload_json, manager.schema_json) == (new.payload, new.schema)
            assert manager.payload == {'amount': 12, 'nul': '\0', 'lone': '\ud800'}
            assert (manager.graph, dict(manager.labels)) == ('orders', {'team': 'a'})
            assert (manager.answer_json, manager.answer, manager.answered_by) == (None, None, None)
            assert (manager.answered_at, manager.closed_at, manager.error) == (None, None, None)
            assert manager.deadline == manager.created_at + timedelta(hours=1)
            assert (director.prompt, director.payload, director.schema) == (None, None, {})
            assert director.deadline is None
            run = await store.run('run-1')
            assert (run.status, run.owner, run.lease_until) == ('paused', None, None)
            assert (run.answered, run.wake_at, run.due) == (0, manager.deadline, False)
            assert manager.created_at == run.updated_at
            assert await store.request('run-1', '0:manager') == manager
            await worker.check()

    async def test_a_run_goes_on_beside_its_requests(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks(timeout=60.0)])
            run = await store.run('run-1')
            assert (run.status, run.wake_at, run.due) == ('running', None, False)
            await worker.step()
            assert await names(store) == ['0:manager']
            await worker.check()

    async def test_asking_again_makes_no_second_request(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks(timeout=60.0)])
            before = await store.requests()
            await worker.step(asks=[asks(timeout=99.0, prompt='other')])
            assert await store.requests() == before
            await store.answer('run-1', '0:manager', _OK)
            answered = await store.request('run-1', '0:manager')
            await worker.step(asks=[asks()])
            assert await store.request('run-1', '0:manager') == answered

    async def test_a_refused_commit_asks_and_closes_nothing(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks('kept')])
            zombie = worker.commit(status='paused', asks=[asks()], closes=['0:kept'], event='pause')
            await take(store, 'run-1', expected_epoch=worker.claim.epoch)
            ending = await store.append(zombie)
            assert isinstance(ending.error, LeaseLostError)
            assert await names(store) == ['0:kept']
            run = await store.run('run-1')
            assert (run.status, run.wake_at) == ('running', None)

    async def test_a_commit_that_is_sent_twice_asks_once(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            commit = worker.commit(status='paused', event='pause', asks=[asks(timeout=60.0)])
            (await store.append(commit)).unwrap()
            before = await store.requests(), await store.run('run-1')
            (await store.append(commit)).unwrap()
            assert (await store.requests(), await store.run('run-1')) == before

    async def test_requests_of_many_runs_are_asked_together(self) -> None:
        async with self.make_store() as store:
            workers = [await self.started(store, f'run-{n}') for n in range(8)]
            await asyncio.gather(
                *(w.pauses(asks(f'r{n}')) if n % 2 else w.step() for n, w in enumerate(workers))
            )
            assert sorted(await names(store)) == ['0:r1', '0:r3', '0:r5', '0:r7']
            assert len(await store.runs(status='paused')) == 4

    # --- answering --------------------------------------------------------------------------------

    async def test_an_answer_makes_a_paused_run_ready(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store)
            await worker.pauses(asks(timeout=60.0))
            before = await store.run('run-1')
            request = await other.answer('run-1', '0:manager', {'ok': [1.0, '\0é']}, by='ann')
            assert request == await store.request('run-1', '0:manager')
            assert (request.status, request.answer) == ('answered', {'ok': [1.0, '\0é']})
            assert request.answered_by == 'ann'
            assert request.answered_at is not None
            assert request.answered_at >= request.created_at
            run = await store.run('run-1')
            assert (run.status, run.owner, run.wake_at) == ('ready', None, None)
            assert (run.answered, run.epoch, run.seq) == (1, before.epoch, before.seq)
            assert run.updated_at >= before.updated_at
            assert await names(store) == []
            assert await names(store, status='answered') == ['0:manager']
            claimed = await worker.take()
            assert (claimed.run.status, claimed.run.answered) == ('running', 1)
            await worker.step(closes=['0:manager'])
            used = await store.request('run-1', '0:manager')
            assert (used.status, used.answer) == ('answered', request.answer)
            assert used.closed_at is not None
            await worker.check()

    async def test_the_first_answer_counts(self) -> None:
        async with self.make_store() as store:
            await (await self.started(store)).pauses(asks(), asks('other'))
            first = await store.answer('run-1', '0:manager', {'ok': 1, 'no': 2}, by='ann')
            again = await store.answer('run-1', '0:manager', {'no': 2, 'ok': 1}, by='bob')
            assert again == first
            for other in ({'ok': 2, 'no': 2}, {'ok': True, 'no': 2}, {'ok': 1.0, 'no': 2}):
                with pytest.raises(RequestClosedError, match=r"answered by 'ann' before") as caught:
                    await store.answer('run-1', '0:manager', other)
                assert caught.value.request == first
            assert (await store.run('run-1')).answered == 1
            await store.answer('run-1', '0:other', _OK)
            assert (await store.run('run-1')).answered == 2

    async def test_of_two_who_answer_at_once_one_counts(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(5):
                run_id = f'run-{n}'
                await (await self.started(store, run_id)).pauses(asks())
                results = await asyncio.gather(
                    *(
                        (store if k % 2 else other).answer(run_id, '0:manager', {'ok': k})
                        for k in range(6)
                    ),
                    return_exceptions=True,
                )
                taken = [r for r in results if isinstance(r, Request)]
                refused = [r for r in results if isinstance(r, RequestClosedError)]
                assert (len(taken), len(refused)) == (1, 5)
                assert taken[0] == await store.request(run_id, '0:manager')
                assert (await store.run(run_id)).answered == 1

    async def test_an_answer_has_to_fit_the_schema(self) -> None:
        schema = {
            'type': 'object',
            'properties': {'items': {'type': 'array', 'items': {'type': 'integer'}}},
            'required': ['items'],
        }
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.pauses(asks(schema=json.dumps(schema).encode()))
            before = await store.requests(), await store.run('run-1')
            wrong: list[tuple[Any, str]] = [
                ({'items': [1, 'two']}, 'answer.items[1]'),
                ([], 'answer'),
                ({}, 'answer'),
                ({'items': float('nan')}, 'answer'),
                (object(), 'answer'),
            ]
            for answer, path in wrong:
                with pytest.raises(InvalidAnswerError) as caught:
                    await store.answer('run-1', '0:manager', answer)
                assert caught.value.path == path
                assert path in str(caught.value)
            assert (await store.requests(), await store.run('run-1')) == before

    async def test_what_is_not_asked_cannot_be_answered(self) -> None:
        async with self.make_store() as store:
            await (await self.started(store, 'run-1')).pauses(asks())
            await (await self.started(store, 'run-2')).pauses(asks('other'))
            with pytest.raises(RequestNotFoundError) as caught:
                await store.answer('run-1', '0:other', _OK)
            assert (caught.value.run_id, caught.value.request_id) == ('run-1', '0:other')
            with pytest.raises(RunNotFoundError):
                await store.answer('run-3', '0:manager', _OK)
            for text in UNSTORABLE:
                for call in (store.request('run-1', text), store.answer('run-1', text, _OK)):
                    with pytest.raises(RequestNotFoundError) as caught:
                        await call
                    assert caught.value.request_id == text
                with pytest.raises(RunNotFoundError):
                    await store.answer('run-3', text, _OK)
            with pytest.raises(ValueError, match='by'):
                await store.answer('run-1', '0:manager', _OK, by='a\0b')

    async def test_an_answer_to_a_run_in_work_leaves_it_in_work(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            worker = await self.started(store)
            await worker.step(asks=[asks()])
            before = await store.run('run-1')
            await other.answer('run-1', '0:manager', _OK)
            run = await store.run('run-1')
            assert (run.status, run.answered) == ('running', 1)
            assert (run.owner, run.epoch) == (before.owner, before.epoch)
            await worker.step()
            await worker.check()

    async def test_a_run_that_has_not_seen_an_answer_does_not_pause(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks(timeout=60.0), asks('other')])
            await store.answer('run-1', '0:manager', _OK)
            await worker.pauses(answered=0, wake_at=(await store.requests())[0].created_at)
            run = await store.run('run-1')
            assert (run.status, run.owner, run.wake_at) == ('ready', None, None)
            await worker.take()
            await worker.pauses(answered=1)
            run = await store.run('run-1')
            assert (run.status, run.wake_at, run.answered) == ('paused', None, 1)

    async def test_an_answer_is_never_lost_in_the_moment_of_pausing(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(20):
                run_id = f'run-{n}'
                worker = await self.started(store, run_id)
                await worker.step(asks=[asks()])
                await asyncio.gather(
                    worker.pauses(answered=0), other.answer(run_id, '0:manager', _OK)
                )
                run = await store.run(run_id)
                assert (run.status, run.answered) == ('ready', 1)

    async def test_a_request_is_opened_again_without_its_answer(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks(timeout=60.0)])
            asked = await store.request('run-1', '0:manager')
            await store.answer('run-1', '0:manager', _OK, by='ann')
            await worker.pauses(asks(error='not a date'), answered=1, wake_at=asked.deadline)
            again = await store.request('run-1', '0:manager')
            assert (again.status, again.error, again.answer_json) == ('open', 'not a date', None)
            assert (again.answered_by, again.answered_at) == (None, None)
            assert (again.created_at, again.deadline) == (asked.created_at, asked.deadline)
            run = await store.run('run-1')
            assert (run.status, run.wake_at) == ('paused', asked.deadline)
            await store.answer('run-1', '0:manager', {'ok': 2})
            assert (await store.run('run-1')).answered == 2

    async def test_a_request_that_begins_with_an_error_is_open(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.pauses(asks(error='not a date', timeout=60.0))
            request = await store.request('run-1', '0:manager')
            assert (request.status, request.error) == ('open', 'not a date')
            assert request.deadline == request.created_at + timedelta(minutes=1)
            assert (await store.run('run-1')).wake_at == request.deadline
            assert await store.requests() == [request]
            await store.answer('run-1', '0:manager', _OK)
            assert (await store.request('run-1', '0:manager')).error == 'not a date'

    async def test_a_request_is_opened_again_as_it_is_asked_now(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, graph='g')
            await worker.pauses(asks(timeout=60.0))
            asked = await store.request('run-1', '0:manager')
            await store.answer('run-1', '0:manager', _OK)
            await worker.take()
            await worker.step(closes=['0:manager'])
            assert (await store.request('run-1', '0:manager')).closed_at is not None
            again = asks(error='no', prompt='Else?', payload=b'[2]', schema=b'{"type":"integer"}')
            await worker.pauses(again, answered=1)
            request = await store.request('run-1', '0:manager')
            assert (request.status, request.closed_at) == ('open', None)
            assert (request.prompt, request.payload) == ('Else?', [2])
            assert request.schema == {'type': 'integer'}
            assert request.deadline == asked.deadline
            # Its deadline wakes the run, though it is none of a new request.
            assert (await store.run('run-1')).wake_at == asked.deadline
            assert await store.requests() == [request]
            with pytest.raises(InvalidAnswerError):
                await store.answer('run-1', '0:manager', _OK)
            await store.answer('run-1', '0:manager', 7)
            run = await store.run('run-1')
            assert (run.status, run.answered, run.wake_at) == ('ready', 2, None)

    # --- deadlines --------------------------------------------------------------------------------

    async def test_a_passed_deadline_makes_a_paused_run_due(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, graph='orders')
            await worker.pauses(asks(timeout=0.05), asks('other', timeout=60.0), asks('third'))

            async def due() -> bool:
                return (await store.run('run-1')).due

            await eventually(due, what='the deadline')
            run = await store.run('run-1')
            assert run.status == 'paused'
            assert [r.run_id for r in await store.candidates(['orders'], limit=5)] == ['run-1']
            with pytest.raises(RequestClosedError, match='expired'):
                await store.answer('run-1', '0:manager', _OK)
            claimed = await worker.take(allow=())
            assert (claimed.run.status, claimed.run.wake_at) == ('running', None)
            await store.expire('run-1')
            found = {r.name: r.status for r in await store.requests(status=())}
            assert found == {'manager': 'expired', 'other': 'open', 'third': 'open'}
            assert (await store.run('run-1')).answered == 0

    async def test_an_answer_and_a_deadline_exclude_each_other(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(10):
                run_id = f'run-{n}'
                await (await self.started(store, run_id)).pauses(asks(timeout=0.01))

                async def give(run_id: str = run_id) -> Request | None:
                    try:
                        return await other.answer(run_id, '0:manager', _OK)
                    except RequestClosedError:
                        return None

                taken, *_ = await asyncio.gather(give(), *(store.expire(run_id) for _ in range(3)))
                for _ in range(20):
                    await store.expire(run_id)
                    await asyncio.sleep(0.001)
                status = (await store.request(run_id, '0:manager')).status
                assert status == ('expired' if taken is None else 'answered')

    # --- ends -------------------------------------------------------------------------------------

    @pytest.mark.parametrize('status', ['ready', 'running', 'paused', 'failed'])
    async def test_a_cancelled_run_takes_no_answer(self, status: Status) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks(), asks('given', timeout=60.0)])
            await store.answer('run-1', '0:given', _OK)
            if status != 'running':
                await worker.ends_as(status)
            await store.cancel('run-1')
            run = await store.run('run-1')
            assert (run.status, run.wake_at) == ('cancelled', None)
            with pytest.raises(RequestClosedError, match='cancelled') as caught:
                await store.answer('run-1', '0:manager', _OK)
            assert caught.value.request.status == 'closed'
            found = await store.requests(status=())
            assert {r.name: r.status for r in found} == {'manager': 'closed', 'given': 'answered'}
            assert all(r.closed_at is not None for r in found)

    async def test_a_run_that_has_ended_takes_no_answer(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks()])
            await worker.step(status='done', event='end', output=1, closes=['0:manager'])
            with pytest.raises(RequestClosedError, match='ended'):
                await store.answer('run-1', '0:manager', _OK)
            assert (await store.run('run-1')).status == 'done'

    async def test_a_failed_run_can_be_answered_and_stays_failed(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.step(asks=[asks()])
            await worker.ends_as('failed')
            await store.answer('run-1', '0:manager', _OK)
            run = await store.run('run-1')
            assert (run.status, run.answered) == ('failed', 1)

    async def test_a_deleted_run_has_no_requests(self) -> None:
        async with self.make_store() as store:
            await (await self.started(store)).pauses(asks(timeout=60.0))
            kept = await self.started(store, 'run-2')
            await kept.pauses(asks('kept'))
            await store.delete('run-1')
            assert await names(store, status=()) == ['0:kept']
            again = await self.started(store)
            assert (await store.run('run-1')).answered == 0
            with pytest.raises(RequestNotFoundError):
                await store.answer('run-1', '0:manager', _OK)
            await again.pauses(asks())
            assert await names(store, run_id='run-1') == ['0:manager']

    async def test_a_paused_run_is_claimed_by_nobody(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            await worker.pauses(asks(timeout=60.0))
            with pytest.raises(RunStatusError) as caught:
                await take(store, 'run-1')
            assert caught.value.status == 'paused'
