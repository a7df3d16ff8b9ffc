"""What a dead process of this machine left goes on at once; what a live one has is left alone."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import graphkeep
from graphkeep import Store, owner
from graphkeep.runs import Draft, NewRun
from graphkeep.store import new_nonce
from tests.crash.children import Nursery
from tests.crash.raw import everything
from tests.crash.test_zombies import LONG, SHORT, check_whole
from tests.crash.trip import FINAL, OUTPUT, Outside, Pack, Trip, trip

END = {'output': OUTPUT, 'state': asdict(FINAL)}


@pytest.mark.parametrize('how', ['resume', 'recover'])
async def test_killed_and_gone_on_with_at_once_in_a_new_interpreter(
    nursery: Nursery, url: str, store: Store, run_id: str, how: str
) -> None:
    where = {'url': url, 'run_id': run_id, **LONG}
    async with nursery.child('travel', how='run', halts=['Climb'], **where) as killed:
        assert await killed.hears('halt') == 'Climb'
        killed.signal(signal.SIGKILL)
        assert await killed.status() == -signal.SIGKILL
    left = await store.run(run_id)
    assert (left.status, left.interrupted, left.seq) == ('running', False, 3)
    assert [run.run_id for run in await store.interrupted(graph=run_id)] == [run_id]

    began = time.monotonic()
    async with nursery.child('travel', fresh=True, how=how, **where) as heir:
        assert await heir.result() == END
    assert time.monotonic() - began < LONG['lease'] / 2
    await check_whole(store, run_id)


async def test_what_a_live_process_has_is_left_alone(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    where = {'url': url, 'run_id': run_id, **LONG}
    async with nursery.child('travel', how='run', halts=['Climb'], **where) as owned:
        assert await owned.hears('halt') == 'Climb'
        before = await everything(url, run_id)
        assert await store.interrupted(graph=run_id) == []
        with pytest.raises(graphkeep.RunBusyError):
            await graphkeep.resume(trip, store.persistence(run_id), deps=Outside())
        recovered = await graphkeep.recover(
            store, {run_id: trip}, deps=Outside(), ready=True, wait=False
        )
        assert recovered == []
        assert await everything(url, run_id) == before
        owned.tell()
        assert await owned.result() == END


async def test_recover_watches_what_may_be_dead(nursery: Nursery, url: str, run_id: str) -> None:
    """A frozen process is not known to be dead: its run goes on when its lease has passed."""
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with nursery.child('travel', how='run', halts=['Climb'], **where) as frozen:
        assert await frozen.hears('halt') == 'Climb'
        frozen.signal(signal.SIGSTOP)
        async with graphkeep.open_store(url, **SHORT) as store:
            recovered = await graphkeep.recover(store, {run_id: trip}, deps=Outside())
            assert [each.result.output for each in recovered] == [OUTPUT]
            await check_whole(store, run_id)
        frozen.signal(signal.SIGCONT)
        frozen.tell()
        assert await frozen.error() == 'LeaseLostError'


async def test_recover_takes_the_dead_and_leaves_the_living(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                nursery.child(
                    'travel',
                    how='run',
                    halts=['Sail'],
                    url=url,
                    run_id=f'{run_id}-{number}',
                    graph=run_id,
                )
            )
            for number in range(4)
        ]
        for worker in workers:
            await worker.hears('halt')
        for worker in workers[:2]:
            worker.signal(signal.SIGKILL)
            await worker.status()
        recovered = await graphkeep.recover(store, {run_id: trip}, deps=Outside(), wait=False)
        assert sorted(each.run_id for each in recovered) == [f'{run_id}-0', f'{run_id}-1']
        assert [each.result.output for each in recovered] == [OUTPUT, OUTPUT]
        for worker in workers[2:]:
            worker.tell()
            assert await worker.result() == END


async def _owned_by(store: Store, run_id: str, owned_by: str) -> None:
    """Make a run as a worker of that name would have left it after two nodes."""
    await trip.initialize(Pack(), store.persistence(f'{run_id}-model'), state=Trip())
    async with trip.iter_from_persistence(
        store.persistence(f'{run_id}-model'), deps=Outside()
    ) as run:
        await run.next()
        await run.next()
    new = NewRun(run_id=run_id, owner=owned_by, ttl=60.0, nonce=new_nonce())
    document = (await store.document(f'{run_id}-model')).to_json()
    await store.create(new, Draft(seq=0, kind='full', event='start', data=document))


def _named(pid: int, started: str | None = None) -> str:
    """How the process with this pid would name itself, or one that had its pid before."""
    host, _, _, boot, namespace, token = owner.current().split('/')
    start = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]
    return '/'.join((host, str(pid), started or start, boot, namespace, token))


async def test_a_recycled_pid_is_no_proof_of_life(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    """The owner's pid is in use again, by a process that started later."""
    await _owned_by(store, run_id, _named(nursery.pid, started='1'))
    await _owned_by(store, f'{run_id}-alive', _named(nursery.pid))

    result = await graphkeep.resume(trip, store.persistence(run_id), deps=Outside())
    assert (result.output, result.state) == (OUTPUT, FINAL)
    with pytest.raises(graphkeep.RunBusyError):
        await graphkeep.resume(trip, store.persistence(f'{run_id}-alive'), deps=Outside())
