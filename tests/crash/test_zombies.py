"""A worker that was frozen for longer than its lease writes nothing when it thaws."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import asdict
from typing import Any

import pytest

import graphkeep
from graphkeep import Store
from tests.crash.children import Child, Nursery
from tests.crash.raw import everything
from tests.crash.trip import FINAL, NODES, OUTPUT, Outside, Pack, Trip, trip

SHORT: dict[str, Any] = {'lease': 0.8, 'heartbeat': 0.2}
LONG: dict[str, Any] = {'lease': 60.0, 'heartbeat': 30.0}


async def freeze(zombie: Child, store: Store, run_id: str) -> None:
    """Stop a process until its lease has passed."""
    zombie.signal(signal.SIGSTOP)
    # Until then it lives, as far as anybody can tell.
    with pytest.raises(graphkeep.RunBusyError):
        await graphkeep.resume(trip, store.persistence(run_id), deps=Outside())
    await until_interrupted(store, run_id)


async def until_interrupted(store: Store, run_id: str) -> None:
    deadline = time.monotonic() + 10
    while not (await store.run(run_id)).interrupted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def finish(store: Store, run_id: str) -> None:
    result = await graphkeep.resume(trip, store.persistence(run_id), deps=Outside())
    assert (result.output, result.state) == (OUTPUT, FINAL)


async def check_whole(store: Store, run_id: str) -> None:
    assert [s.seq for s in await store.snapshots(run_id)] == list(range(len(NODES) + 1))
    run = await store.run(run_id)
    assert (run.status, run.owner) == ('done', None)


async def test_frozen_in_a_node(nursery: Nursery, url: str, store: Store, run_id: str) -> None:
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with nursery.child('travel', how='run', halts=['Climb'], **where) as zombie:
        assert await zombie.hears('halt') == 'Climb'
        await freeze(zombie, store, run_id)
        await finish(store, run_id)
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        zombie.tell()
        assert await zombie.error() == 'LeaseLostError'

        assert await everything(url, run_id) == before
    await check_whole(store, run_id)


async def test_frozen_in_the_node_that_its_heir_is_running(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    """The run is still at the snapshot that the zombie knows. Only the epoch has changed."""
    where: dict[str, Any] = {'url': url, 'run_id': run_id}
    async with contextlib.AsyncExitStack() as stack:
        zombie = await stack.enter_async_context(
            nursery.child('travel', how='run', halts=['Climb'], **where, **SHORT)
        )
        assert await zombie.hears('halt') == 'Climb'
        await freeze(zombie, store, run_id)
        heir = await stack.enter_async_context(
            nursery.child('travel', halts=['Climb'], **where, **LONG)
        )
        assert await heir.hears('halt') == 'Climb'
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        zombie.tell()
        assert await zombie.error() == 'LeaseLostError'
        assert await everything(url, run_id) == before

        heir.tell()
        assert await heir.result() == {'output': OUTPUT, 'state': asdict(FINAL)}
    await check_whole(store, run_id)


async def test_its_heartbeat_is_refused(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    """Thawed in a node that still runs, it tries to renew what others have."""
    where: dict[str, Any] = {'url': url, 'run_id': run_id}
    async with contextlib.AsyncExitStack() as stack:
        zombie = await stack.enter_async_context(
            nursery.child('travel', how='run', halts=['Climb'], **where, **SHORT)
        )
        assert await zombie.hears('halt') == 'Climb'
        assert await zombie.hears('renewed') == [True]
        await freeze(zombie, store, run_id)
        heir = await stack.enter_async_context(
            nursery.child('travel', halts=['Camp'], **where, **LONG)
        )
        assert await heir.hears('halt') == 'Camp'
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        granted = True
        while granted:
            # What was granted was said before it was frozen.
            [granted] = await zombie.hears('renewed')
            assert await everything(url, run_id) == before
        zombie.tell()
        assert await zombie.error() == 'LeaseLostError'
        assert await everything(url, run_id) == before

        heir.tell()
        assert await heir.result() == {'output': OUTPUT, 'state': asdict(FINAL)}
    await check_whole(store, run_id)


@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_frozen_in_a_commit(
    nursery: Nursery, url: str, store: Store, run_id: str, moment: str
) -> None:
    """Before it was sent it is refused. After it was sent it counts, and the next is refused."""
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with nursery.child('travel', how='run', park=('_append', 3, moment), **where) as zombie:
        assert await zombie.hears('park')
        await freeze(zombie, store, run_id)
        assert (await store.run(run_id)).seq == (2 if moment == 'before' else 3)
        await finish(store, run_id)
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        zombie.tell()
        assert await zombie.error() == 'LeaseLostError'

        assert await everything(url, run_id) == before
    await check_whole(store, run_id)


@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_frozen_in_a_claim(
    nursery: Nursery, url: str, store: Store, run_id: str, moment: str
) -> None:
    """Before it claims a run that somebody ends meanwhile: it gives the stored output."""
    await trip.initialize(Pack(), store.persistence(run_id), state=Trip())
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with nursery.child('travel', park=('_claim', 1, moment), **where) as zombie:
        assert await zombie.hears('park')
        zombie.signal(signal.SIGSTOP)
        if moment == 'after':
            await until_interrupted(store, run_id)
        await finish(store, run_id)
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        zombie.tell()
        if moment == 'before':
            assert await zombie.result() == {'output': OUTPUT, 'state': asdict(FINAL)}
        else:
            assert await zombie.error() == 'LeaseLostError'

        assert await everything(url, run_id) == before
    await check_whole(store, run_id)


async def test_frozen_in_a_release(nursery: Nursery, url: str, store: Store, run_id: str) -> None:
    """What it gives up is not its own any more."""
    where: dict[str, Any] = {'url': url, 'run_id': run_id}
    async with contextlib.AsyncExitStack() as stack:
        zombie = await stack.enter_async_context(
            nursery.child(
                'travel',
                how='run',
                halts=['Climb'],
                park=('_release', 1, 'before'),
                **where,
                **SHORT,
            )
        )
        assert await zombie.hears('halt') == 'Climb'
        zombie.signal(signal.SIGINT)
        assert await zombie.hears('park')
        await freeze(zombie, store, run_id)
        heir = await stack.enter_async_context(
            nursery.child('travel', halts=['Camp'], **where, **LONG)
        )
        assert await heir.hears('halt') == 'Camp'
        before = await everything(url, run_id)

        zombie.signal(signal.SIGCONT)
        zombie.tell()
        assert await zombie.error() == 'KeyboardInterrupt'
        assert await everything(url, run_id) == before

        heir.tell()
        assert await heir.result() == {'output': OUTPUT, 'state': asdict(FINAL)}
    await check_whole(store, run_id)
