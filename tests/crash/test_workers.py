"""Worker processes that share runs which ask people: killed at any moment, or told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import graphkeep
from graphkeep import Request, Store
from graphkeep.history import Replay
from graphkeep.testing import eventually
from tests.crash.children import Child, Nursery
from tests.crash.conftest import without_cluster
from tests.crash.logbook import starts
from tests.crash.worker_jobs import DEFAULT, STEPS, Desk, Outside, desk

RUNS = int(os.environ.get('GRAPHKEEP_TEST_RUNS', '300'))
"""How many runs three workers share."""
SECONDS = 20.0
"""For how long runs come, and a worker is killed every second."""
_TICK = 0.002
"""How much the clocks of log and database may differ: one of them counts milliseconds."""


async def begun(store: Store, graph: str, run_id: str, number: int = 0) -> str:
    """A run that waits for a worker."""
    await desk.start(
        state=Desk(number=number),
        inputs=number,
        persistence=store.persistence(run_id, graph=graph),
        infer_name=False,
    )
    return run_id


def state_of(document: Any) -> Desk:
    return desk._plan.state.decode(document.state)


# --- killed ---------------------------------------------------------------------------------------


@dataclass
class People:
    """Answer whatever is asked, each time with another answer."""

    store: Store
    graph: str
    accepted: dict[tuple[str, str], str] = field(default_factory=dict)
    refused: int = 0

    async def work(self) -> None:
        chance = random.Random(self.graph)
        while True:
            requests = await self.store.requests(graph=self.graph, limit=1_000)
            for request in requests:
                if request.name == 'sign' and chance.random() < 0.7:
                    continue  # some of these expire
                await self._answer(request)
            await asyncio.sleep(0.05)

    async def _answer(self, request: Request) -> None:
        where = request.run_id, request.request_id
        answer = f'{request.name} {uuid4().hex}'
        try:
            answered = await self.store.answer(*where, answer, by='ann')
        except graphkeep.RequestClosedError as e:
            # Too late; it was not answered before, or it would not have been listed as open.
            assert e.request.status == 'expired'
            self.refused += 1
        else:
            assert (answered.answer, answered.answered_by) == (answer, 'ann')
            assert where not in self.accepted, 'it was answered twice'
            self.accepted[where] = answer


@dataclass
class Told:
    """What the workers have written down: of each task when it started, of each run what the store
    has acknowledged.
    """

    started: dict[tuple[str, str], list[float]]
    again: int
    """Starts of steps that did not end, by a kill or a pause."""

    @classmethod
    def read(cls, log: Path) -> Told:
        started: dict[tuple[str, str], list[float]] = {}
        ends = 0
        for line in log.read_text().splitlines():
            what, run_id, *words = line.split()
            if what == 'start':
                started.setdefault((run_id, words[0]), []).append(float(words[2]))
            ends += what == 'end'
        return cls(started, sum(map(len, started.values())) - ends)


def acknowledged(log: Path) -> dict[str, int]:
    """The newest snapshot of each run that some worker was told of."""
    found: dict[str, int] = {}
    for line in log.read_text().splitlines():
        what, run_id, *words = line.split()
        if what == 'ack':
            assert int(words[0]) > found.get(run_id, -1)
            found[run_id] = int(words[0])
    return found


async def check_run(store: Store, run_id: str, told: Told) -> None:
    """It has ended; each of its tasks was committed once, and did not start after that."""
    run = await store.run(run_id)
    assert (run.status, run.owner, run.wake_at) == ('done', None, None)
    snapshots = await store.snapshots(run_id)
    assert [s.seq for s in snapshots] == list(range(run.seq + 1))
    replay, pending, committed = Replay(run_id), set[str](), set[str]()
    for snapshot in snapshots:
        replay.apply(snapshot)
        now = {*replay.document.tasks}
        assert not now & committed, 'a task came back'
        for task in pending - now:
            last = max(told.started[run_id, task])
            assert last <= snapshot.created_at.timestamp() + _TICK, (
                'it was committed, and ran again'
            )
        committed |= pending - now
        pending = now
    assert not pending
    assert len(committed) == len(STEPS)
    assert {task for run, task in told.started if run == run_id} == committed
    assert state_of(replay.document).ends == dict.fromkeys(STEPS, 1)


async def check_answers(store: Store, run_id: str, people: People) -> None:
    """Every answer that was accepted was used once, and nothing else was."""
    given = {where: answer for where, answer in people.accepted.items() if where[0] == run_id}
    requests = await store.requests(run_id=run_id, status=())
    number = int(run_id.rpartition('-')[2])
    assert len(requests) == 1 + (number % 3 == 0) + (number % 2)
    assert all(request.closed_at is not None for request in requests)
    answered = {r.request_id: r.answer for r in requests if r.status == 'answered'}
    assert answered == {request_id: answer for (_, request_id), answer in given.items()}
    expired = [r for r in requests if r.status == 'expired']
    assert {r.name for r in expired} <= {'sign'}
    assert len(answered) + len(expired) == len(requests)
    used = Counter(state_of(await store.document(run_id)).used)
    assert used == Counter([*given.values(), *(DEFAULT for _ in expired)])
    assert (await store.run(run_id)).answered == len(given)


@pytest.mark.slow
@without_cluster
async def test_workers_are_killed_every_second(
    nursery: Nursery, store: Store, url: str, tmp_path: Path
) -> None:
    """Every run ends, no step that was committed runs again, every answer is used once."""
    graph, log = f'desk {uuid4().hex}', tmp_path / 'log'
    prefix = uuid4().hex
    people, chance = People(store, graph), random.Random(graph)
    where: dict[str, Any] = {'url': url, 'graph': graph, 'log': str(log), 'lease': 2.0}
    children: list[tuple[Child, contextlib.AsyncExitStack]] = []
    kills, began = 0, time.monotonic()

    async def hire() -> None:
        stack = contextlib.AsyncExitStack()
        child = await stack.enter_async_context(
            nursery.child('work', hurry=0.06, poll=0.2, concurrency=6, **where)
        )
        children.append((child, stack))

    async def killer() -> None:
        nonlocal kills
        while True:
            await asyncio.sleep(1.0)
            child, stack = children.pop(chance.randrange(len(children)))
            child.signal(signal.SIGKILL)
            assert await child.status() == -signal.SIGKILL, child.raised
            await stack.aclose()
            kills += 1
            await hire()

    async def all_done() -> bool:
        await asyncio.sleep(0.1)
        return len(await store.runs(graph=graph, status='done', limit=RUNS + 1)) == RUNS

    for _ in range(3):
        await hire()
    helpers = [asyncio.create_task(people.work()), asyncio.create_task(killer())]
    try:
        for number in range(RUNS):
            await begun(store, graph, f'{prefix}-{number}', number)
            left = (number + 1) / RUNS * SECONDS - (time.monotonic() - began)
            await asyncio.sleep(max(left, 0))
        done = asyncio.create_task(eventually(all_done, what='every run has ended', timeout=40))
        await asyncio.wait((done, *helpers), return_when=asyncio.FIRST_COMPLETED)
        for task in (*helpers, done):
            if task.done():
                task.result()
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.wait(helpers)
        for _, stack in children:
            await stack.aclose()
    seconds = time.monotonic() - began

    told, acks = Told.read(log), acknowledged(log)
    for number in range(RUNS):
        run_id = f'{prefix}-{number}'
        await check_run(store, run_id, told)
        await check_answers(store, run_id, people)
        assert acks[run_id] <= (await store.run(run_id)).seq
    assert await store.requests(graph=graph) == []
    print(
        f'{kills} kills, {RUNS} runs in {seconds:.1f} s, {sum(map(len, told.started.values()))} '
        f'starts, {told.again} of them in vain (kills and pauses), {len(people.accepted)} answers, '
        f'{people.refused} came too late'
    )
    # The kills did hit something.
    assert kills >= SECONDS / 2
    assert len(people.accepted) >= RUNS
