"""Workers are killed at random moments, hundreds of times: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.crash.children import Nursery
from tests.crash.conftest import without_cluster
from tests.crash.wandering import check, finish_all, grows, read

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
                    await grows(log, chance.randrange(2_000))
                await asyncio.sleep(chance.uniform(0.0, 0.02))
                child.signal(signal.SIGKILL)
                assert await child.status() == -signal.SIGKILL, child.raised

    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(killer(number))
    await finish_all(nursery, url=url, graph=graph, log=str(log))

    told = read(log)
    await check(told, url)
    # The kills did hit something.
    assert len(told.acknowledged) > KILLS / 4
    assert told.again > KILLS / 10
