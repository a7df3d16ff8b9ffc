"""Several processes want one run at the same moment: one gets it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from graphkeep import Store
from tests.crash.children import Child, Nursery
from tests.crash.logbook import starts
from tests.crash.test_zombies import SHORT, until_interrupted
from tests.crash.trip import FINAL, NODES, OUTPUT, Pack, Trip, trip

CLAIMERS = 6
END = {'output': OUTPUT, 'state': asdict(FINAL)}


async def race(
    stack: contextlib.AsyncExitStack, nursery: Nursery, park: Sequence[object], **arguments: Any
) -> list[Child]:
    """Processes that have all seen the run as it is, and now act on it."""
    racers = [
        await stack.enter_async_context(nursery.child('travel', park=park, **arguments))
        for _ in range(CLAIMERS)
    ]
    for racer in racers:
        await racer.hears('park')
    for racer in racers:
        racer.tell()
    return racers


async def check_one_winner(racers: list[Child], *, loses_to: tuple[object, ...]) -> None:
    """One halts in the middle of a node; all others have lost by then; it gets to the end."""
    winner: Child | None = None
    for racer in racers:
        message = await racer.message()
        if 'halt' in message:
            assert winner is None, 'two run at once'
            winner = racer
        else:
            assert message.get('error', message.get('result')) in loses_to
    assert winner is not None
    winner.tell()
    assert await winner.result() == END


async def check_each_node_ran_once(store: Store, run_id: str, log: Path, done: int) -> None:
    assert starts(log) == list(NODES[done:])
    assert [s.seq for s in await store.snapshots(run_id)] == list(range(len(NODES) + 1))


async def test_a_run_that_does_not_exist(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path
) -> None:
    log = tmp_path / 'log'
    where = {'url': url, 'run_id': run_id, 'log': str(log), 'halts': ['Drive']}
    async with contextlib.AsyncExitStack() as stack:
        racers = await race(stack, nursery, ('_create', 1, 'before'), how='start', **where)
        await check_one_winner(racers, loses_to=('RunBusyError',))
    await check_each_node_ran_once(store, run_id, log, 0)


async def test_a_run_that_nobody_has(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path
) -> None:
    log = tmp_path / 'log'
    await trip.initialize(Pack(), store.persistence(run_id), state=Trip())
    where = {'url': url, 'run_id': run_id, 'log': str(log), 'halts': ['Drive']}
    async with contextlib.AsyncExitStack() as stack:
        racers = await race(stack, nursery, ('_claim', 1, 'before'), **where)
        await check_one_winner(racers, loses_to=('RunBusyError',))
    await check_each_node_ran_once(store, run_id, log, 0)


async def test_a_winner_that_is_fast(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path
) -> None:
    """Who comes late gets the stored result."""
    log = tmp_path / 'log'
    await trip.initialize(Pack(), store.persistence(run_id), state=Trip())
    where = {'url': url, 'run_id': run_id, 'log': str(log)}
    async with contextlib.AsyncExitStack() as stack:
        racers = await race(stack, nursery, ('_claim', 1, 'before'), **where)
        outcomes = [await racer.outcome() for racer in racers]
    assert END in outcomes
    assert all(outcome in (END, 'RunBusyError') for outcome in outcomes)
    await check_each_node_ran_once(store, run_id, log, 0)


@pytest.mark.parametrize('how', ['resume', 'recover'])
async def test_a_run_of_a_dead_owner(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path, how: str
) -> None:
    """All name the epoch they have seen dead; one raises it."""
    log = tmp_path / 'log'
    await nursery.status('travel', how='run', url=url, run_id=run_id, crash=(4, 'after'))
    where = {'url': url, 'run_id': run_id, 'log': str(log), 'halts': ['Climb'], 'how': how}
    async with contextlib.AsyncExitStack() as stack:
        racers = await race(stack, nursery, ('_claim', 2, 'before'), **where)
        # What is continued elsewhere is nothing that recover complains of.
        loses_to = ('RunBusyError',) if how == 'resume' else (None,)
        await check_one_winner(racers, loses_to=loses_to)
    await check_each_node_ran_once(store, run_id, log, 2)


async def test_a_run_whose_lease_has_passed(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path
) -> None:
    log = tmp_path / 'log'
    where = {'url': url, 'run_id': run_id}
    async with contextlib.AsyncExitStack() as stack:
        frozen = await stack.enter_async_context(
            nursery.child('travel', how='run', halts=['Sail'], **where, **SHORT)
        )
        await frozen.hears('halt')
        frozen.signal(signal.SIGSTOP)
        await until_interrupted(store, run_id)
        racers = await race(
            stack, nursery, ('_claim', 1, 'before'), log=str(log), halts=['Climb'], **where
        )
        await check_one_winner(racers, loses_to=('RunBusyError',))
        frozen.signal(signal.SIGCONT)
        frozen.tell()
        assert await frozen.error() == 'LeaseLostError'
    await check_each_node_ran_once(store, run_id, log, 2)
