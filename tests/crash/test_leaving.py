"""A run that was left half-way is free again soon; one whose node runs is not, for however long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict

import pytest

import graphkeep
from graphkeep import Store
from tests.crash.children import Nursery
from tests.crash.test_zombies import SHORT, check_whole, finish
from tests.crash.trip import FINAL, NODES, OUTPUT, Outside, Pack, Trip, trip

END = {'output': OUTPUT, 'state': asdict(FINAL)}


async def free_soon(store: Store, run_id: str) -> None:
    """Within two seconds: the claim is given up one second after the last node."""
    deadline = time.monotonic() + 2.0
    while (run := await store.run(run_id)).status != 'ready':
        assert time.monotonic() < deadline
        assert run.status == 'running'
        await asyncio.sleep(0.02)


async def test_left_by_a_process_that_lives_on(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    async with nursery.child('leave', url=url, run_id=run_id) as leaver:
        assert await leaver.hears('left')
        await free_soon(store, run_id)
        await finish(store, run_id)
        leaver.tell()
        await leaver.result()
    await check_whole(store, run_id)


@pytest.mark.parametrize('same_store', [True, False])
async def test_left_and_gone_on_with_in_the_same_process(
    url: str, store: Store, run_id: str, same_store: bool
) -> None:
    async with graphkeep.open_store(url) as other:
        leaver = store if same_store else other
        async with trip.iter(
            Pack(), state=Trip(), deps=Outside(), persistence=leaver.persistence(run_id)
        ) as run:
            await run.next()
            await run.next()
        assert (await store.run(run_id)).status == 'running'
        await finish(store, run_id)
    await check_whole(store, run_id)


async def test_left_with_a_generator_that_is_closed(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    """As a server does whose client has gone in the middle of a stream."""

    async def nodes() -> AsyncGenerator[str]:
        async with trip.iter(
            Pack(), state=Trip(), deps=Outside(), persistence=store.persistence(run_id)
        ) as run:
            async for node in run:
                yield type(node).__name__

    stream = nodes()
    seen = [await anext(stream) for _ in range(3)]
    assert seen == list(NODES[:3])
    await stream.aclose()

    await free_soon(store, run_id)
    assert await nursery.result('travel', url=url, run_id=run_id) == END
    await check_whole(store, run_id)


async def test_a_node_that_runs_for_longer_than_its_lease(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with (
        nursery.child('travel', how='run', halts=['Climb'], **where) as worker,
        nursery.child('resume_each', url=url) as other,
    ):
        assert await worker.hears('halt') == 'Climb'
        end = time.monotonic() + 3 * SHORT['lease']
        while time.monotonic() < end:
            other.tell(f'{run_id} /dev/null')
            assert await other.hears('error') == 'RunBusyError'
            assert not (await store.run(run_id)).interrupted
        worker.tell()
        assert await worker.result() == END
    await check_whole(store, run_id)


async def test_a_node_that_blocks_its_loop_for_longer_than_its_lease(
    nursery: Nursery, url: str, store: Store, run_id: str
) -> None:
    """A claim holds while its owner's loop turns. What it loses to others it does not write."""
    where = {'url': url, 'run_id': run_id, **SHORT}
    async with nursery.child('travel_sync', halt='Climb', seconds=2.0, **where) as blocked:
        assert await blocked.hears('halt') == 'Climb'
        deadline = time.monotonic() + 10
        while not (await store.run(run_id)).interrupted:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await finish(store, run_id)
        assert await blocked.error() == 'LeaseLostError'
    await check_whole(store, run_id)
