"""Connections are cut at the worst moment: every write is made once, and nobody hears otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from graphkeep.errors import LeaseLostError, StoreUnavailableError
from graphkeep.runs import Run
from graphkeep.store import Store
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.redis import RedisStore
from graphkeep.testing import Worker, eventually
from tests.proxy import Fault, Proxy

_numbers = count()

FAULTS: tuple[Fault, ...] = ('request', 'reply', 'late')


class Wired:
    """A store by way of a proxy, and another that reaches the same database directly."""

    def __init__(self, proxy: Proxy, make: Callable[..., Store]) -> None:
        self.proxy = proxy
        self.make = make
        self.store = make(proxy.url)
        self.direct = make(None)

    async def close(self) -> None:
        await self.store.close()
        await self.direct.close()


@pytest.fixture(
    params=[
        pytest.param('postgres', marks=pytest.mark.postgres),
        pytest.param('redis', marks=pytest.mark.redis),
    ]
)
async def wired(request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    kind: str = request.param
    url: str = request.getfixturevalue(f'{kind}_url')
    name = f'wire_{next(_numbers)}'

    def make(by: str | None, **options: Any) -> Store:
        if kind == 'postgres':
            return PostgresStore(by or url, table_prefix=name, command_timeout=0.3, **options)
        return RedisStore(by or url, prefix=name, timeout=0.3, **options)

    async with Proxy(url) as proxy:
        wired = Wired(proxy, make)
        await wired.store.open()
        try:
            yield wired
        finally:
            await wired.close()


async def started(wired: Wired, *, steps: int = 2, run_id: str = 'run-1') -> Worker:
    worker = Worker(wired.store, run_id)
    await worker.create()
    for _ in range(steps):
        await worker.step()
    return worker


async def _create(wired: Wired, worker: Worker) -> None:
    new = Worker(wired.store, 'run-1-new')
    await new.create(claimed=False)
    await new.check(store=wired.direct)


async def _create_claimed(wired: Wired, worker: Worker) -> None:
    new = Worker(wired.store, 'run-1-new')
    run = await new.create()
    assert run.status == 'running'
    await new.step()
    await new.check(store=wired.direct)


async def _claim(wired: Wired, worker: Worker) -> None:
    claimed = await wired.store.claim('run-1-ready')
    assert claimed.run == await wired.direct.run('run-1-ready')
    assert [s.seq for s in claimed.snapshots] == [0, 1, 2]


async def _append(wired: Wired, worker: Worker) -> None:
    await worker.step()


async def _end(wired: Wired, worker: Worker) -> None:
    await worker.step(status='done', event='end', output='over')


async def _cancel(wired: Wired, worker: Worker) -> None:
    assert (await wired.store.cancel('run-1')).status == 'cancelled'


async def _delete(wired: Wired, worker: Worker) -> None:
    await wired.store.delete('run-1-ready')


async def _release(wired: Wired, worker: Worker) -> None:
    await wired.store.release(worker.claim)


async def _fork(wired: Wired, worker: Worker) -> None:
    fork = await wired.store.fork('run-1', new_run_id='run-1-fork', at=1)
    assert fork.parent_seq == 1


async def _read(wired: Wired, worker: Worker) -> None:
    document = await wired.store.document('run-1')
    assert document.to_json() == worker.texts[worker.seq]


WRITES: dict[str, Callable[[Wired, Worker], Awaitable[None]]] = {
    'create': _create,
    'create claimed': _create_claimed,
    'claim': _claim,
    'append': _append,
    'end': _end,
    'cancel': _cancel,
    'delete': _delete,
    'release': _release,
    'fork': _fork,
    'read': _read,
}


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.parametrize('write', WRITES)
async def test_a_write_is_made_once_whatever_is_lost(
    wired: Wired, write: str, fault: Fault
) -> None:
    worker = await started(wired)
    ready = await started(wired, run_id='run-1-ready')
    await ready.ends_as('ready')
    bystander = await started(wired, run_id='bystander')
    before = {run.run_id: run for run in await wired.direct.runs()}

    wired.proxy.fault(fault, b'run-1')
    await WRITES[write](wired, worker)
    assert wired.proxy.faults == [fault], 'the fault was never met'

    after = await _shape(wired.direct, before)
    if fault == 'late':
        # What was lost arrives when everything is over.
        await wired.proxy.deliver()
        assert await _shape(wired.direct, before) == after
    assert after == EXPECTED[write] | {'bystander': ('running', 2, 0)}
    for one in (worker, ready, bystander):
        if one.run_id in after:
            await one.check(store=wired.direct)
    await bystander.step()
    await bystander.check()


EXPECTED: dict[str, dict[str, tuple[str, int, int]]] = {
    name: {'run-1': ('running', 2, 0), 'run-1-ready': ('ready', 2, 0)} | changes
    for name, changes in {
        'create': {'run-1-new': ('ready', 0, 0)},
        'create claimed': {'run-1-new': ('running', 1, 0)},
        'claim': {'run-1-ready': ('running', 2, 1)},
        'append': {'run-1': ('running', 3, 0)},
        'end': {'run-1': ('done', 3, 0)},
        'cancel': {'run-1': ('cancelled', 2, 1)},
        'delete': {},
        'release': {'run-1': ('ready', 2, 0)},
        'fork': {'run-1-fork': ('ready', 0, 0)},
        'read': {},
    }.items()
}
del EXPECTED['delete']['run-1-ready']


async def _shape(store: Store, before: dict[str, Run]) -> dict[str, tuple[str, int, int]]:
    """Status, seq, and by how much the epoch has grown."""
    shape: dict[str, tuple[str, int, int]] = {}
    for run in await store.runs():
        base = before[run.run_id].epoch if run.run_id in before else run.epoch
        shape[run.run_id] = run.status, run.seq, run.epoch - base
    return shape


@pytest.mark.parametrize('fault', FAULTS)
async def test_a_batch_is_written_once_whatever_is_lost(wired: Wired, fault: Fault) -> None:
    workers = [await started(wired, run_id=f'batch-{number}') for number in range(12)]
    wired.proxy.fault(fault, b'batch-7')
    await asyncio.gather(*(worker.step() for worker in workers))
    assert wired.proxy.faults == [fault]
    await wired.proxy.deliver()
    for worker in workers:
        await worker.check(store=wired.direct)


async def test_a_late_commit_does_not_overwrite_the_next(wired: Wired) -> None:
    worker = await started(wired)
    wired.proxy.fault('late', b'run-1')
    await worker.step(state={'word': 'first'})
    await worker.step(state={'word': 'second'})
    await wired.proxy.deliver()
    await worker.step(status='done', event='end', output=1)
    await worker.check(store=wired.direct)


async def test_a_late_commit_of_a_zombie_is_refused(wired: Wired) -> None:
    zombie = await started(wired)
    heir = zombie.successor(wired.direct)
    wired.proxy.fault('late', b'run-1')
    commit = zombie.commit(state={'by': 'zombie'})
    wired.proxy.refuses = True
    late = asyncio.create_task(wired.store.append(commit))

    async def under_way() -> bool:
        return wired.proxy.faults == ['late']

    await eventually(under_way, what='the commit is under way')
    await heir.take(expected_epoch=zombie.claim.epoch)
    await wired.proxy.deliver()
    await heir.append(heir.commit(state={'by': 'heir'}))
    wired.proxy.refuses = False
    assert isinstance((await late).error, LeaseLostError)
    await heir.check(store=wired.direct)


async def test_a_server_that_comes_back_is_met_again(wired: Wired) -> None:
    worker = await started(wired)
    wired.proxy.refuses = True
    wired.proxy.cut_all()
    step = asyncio.create_task(worker.step())
    read = asyncio.create_task(wired.store.run('run-1'))
    await asyncio.sleep(0.2)
    assert not step.done()
    assert not read.done()
    wired.proxy.refuses = False
    await asyncio.gather(step, read)
    await worker.check(store=wired.direct)


async def test_a_server_that_stays_away_is_told(wired: Wired) -> None:
    worker = await started(wired)
    impatient = wired.make(wired.proxy.url, retry=0.2)
    await impatient.run('run-1')
    wired.proxy.refuses = True
    wired.proxy.cut_all()
    try:
        with pytest.raises(StoreUnavailableError):
            await impatient.run('run-1')
        ending = await impatient.append(worker.commit())
        assert isinstance(ending.error, StoreUnavailableError)
        await worker.check(store=wired.direct)
        wired.proxy.refuses = False
        await worker.step()
        await worker.check(store=impatient)
    finally:
        await impatient.close()


@pytest.mark.parametrize('seed', range(3))
async def test_a_run_on_a_wire_that_is_cut_again_and_again(wired: Wired, seed: int) -> None:
    workers = [Worker(wired.store, f'run-{number}') for number in range(3)]
    messages = count(seed)
    faults: tuple[Fault | None, ...] = (None, None, 'reply', None, None, None, 'request')

    def choose(data: bytes) -> Fault | None:
        # Not while it connects again: then it would never come to an end.
        return faults[next(messages) % len(faults)] if b'run-' in data else None

    wired.proxy.chooses = choose

    async def drive(worker: Worker) -> None:
        await worker.create()
        for number in range(1, 12):
            await worker.step(
                kind='full' if number % 5 == 0 else 'delta', state={'text': 'x' * number}
            )
        await worker.step(status='done', event='end', output=worker.run_id)

    await asyncio.gather(*(drive(worker) for worker in workers))
    wired.proxy.chooses = lambda data: None
    assert len(wired.proxy.faults) >= 3
    for worker in workers:
        await worker.check(store=wired.direct)
    assert {run.status for run in await wired.direct.runs()} == {'done'}
