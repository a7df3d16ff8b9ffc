"""Workers are killed at random moments, hundreds of times: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_core import from_json

import graphkeep
from tests.crash.children import Nursery
from tests.crash.conftest import without_cluster

pytest.importorskip('pydantic_graph.persistence')

from tests.crash.trip import FINAL, NODES, OUTPUT

KILLS = int(os.environ.get('GRAPHKEEP_TEST_KILLS', '80'))
"""How many workers are killed on each store."""
WIDTH = 3
"""Runs that a worker starts at a time. It goes on with as many as others left, besides."""


@pytest.mark.slow
@without_cluster
async def test_nothing_acknowledged_is_lost_and_nothing_committed_runs_again(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    graph, log = uuid4().hex, tmp_path / 'log'
    chance = random.Random(graph)
    kills = 0

    async def killer(number: int) -> None:
        nonlocal kills
        while kills < KILLS:
            kills += 1
            arguments: dict[str, Any] = {'url': url, 'graph': graph, 'log': str(log)}
            arguments |= {'width': WIDTH, 'seed': f'{number}.{kills}'}
            async with nursery.child('wander', **arguments) as child:
                if chance.random() < 0.9:
                    # Most are killed at work, some as they connect and set the schema up.
                    assert await child.hears('open')
                    await _grows(log, chance.randrange(2_000))
                await asyncio.sleep(chance.uniform(0.0, 0.02))
                child.signal(signal.SIGKILL)
                assert await child.status() == -signal.SIGKILL, child.raised

    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(killer(number))
    last = nursery.child('wander', url=url, graph=graph, log=str(log), width=0, seed='last')
    async with last as child:
        await child.hears('open')
        await child.result()

    acknowledged, again = _read(log)
    async with graphkeep.open_store(url) as store:
        for run_id, acknowledged_seq in acknowledged.items():
            run = await store.run(run_id)
            assert (run.status, run.seq, run.owner) == ('done', len(NODES), None)
            assert acknowledged_seq <= run.seq
            snapshots = await store.snapshots(run_id)
            assert [s.seq for s in snapshots] == list(range(len(NODES) + 1))
            document = await store.document(run_id)
            assert from_json(document.to_json())['state'] == {**asdict(FINAL), 'name': run_id}
            assert from_json(document.output or b'') == OUTPUT
    # The kills did hit something.
    assert len(acknowledged) > KILLS / 4
    assert again.total() > KILLS / 10


async def _grows(log: Path, size: int) -> None:
    """Wait until that many bytes of progress were written: in time that differs by machine."""
    before = log.stat().st_size
    while log.stat().st_size < before + size:
        await asyncio.sleep(0.002)


def _read(log: Path) -> tuple[dict[str, int], Counter[str]]:
    """The newest snapshot of each run that was acknowledged, and the starts that were repetitions.

    The lines stand in the order in which things happened, whichever process wrote them.
    """
    acknowledged: dict[str, int] = {}
    started: Counter[tuple[str, str]] = Counter()
    again: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        what, run_id, value = line.split()
        if what == 'ack':
            # One that was killed before it could write this line leaves a gap.
            assert int(value) > acknowledged.get(run_id, -1)
            acknowledged[run_id] = int(value)
        else:
            committed = acknowledged.get(run_id, 0)
            assert NODES.index(value) >= committed, 'it was committed, and ran again'
            again[run_id] += started[run_id, value] > 0
            started[run_id, value] += 1
    return acknowledged, again
