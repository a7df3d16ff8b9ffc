"""A call is made again while the database cannot be reached, and does what it does once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from graphkeep.errors import (
    RunExistsError,
    RunNotFoundError,
    SchemaError,
    StoreUnavailableError,
    StoreWriteError,
)
from graphkeep.runs import (
    Claim,
)
from graphkeep.testing import Worker
from tests.bad_wire import Wire, down, wired

LOST: list[tuple[str, Callable[[Wire, Worker], Awaitable[Any]]]] = [
    ('header', lambda store, worker: store.run('run-1')),
    ('find', lambda store, worker: store.runs()),
    ('history', lambda store, worker: store.snapshots('run-1')),
    ('create', lambda store, worker: Worker(store, 'new').create()),
    ('claim', lambda store, worker: store.claim('failed', allow=('failed',))),
    ('append', lambda store, worker: worker.append(worker.commit())),
    ('release', lambda store, worker: store.release(worker.claim)),
    ('cancel', lambda store, worker: store.cancel('run-1')),
    ('delete', lambda store, worker: store.delete('run-1', force=True)),
    ('create', lambda store, worker: store.fork('run-1', new_run_id='fork')),
]


@pytest.mark.parametrize('lost', ['request', 'reply'])
@pytest.mark.parametrize(('hook', 'call'), LOST, ids=[hook for hook, _ in LOST])
async def test_a_call_is_made_again_when_its_request_or_reply_was_lost(
    hook: str, call: Callable[[Wire, Worker], Awaitable[Any]], lost: str
) -> None:
    states: list[list[tuple[str, str, int, int]]] = []
    # The second try of a delete finds nothing, and there is no third.
    for cuts in (0, 1 if hook == 'delete' else 2):
        async with wired() as (store, worker):
            failed = Worker(store, 'failed')
            await failed.create()
            await failed.ends_as('failed')
            base = {run.run_id: run.epoch for run in await store.runs()}
            store.calls.clear()
            if lost == 'request':
                store.before = [down()] * cuts
            else:
                store.after = [down()] * cuts
            await call(store, worker)
            assert store.before == store.after == []
            assert len(store.calls) >= cuts + 1
            states.append(
                sorted(
                    (run.run_id, run.status, run.seq, run.epoch - base.get(run.run_id, run.epoch))
                    for run in await store.runs()
                )
            )
            if 'run-1' in base and hook != 'delete':
                assert len(await store.snapshots('run-1')) == worker.seq + 1
    assert states[0] == states[1], 'a lost message changed what happened'


async def test_each_try_of_a_write_has_the_same_nonce_and_another_write_another() -> None:
    async with wired() as (store, worker):
        store.after = [down(), down()]
        await worker.step()
        batches = store.called('append')
        assert len(batches) == 3
        assert len({commit.nonce for batch in batches for commit in batch}) == 1
        await worker.ends_as('ready')

        store.after = [down()]
        await store.claim('run-1')
        claims = store.called('claim')
        assert len(claims) == 2
        assert claims[0] == claims[1]

        await Worker(store, 'b').create()
        await Worker(store, 'c').create()
        made = {run.nonce for run in store.called('create')}
        assert len(made) == 2
        assert not made & {claims[0].nonce, batches[0][0].nonce}


async def test_a_batch_is_made_again_as_a_whole() -> None:
    async with Wire() as store:
        workers = [Worker(store, f'run-{n}') for n in range(5)]
        for worker in workers:
            await worker.create()
        store.after = [down()]
        await asyncio.gather(*(worker.step() for worker in workers))
        batches = store.called('append')
        assert [len(batch) for batch in batches] == [5, 5]
        for worker in workers:
            await worker.check()


async def test_it_gives_up_after_its_time_and_says_so() -> None:
    async with wired(retry=0.12) as (store, worker):
        store.before = [down()] * 100
        with pytest.raises(StoreUnavailableError):
            await store.run('run-1')
        # At 0 and 0.05 s; the next would be at 0.15 s.
        assert len(store.calls) == 2
        ending = await store.append(worker.commit())
        assert isinstance(ending.error, StoreUnavailableError)
        store.before.clear()
        await worker.step()
        await worker.check()


async def test_with_no_time_to_retry_it_says_so_at_once() -> None:
    async with wired(retry=0.0) as (store, _):
        store.before = [down()]
        with pytest.raises(StoreUnavailableError):
            await store.run('run-1')
        assert len(store.calls) == 1


@pytest.mark.parametrize('error', [StoreWriteError('full'), SchemaError('gone'), OSError('x')])
async def test_what_will_not_get_better_is_not_tried_again(error: Exception) -> None:
    async with wired() as (store, worker):
        store.before = [error]
        with pytest.raises(type(error)):
            await store.cancel('run-1')
        store.before = [error]
        ending = await store.append(worker.commit())
        assert ending.error is error
        assert len(store.calls) == 2
        await worker.check()


async def test_a_retry_can_be_cancelled() -> None:
    async with wired() as (store, _):
        store.before = [down()] * 100
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await store.run('run-1')
        store.before.clear()
        assert (await store.run('run-1')).seq == 0


async def test_a_renewal_is_not_tried_again() -> None:
    class Down(Wire):
        async def _renew(
            self, claims: Sequence[Claim], ttl: float
        ) -> Sequence[BaseException | None]:
            self.calls.append(('renew', claims))
            raise down()

    async with Down() as store:
        worker = Worker(store)
        await worker.create()
        with pytest.raises(StoreUnavailableError):
            await store.renew([worker.claim])
        # The next heartbeat is soon enough.
        assert len(store.called('renew')) == 1


async def test_a_delete_of_what_never_was_says_so() -> None:
    async with wired() as (store, _):
        with pytest.raises(RunNotFoundError):
            await store.delete('nowhere')
        assert len(store.called('delete')) == 1


async def test_a_create_of_what_another_made_says_so_after_a_lost_request() -> None:
    async with wired() as (store, _):
        store.before = [down()]
        with pytest.raises(RunExistsError):
            await Worker(store).create()
