"""A process may die before, during and after every call of the store, and again as it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

import graphkeep
from graphkeep import RunNotFoundError, Store
from tests.crash.children import Nursery
from tests.crash.conftest import without_cluster
from tests.crash.hooked import CRASHED, MOMENTS
from tests.crash.logbook import starts
from tests.crash.trip import FINAL, NODES, OUTPUT

Crash = tuple[int, str]

AT_ONCE = 3
"""Children that live at the same time."""


class Rig:
    """Crashes runs of one store, and resumes them."""

    def __init__(self, nursery: Nursery, store: Store, url: str, folder: Path) -> None:
        self._nursery = nursery
        self._store = store
        self._url = url
        self._folder = folder
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._prefix = uuid4().hex
        self._undisturbed = b''
        self.crashes = 0
        """Processes that died."""

    async def travel_undisturbed(self) -> None:
        """One run to compare the others with."""
        where = {'url': self._url, 'run_id': f'{self._prefix}-undisturbed'}
        result = await self._nursery.result('travel', how='run', **where)
        assert result == {'output': OUTPUT, 'state': asdict(FINAL)}
        self._undisturbed = (await self._store.document(where['run_id'])).to_json()

    async def travel(self, name: str, *crashes: Crash, then: str = 'start') -> int:
        """Run a trip that dies at each of these points in turn, and let another process end it.

        Args:
            name: A name for the run.
            *crashes: Which call of the store, and which moment of it.
            then: How processes go on with the run: `start` (or resume it), `resume`, `recover`.

        Returns:
            How many of the points were there: after fewer crashes than that the run had ended.
        """
        run_id = f'{self._prefix}-{name}'
        async with self._slots:
            died = 0
            for crash in crashes:
                if not await self._leg(run_id, 'run' if died == 0 else then, crash):
                    break
                died += 1
            self.crashes += died
            assert not await self._leg(run_id, then, None)
        await self._check(run_id, died)
        return died

    async def _leg(self, run_id: str, how: str, crash: Crash | None) -> bool:
        """One process: whether it died."""
        log = self._folder / f'{run_id}.log'
        known, seq = len(starts(log)), await self._seq(run_id)
        status = await self._nursery.status(
            'travel',
            url=self._url,
            run_id=run_id,
            log=str(log),
            how=how,
            crash=crash,
        )
        assert status in (0, CRASHED)
        began, now = starts(log)[known:], await self._seq(run_id)
        # It goes on from the last commit, node by node, and all that it ran but the last one is
        # committed. A write of the dead process may have arrived while we looked.
        first = max(seq, 0)
        assert began in [list(NODES[n : n + len(began)]) for n in (first, first + 1)]
        assert first + len(began) - 1 <= max(now, 0)
        return status == CRASHED

    async def _seq(self, run_id: str) -> int:
        try:
            return (await self._store.run(run_id)).seq
        except RunNotFoundError:
            return -1

    async def _check(self, run_id: str, died: int) -> None:
        run = await self._store.run(run_id)
        assert (run.status, run.seq, run.owner) == ('done', len(NODES), None)
        snapshots = await self._store.snapshots(run_id)
        assert [s.seq for s in snapshots] == list(range(len(NODES) + 1))
        assert [s.node for s in snapshots] == [None, *NODES]
        assert (await self._store.document(run_id)).to_json() == self._undisturbed
        ran = starts(self._folder / f'{run_id}.log')
        assert sorted(set(ran), key=NODES.index) == list(NODES)
        assert len(ran) <= len(NODES) + died


@pytest.fixture
async def rig(nursery: Nursery, url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with graphkeep.open_store(url) as store:
        rig = Rig(nursery, store, url, tmp_path)
        await rig.travel_undisturbed()
        yield rig


async def _every_point(rig: Rig, name: str, first: Sequence[Crash], moment: str, then: str) -> int:
    """Die at call 1, 2, …, after the crashes of `first`; gives how many calls there are."""
    for number in count(1):
        crashes = (*first, (number, moment))
        if await rig.travel(f'{name}-{moment}-{number}', *crashes, then=then) < len(crashes):
            return number - 1
    raise AssertionError


async def test_dies_at_any_call(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(_every_point(rig, 'x', (), m, 'start')) for m in MOMENTS]
    # Open, create, a commit for each node, close.
    assert [t.result() for t in tries] == [len(NODES) + 3] * len(MOMENTS)
    assert rig.crashes == sum(t.result() for t in tries)
    print(f'{rig.crashes} crash points')


@pytest.mark.slow
@without_cluster
@pytest.mark.parametrize('then', ['resume', 'recover'])
async def test_dies_at_any_call_and_again_at_any_call_of_the_next(rig: Rig, then: str) -> None:
    # After each call that changes what is stored: the run is created, the k-th node is committed.
    firsts = range(2, len(NODES) + 3)
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(_every_point(rig, f'x{first}', ((first, 'after'),), moment, then))
            for first in firsts
            # For the store, before a call is after the last one.
            for moment in (('before', 'after') if then == 'resume' else ('before',))
        ]
    calls = [t.result() for t in tries]
    # A resume that has less to do makes fewer calls, the last only reads.
    assert calls == sorted(calls, reverse=True)
    print(f'{sum(calls)} crash points')
