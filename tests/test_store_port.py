"""What every store does the same, whatever its database: shown on one whose replies get lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from graphkeep.errors import (
    DamagedRunError,
    RunBusyError,
    RunNotFoundError,
    SchemaError,
    StoreClosedError,
    StoreUnavailableError,
)
from graphkeep.runs import Commit, Draft, NewRun
from graphkeep.store import Store, new_nonce
from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import Worker
from tests.bad_wire import Wire, down, wired

# --- making ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('options', 'says'),
    [
        ({'heartbeat': 0}, 'heartbeat'),
        ({'heartbeat': -1.0}, 'heartbeat'),
        ({'lease': 10.0, 'heartbeat': 5.1}, 'half'),
        ({'lease': 0}, 'lease'),
        ({'lease': float('nan')}, 'lease'),
        ({'lease': float('inf')}, 'lease'),
        ({'history': 'some'}, "'all' or 'latest'"),
        ({'retry': -0.1}, 'retry'),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MemoryStore(**options)


def test_the_heartbeat_follows_the_lease() -> None:
    assert MemoryStore().heartbeat == 10.0
    assert MemoryStore(lease=3.0).heartbeat == 1.0
    assert MemoryStore(lease=3.0, heartbeat=1.5).heartbeat == 1.5


def test_the_port_cannot_be_made_without_its_hooks() -> None:
    with pytest.raises(TypeError, match='abstract'):
        Store()  # type: ignore[abstract]


def test_a_nonce_is_16_hex_digits_and_new() -> None:
    nonces = {new_nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    assert all(len(nonce) == 16 and int(nonce, 16) >= 0 for nonce in nonces)


# --- opening --------------------------------------------------------------------------------------


async def test_a_store_opens_once_however_many_use_it_first() -> None:
    store = Wire()
    store.opening.clear()
    users = [asyncio.create_task(store.runs()) for _ in range(20)]
    await asyncio.sleep(0)
    store.opening.set()
    assert await asyncio.gather(*users) == [[]] * 20
    assert len(store.called('open')) == 1
    await store.open()
    assert len(store.called('open')) == 1
    await store.close()
    assert store.calls[-1] == ('close', None)


async def test_what_cannot_name_a_run_is_refused_before_opening() -> None:
    store = Wire()
    draft = Draft(seq=0, kind='full', event='start', data=b'{}')
    for call in (
        store.run(''),
        store.read(''),
        store.claim(''),
        store.cancel(''),
        store.delete(''),
        store.fork('run-1', new_run_id=''),
        store.create(NewRun(run_id='', nonce=new_nonce()), draft),
        store.create(NewRun(run_id='a', graph='', nonce=new_nonce()), draft),
        store.create(NewRun(run_id='a', labels={'': ''}, nonce=new_nonce()), draft),
        store.runs(limit=0),
    ):
        with pytest.raises(ValueError, match=r'run_id|graph|label|limit'):
            await call
    assert store.calls == []


async def test_an_open_that_failed_can_be_tried_again() -> None:
    store = Wire()
    store.before = [SchemaError('no right to create tables')]
    with pytest.raises(SchemaError):
        await store.runs()
    assert await store.runs() == []
    assert len(store.called('open')) == 2
    await store.close()


async def test_an_open_waits_for_a_database_that_is_down() -> None:
    async with Wire() as store:
        pass
    store = Wire()
    store.before = [down(), down()]
    assert await store.runs() == []
    assert len(store.called('open')) == 3
    await store.close()


async def test_of_many_who_open_one_may_be_cancelled() -> None:
    store = Wire()
    store.opening.clear()
    users = [asyncio.create_task(store.runs()) for _ in range(3)]
    await asyncio.sleep(0)
    users[0].cancel()
    await asyncio.sleep(0)
    store.opening.set()
    results = await asyncio.gather(*users, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [[], []]
    assert len(store.called('open')) == 2
    await store.close()


async def test_a_close_while_it_opens_lets_go_of_what_was_opened() -> None:
    store = Wire()
    store.opening.clear()
    users = [asyncio.create_task(store.runs()) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    store.opening.set()
    for result in await asyncio.gather(*users, return_exceptions=True):
        assert isinstance(result, StoreClosedError)
    assert [name for name, _ in store.calls] == ['open', 'close']
    with pytest.raises(StoreClosedError):
        await store.open()


async def test_a_store_that_was_never_opened_closes_nothing() -> None:
    store = Wire()
    await store.close()
    assert store.calls == []
    with pytest.raises(StoreClosedError, match='closed'):
        await store.runs()


async def test_leaving_the_block_closes_whatever_happened() -> None:
    store = Wire()
    with pytest.raises(KeyError):
        async with store:
            raise KeyError
    assert store.calls[-1] == ('close', None)
    with pytest.raises(StoreClosedError):
        await store.runs()


async def test_closing_goes_on_when_its_caller_is_cancelled() -> None:
    store = Wire()
    worker = Worker(store)
    await worker.create(claimed=False)
    store.leases.hold((await store.claim('run-1')).claim)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [name for name, _ in store.calls[-2:]] == ['release', 'close']


async def test_closing_writes_first_and_gives_claims_up_then() -> None:
    may_write = asyncio.Event()

    class OneByOne(Wire):
        max_batch_commits = 1

        async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
            await may_write.wait()
            return await super()._append(commits)

    store = OneByOne()
    workers = [Worker(store, f'run-{number}') for number in range(3)]
    for worker in workers:
        await worker.create()
        store.leases.hold(worker.claim).busy = True
    store.calls.clear()
    waiters = [asyncio.create_task(store.append(worker.commit())) for worker in workers]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    for _ in range(10):
        await asyncio.sleep(0)
    may_write.set()
    endings = await asyncio.gather(*waiters)
    await closing
    assert [ending.error for ending in endings] == [None] * 3
    assert [name for name, _ in store.calls] == ['append'] * 3 + ['release'] * 3 + ['close']


async def test_a_release_that_fails_does_not_keep_a_store_open() -> None:
    store = Wire(retry=0.0)
    await Worker(store).create(claimed=False)
    store.leases.hold((await store.claim('run-1')).claim)
    store.before = [down()]
    await store.close()
    assert store.calls[-1] == ('close', None)


# --- other loops and processes --------------------------------------------------------------------


def test_a_store_belongs_to_the_loop_that_opened_it() -> None:
    store = Wire()
    asyncio.run(store.open())

    async def elsewhere() -> None:
        with pytest.raises(StoreClosedError, match='another event loop'):
            await store.runs()
        await store.close()
        assert store.calls[-1] == ('close', None)
        with pytest.raises(StoreClosedError, match='closed'):
            await store.runs()

    asyncio.run(elsewhere())


def test_an_open_that_failed_binds_no_loop() -> None:
    store = Wire(retry=0.0)
    store.before = [down()]
    with pytest.raises(StoreUnavailableError):
        asyncio.run(store.open())

    async def again() -> None:
        assert await store.runs() == []
        await store.close()

    asyncio.run(again())


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork:DeprecationWarning')
@pytest.mark.parametrize('opened', [True, False])
def test_a_forked_child_may_not_use_the_store_of_its_parent(opened: bool) -> None:
    store = Wire()
    if opened:
        asyncio.run(store.open())
    before = list(store.calls)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _in_child(store, before)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(store.close())


def _in_child(store: Wire, before: list[Any]) -> int:
    async def use() -> int:
        try:
            await store.runs()
        except StoreClosedError as e:
            if 'fork' not in str(e):
                return 2
        else:
            return 3
        # Closing it must not touch the connections, which the parent goes on using.
        await store.close()
        return 0 if store.calls == before else 4

    return asyncio.run(use())


# --- reading --------------------------------------------------------------------------------------


async def test_a_long_history_is_read_in_pages() -> None:
    async with wired() as (store, worker):
        for _ in range(2_003):
            worker.written(commit := worker.commit())
            assert await MemoryStore._append(store, [commit]) == [None]
        every = await store.snapshots('run-1')
        assert [s.seq for s in every] == list(range(2_004))
        assert store.called('history') == [1000, 1000, 1000]
        store.calls.clear()
        assert await store.snapshots('run-1', after=3, limit=1_500) == every[4:1_504]
        assert store.called('history') == [1000, 500]
        assert await store.snapshots('run-1', limit=0) == []


@pytest.mark.parametrize('at', [None, 3, 4])
async def test_a_run_without_its_full_snapshot_is_damaged(at: int | None) -> None:
    async with wired() as (store, worker):
        for number in range(1, 5):
            await worker.step(kind='full' if number == 3 else 'delta')
        store._data.rows['run-1'].snapshots[:] = []
        with pytest.raises(DamagedRunError) as caught:
            await store.document('run-1', at=at)
        assert (caught.value.run_id, caught.value.seq) == ('run-1', 3)


async def test_a_damaged_run_does_not_disturb_others() -> None:
    async with wired() as (store, worker):
        await worker.step()
        other = Worker(store, 'other')
        await other.create()
        del store._data.rows['run-1'].snapshots[0]
        with pytest.raises(DamagedRunError):
            await store.document('run-1')
        assert (await store.run('run-1')).seq == 1
        assert len(await store.runs()) == 2
        await other.check()


# --- prune ----------------------------------------------------------------------------------------


async def test_prune_passes_over_what_others_removed_or_took() -> None:
    async with Wire() as store:
        for name in 'abcd':
            await (await _ended(store, name)).check()

        async def others_are_faster(run_id: str, force: bool) -> None:
            if run_id == 'b':
                raise RunNotFoundError(run_id=run_id)
            if run_id == 'c':
                raise RunBusyError(run_id=run_id, owner='x', lease_until=None, epoch=1)
            await MemoryStore._delete(store, run_id, force)

        store._delete = others_are_faster
        assert await store.prune(older_than=timedelta(seconds=-1)) == 2
        assert {run.run_id for run in await store.runs()} == {'b', 'c'}


async def _ended(store: Store, name: str) -> Worker:
    worker = Worker(store, name)
    await worker.create()
    await worker.ends_as('done')
    return worker
