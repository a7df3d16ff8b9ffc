"""Worker processes that share runs which ask people: killed at any moment, or told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
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
from tests.crash.worker_jobs import DEFAULT, STEPS, Desk, desk
from tests.servers import PostgresServer, RedisServer

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
        except graphkeep.RequestClosedError:
            self.refused += 1
            return
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


async def check_answers(store: Store, run_id: str, people: People) -> int:
    """Every answer that was accepted was used once, and nothing else was; gives how many requests
    there were.
    """
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
    return len(requests)


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
            nursery.child('work', hurry=0.12, poll=0.2, concurrency=6, **where)
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

    told, acks, asked = Told.read(log), acknowledged(log), 0
    for number in range(RUNS):
        run_id = f'{prefix}-{number}'
        await check_run(store, run_id, told)
        asked += await check_answers(store, run_id, people)
        assert acks[run_id] <= (await store.run(run_id)).seq
    assert await store.requests(graph=graph) == []
    # Whoever asks starts once more; all others that did not end were killed.
    repeats = told.again - asked
    print(
        f'{kills} kills, {RUNS} runs in {seconds:.1f} s, {sum(map(len, told.started.values()))} '
        f'starts of steps, {repeats} of them killed and repeated, {asked} requests, '
        f'{len(people.accepted)} answers, {people.refused} came too late'
    )
    # The kills did hit something.
    assert kills >= SECONDS / 2
    assert repeats > kills / 2
    assert len(people.accepted) >= RUNS


# --- told to stop ---------------------------------------------------------------------------------

LONG: dict[str, Any] = {'lease': 60.0, 'heartbeat': 30.0}
either_signal = pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])


@dataclass
class Office:
    """Workers of one graph with long leases: whoever waits for one of them waits in vain."""

    nursery: Nursery
    store: Store
    url: str
    graph: str
    log: Path

    def worker(self, **arguments: Any) -> contextlib.AbstractAsyncContextManager[Child]:
        where = {'url': self.url, 'graph': self.graph, 'log': str(self.log)}
        return self.nursery.child('work', **{'poll': 0.1, **LONG, **where, **arguments})

    @contextlib.asynccontextmanager
    async def halted(self, run_id: str, *steps: str, **arguments: Any) -> AsyncIterator[Child]:
        """A worker that is in the middle of these steps of a run."""
        await begun(self.store, self.graph, run_id)
        async with self.worker(halts=steps, **arguments) as child:
            await child.hears('open')
            assert {await child.hears('halt') for _ in steps} == {*steps}
            yield child

    async def ends(self, run_id: str) -> set[str]:
        return {*state_of(await self.store.document(run_id)).ends}

    async def asks(self, run_id: str) -> None:
        """Wait until somebody has gone on with a run as far as it goes."""

        async def paused() -> bool:
            return (await self.store.run(run_id)).status == 'paused'

        await eventually(paused, what='another worker has gone on')

    async def check_free(self, run_id: str, *ends: str) -> None:
        """The run is ready, and these steps are committed."""
        run = await self.store.run(run_id)
        assert (run.status, run.owner, run.lease_until) == ('ready', None, None)
        assert await self.ends(run_id) == {*ends}


@pytest.fixture
def office(nursery: Nursery, store: Store, url: str, run_id: str, tmp_path: Path) -> Office:
    return Office(nursery, store, url, f'desk {run_id}', tmp_path / 'log')


@either_signal
async def test_a_signal_lets_the_running_step_end(
    office: Office, run_id: str, number: signal.Signals
) -> None:
    async with office.halted(run_id, 'begin') as child:
        child.signal(number)
        assert await child.hears('stopping')
        child.tell('begin')
        await child.result()
    await office.check_free(run_id, 'begin')
    assert starts(office.log) == ['0']


async def test_another_worker_goes_on_at_once(office: Office, run_id: str) -> None:
    async with office.halted(run_id, 'begin') as child, office.worker() as other:
        await other.hears('open')
        child.signal(signal.SIGTERM)
        assert await child.hears('stopping')
        child.tell('begin')
        await child.result()
        before = time.monotonic()
        await office.asks(run_id)
        assert time.monotonic() - before < 2.0
        other.signal(signal.SIGTERM)
        assert await other.hears('stopping')
        await other.result()
    assert await office.ends(run_id) == {'begin', 'weigh', 'pack'}
    assert starts(office.log).count('0') == 1


async def test_a_signal_lets_all_running_steps_end(office: Office, run_id: str) -> None:
    """Also those beside the one that ends first."""
    async with office.halted(run_id, 'weigh', 'ask') as child:
        child.signal(signal.SIGTERM)
        assert await child.hears('stopping')
        child.tell('ask')

        async def asked() -> bool:
            return bool(await office.store.requests(run_id=run_id))

        await eventually(asked, what='the request is committed')
        child.tell('weigh')
        await child.result()
    await office.check_free(run_id, 'begin', 'weigh')


@either_signal
async def test_a_second_signal_cancels_at_once(
    office: Office, run_id: str, number: signal.Signals
) -> None:
    async with office.halted(run_id, 'begin', grace=60.0) as child:
        child.signal(number)
        assert await child.hears('stopping')
        child.signal(signal.SIGTERM)
        assert await child.hears('stopping')
        assert await child.hears('stopped') == 'begin'
        assert await child.result() < 5.0
    await office.check_free(run_id)


async def test_steps_that_take_longer_are_cancelled(office: Office, run_id: str) -> None:
    async with office.halted(run_id, 'begin', grace=0.3) as child:
        child.signal(signal.SIGTERM)
        assert await child.hears('stopping')
        assert await child.hears('stopped') == 'begin'
        assert 0.3 <= await child.result() < 3.0
    await office.check_free(run_id)


async def test_a_worker_that_has_nothing_to_do_stops_at_once(office: Office) -> None:
    async with office.worker(poll=30.0) as child:
        await child.hears('open')
        child.signal(signal.SIGTERM)
        assert await child.hears('stopping')
        assert await child.result() < 2.0


# --- without its database -------------------------------------------------------------------------


async def _goes_away(
    nursery: Nursery, server: PostgresServer | RedisServer, url: str, log: Path
) -> None:
    """The server dies while steps run, for longer than any call is tried again."""
    if not server.restartable:
        pytest.skip('This server is not ours to stop.')
    graph, run_ids = 'desk', [f'run-{number}' for number in range(8)]
    async with graphkeep.open_store(url) as store:
        for run_id in run_ids:
            await begun(store, graph, run_id)
        async with nursery.child(
            'work', url=url, graph=graph, log=str(log), hurry=1.0, poll=0.2, lease=2.0, retry=0.3
        ) as child:
            await child.hears('open')
            while len(starts(log)) < len(run_ids):
                await asyncio.sleep(0.01)
            server.kill()
            await asyncio.sleep(2.0)
            server.start()

            async def all_pause() -> bool:
                return len(await store.runs(status='paused')) == len(run_ids)

            await eventually(all_pause, what='every run has gone on', timeout=30)
            # A worker that has lived through it hears of answers again.
            await store.answer('run-0', (await store.requests(run_id='run-0'))[0].request_id, 'yes')

            async def asks_again() -> bool:
                return bool(await store.requests(run_id='run-0'))

            await eventually(asks_again, what='the answer is used')
            child.signal(signal.SIGTERM)
            assert await child.hears('stopping')
            await child.result()
        for run_id in run_ids:
            ends = state_of(await store.document(run_id)).ends
            assert ends == dict.fromkeys(('begin', 'weigh', 'pack'), 1)


async def test_postgres_goes_away(
    nursery: Nursery, make_postgres: Callable[..., PostgresServer], tmp_path: Path
) -> None:
    server = make_postgres()
    await _goes_away(nursery, server, server.create_database(), tmp_path / 'log')


async def test_redis_goes_away(
    nursery: Nursery, make_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    await _goes_away(nursery, server, server.url(), tmp_path / 'log')
