"""Processes that die or freeze while several steps of a run are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import graphkeep
from graphkeep import Store
from tests.builder.fan import (
    Worker,
    check_undisturbed,
    ends,
    kept,
    output,
    stored,
    until_committed,
)
from tests.crash.children import Child, Nursery
from tests.crash.conftest import without_cluster
from tests.crash.logbook import starts
from tests.crash.raw import everything

SHORT: dict[str, Any] = {'lease': 0.8, 'heartbeat': 0.2}
LONG: dict[str, Any] = {'lease': 60.0, 'heartbeat': 30.0}
HELD = ['work-2', 'work-3']


class Rig:
    """Freezes a process with two steps in flight, until its lease has passed."""

    def __init__(self, nursery: Nursery, store: Store, url: str, run_id: str, log: Path) -> None:
        self._nursery = nursery
        self._store = store
        self._where: dict[str, Any] = {'url': url, 'run_id': run_id, 'log': str(log)}
        self._url = url
        self.run_id = run_id
        self.log = log

    def worker(self, **arguments: Any) -> contextlib.AbstractAsyncContextManager[Child]:
        return self._nursery.child('fan_out', held=HELD, **self._where, **arguments)

    async def in_flight(self, worker: Child) -> None:
        """Wait until both steps that are held wait, and nothing else is left to do."""
        assert {await worker.hears('halt'), await worker.hears('halt')} == {*HELD}
        await until_committed(self._store, self.run_id, 'work-0', 'work-1')

    async def freeze(self, zombie: Child) -> None:
        zombie.signal(signal.SIGSTOP)
        # Until then it lives, as far as anybody can tell.
        with pytest.raises(graphkeep.RunBusyError):
            await kept.resume(self._store.persistence(self.run_id), deps=Worker())
        deadline = time.monotonic() + 10
        while not (await self._store.run(self.run_id)).interrupted:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    async def finish(self) -> Counter[str]:
        """Go on with the run here, to its end; gives what was run."""
        heir = Worker()
        result = await kept.resume(self._store.persistence(self.run_id), deps=heir)
        assert result == output()
        await check_undisturbed(self._store, self.run_id)
        return heir.ran

    async def check(self) -> None:
        await check_undisturbed(self._store, self.run_id)

    async def everything(self) -> list[str]:
        return await everything(self._url, self.run_id)

    async def refused(self, zombie: Child) -> None:
        """It thaws, and its next commit is refused: it ends all its steps, and nothing changes."""
        before = await self.everything()
        committed = await stored(self._store, self.run_id)
        zombie.signal(signal.SIGCONT)
        zombie.tell('work-2')
        lost = await zombie.hears('lost')
        assert await zombie.error() == 'LeaseLostError'
        assert f'{self.run_id!r}' in zombie.raised
        assert 'another process took the run over' in zombie.raised
        assert lost['stopped'] == ['work-3']
        # What it could not commit is not in the caller's state either.
        assert {*lost['state']['ends']} == {'count', 'work-0', 'work-1'}
        assert await self.everything() == before
        assert committed == await stored(self._store, self.run_id)


@pytest.fixture
def rig(nursery: Nursery, store: Store, url: str, run_id: str, tmp_path: Path) -> Rig:
    return Rig(nursery, store, url, run_id, tmp_path / 'log')


@pytest.mark.parametrize('asks', [False, True])
async def test_frozen_with_steps_in_flight(rig: Rig, asks: bool) -> None:
    """Also where the steps ask for something to be kept, and do not mind that it is not."""
    async with rig.worker(asks=asks, **SHORT) as zombie:
        await rig.in_flight(zombie)
        await rig.freeze(zombie)
        assert await rig.finish() == {'work-2': 1, 'work-3': 1, 'last': 1}
        await rig.refused(zombie)
    assert Counter(starts(rig.log)) == Counter(ends()) - Counter(['last'])


async def test_frozen_beside_an_heir_that_runs_the_same_steps(rig: Rig) -> None:
    """The run is still at the snapshot that the zombie knows. Only the epoch has changed."""
    async with rig.worker(**SHORT) as zombie:
        await rig.in_flight(zombie)
        await rig.freeze(zombie)
        async with rig.worker(**LONG) as heir:
            await rig.in_flight(heir)
            await rig.refused(zombie)
            for name in HELD:
                heir.tell(name)
            assert (await heir.result())['output'] == output()
    await rig.check()
    assert Counter(starts(rig.log)) == Counter(ends()) + Counter(HELD)


async def test_its_heartbeat_is_refused(rig: Rig) -> None:
    """Thawed with steps that go on, it hears that the run is another's; nothing else ends it."""
    async with rig.worker(**SHORT) as zombie:
        await rig.in_flight(zombie)
        await rig.freeze(zombie)
        assert await rig.finish() == {'work-2': 1, 'work-3': 1, 'last': 1}
        before = await rig.everything()
        zombie.signal(signal.SIGCONT)
        granted = True
        while granted:
            # What was granted was said before it was frozen.
            [granted] = await zombie.hears('renewed')
        assert await rig.everything() == before
        await rig.refused(zombie)


@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_frozen_in_a_commit(rig: Rig, moment: str) -> None:
    """Before it was sent it is refused. After it was sent it counts, and the next is refused."""
    # The first commit is of `count`, the second of what is not held.
    async with rig.worker(park=('_append', 2, moment), **SHORT) as zombie:
        assert {await zombie.hears('halt'), await zombie.hears('halt')} == {*HELD}
        assert await zombie.hears('park')
        await rig.freeze(zombie)
        ran = {'work-2': 1, 'work-3': 1, 'last': 1}
        if moment == 'before':
            ran |= {'work-0': 1, 'work-1': 1}
        assert await rig.finish() == ran
        before = await rig.everything()
        zombie.signal(signal.SIGCONT)
        zombie.tell('park')
        if moment == 'after':
            zombie.tell('work-2')
        lost = await zombie.hears('lost')
        assert await zombie.error() == 'LeaseLostError'
        assert lost['stopped'] == (HELD if moment == 'before' else ['work-3'])
        assert await rig.everything() == before
    await rig.check()


async def committed(store: Store, run_id: str) -> Counter[str]:
    """How often each step has ended."""
    with contextlib.suppress(graphkeep.RunNotFoundError):
        return Counter((await stored(store, run_id)).ends)
    return Counter()


@without_cluster
async def test_killed_again_and_again(
    nursery: Nursery, store: Store, url: str, run_id: str, tmp_path: Path
) -> None:
    """At any moment, with many steps in flight: those alone run again, and every effect is there
    once.
    """
    items, log = 30, tmp_path / 'log'
    chance = random.Random(7)
    arguments: dict[str, Any] = {'url': url, 'run_id': run_id, 'items': items, 'log': str(log)}
    ended, known, kills = Counter[str](), 0, 0
    while ended.keys() != ends(items).keys():
        async with nursery.child('fan_out', seed=kills, **arguments) as worker:
            # When some more are committed; the others are in flight.
            wanted = min(len(ended) + chance.choice((0, 1, 2, 5)), len(ends(items)))
            while len(starts(log)) == known or len(await committed(store, run_id)) < wanted:
                await asyncio.sleep(0.001)
            await worker.kill()
        began, known = starts(log)[known:], len(starts(log))
        assert max(Counter(began).values()) == 1
        assert not {*began} & {*ended}, 'what was committed ran again'
        ended = await committed(store, run_id)
        kills += 1
    assert (await store.run(run_id)).status == 'done'
    await check_undisturbed(store, run_id, items)
    assert kills > 2
