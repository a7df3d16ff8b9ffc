"""Whatever cancels a run, at whatever moment: it can go on at once, in any process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import graphkeep
from graphkeep import RunNotFoundError, Store
from tests.crash.children import Child, Nursery
from tests.crash.conftest import without_cluster
from tests.crash.hooked import Call, around_calls
from tests.crash.logbook import Journalist, starts
from tests.crash.trip import FINAL, NODES, OUTPUT, Outside, Pack, Trip, trip

END = {'output': OUTPUT, 'state': asdict(FINAL)}

Strike = Callable[[], object]
Work = Callable[[Strike], Awaitable[None]]

# --- what cancels: gives work the means to cancel itself, and tells whether it was cancelled ------


async def by_task(work: Work) -> bool:
    task: asyncio.Task[None] = asyncio.ensure_future(
        work(lambda: task.cancel())  # noqa: PLW0108 - the task is not there yet
    )
    await asyncio.wait((task,))
    return task.cancelled() or task.result() is not None


async def by_task_twice(work: Work) -> bool:
    """The second one comes while the first is being dealt with."""
    loop = asyncio.get_running_loop()

    def strike() -> None:
        task.cancel()
        loop.call_soon(loop.call_soon, task.cancel)

    task: asyncio.Task[None] = asyncio.ensure_future(work(strike))
    await asyncio.wait((task,))
    return task.cancelled() or task.result() is not None


async def by_timeout(work: Work) -> bool:
    try:
        async with asyncio.timeout(None) as timeout:
            await work(lambda: timeout.reschedule(0))
    except TimeoutError:
        return True
    return False


async def by_anyio_scope(work: Work) -> bool:
    """It cancels again at every turn of the loop."""
    with anyio.CancelScope() as scope:
        await work(scope.cancel)
    return scope.cancelled_caught


async def by_anyio_move_on(work: Work) -> bool:
    with anyio.move_on_after(60) as scope:

        def strike() -> None:
            scope.deadline = anyio.current_time()

        await work(strike)
    return scope.cancelled_caught


every_kind = pytest.mark.parametrize(
    'cancels', [by_task, by_task_twice, by_timeout, by_anyio_scope, by_anyio_move_on]
)

# --- when: around one call of the store -----------------------------------------------------------


async def _turns() -> None:
    """Time for a cancellation to arrive, and for what it sets off."""
    for _ in range(6):
        await asyncio.sleep(0)


async def before(name: str, call: Call, strike: Strike) -> Any:
    """The call is made after the cancellation has arrived."""
    strike()
    await _turns()
    return await call()


async def during(name: str, call: Call, strike: Strike) -> Any:
    asyncio.get_running_loop().call_soon(strike)
    return await call()


async def after(name: str, call: Call, strike: Strike) -> Any:
    """The call has returned, and nobody has been told yet."""
    result = await call()
    strike()
    if name != '_open':
        # What is opened in the caller's own task is the caller's when this returns.
        await _turns()
    return result


class Rig:
    """Cancels runs of one store, and has another process go on with them."""

    def __init__(self, url: str, store: Store, elsewhere: Child, run_id: str, folder: Path) -> None:
        self._url = url
        self._store = store
        self._elsewhere = elsewhere
        self._prefix = run_id
        self._folder = folder

    async def try_it(
        self,
        name: str,
        cancels: Callable[[Work], Awaitable[bool]],
        around: Callable[[Strike, int, str, Call], Awaitable[Any]] | None = None,
        *,
        in_node: str | None = None,
    ) -> bool:
        """Cancel a run, and go on with it elsewhere. Tells whether it was cancelled."""
        run_id, log = f'{self._prefix}-{name}', self._folder / f'{name}.log'
        store = graphkeep.open_store(self._url)
        journalist = Journalist(log)

        async def work(strike: Strike) -> None:
            async def middle(_: str, node: str) -> None:
                if node == in_node:
                    strike()
                    await asyncio.sleep(60)

            if around is not None:
                around_calls(store, partial(around, strike))
            async with store:
                persistence = store.persistence(run_id)
                deps = Outside(log=journalist, middle=middle)
                await trip.run(Pack(), state=Trip(), deps=deps, persistence=persistence)

        cancelled = await cancels(work)
        journalist.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        try:
            run = await self._store.run(run_id)
        except RunNotFoundError:
            done = 0
            assert cancelled
        else:
            done = run.seq
            assert run.status == ('done' if done == len(NODES) else 'ready')
            assert run.owner is None
        began = starts(log)
        assert began in [list(NODES[:n]) for n in (done, done + 1)]

        self._elsewhere.tell(f'{run_id} {log}')
        assert await self._elsewhere.hears('result') == END
        assert starts(log)[len(began) :] == list(NODES[done:])
        assert [s.seq for s in await self._store.snapshots(run_id)] == list(range(len(NODES) + 1))
        return cancelled


@pytest.fixture
async def rig(
    nursery: Nursery, url: str, store: Store, run_id: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with nursery.child('resume_each', url=url) as elsewhere:
        yield Rig(url, store, elsewhere, run_id, tmp_path)


@without_cluster
@every_kind
async def test_cancelled_around_any_call_of_the_store(
    rig: Rig, cancels: Callable[[Work], Awaitable[bool]]
) -> None:
    for moment in (before, during, after):
        number = 0
        struck = True
        while struck:
            number += 1
            struck = False

            async def around(
                strike: Strike,
                n: int,
                name: str,
                call: Call,
                *,
                at: int = number,
                when: Any = moment,
            ) -> Any:
                nonlocal struck
                if n != at:
                    return await call()
                struck = True
                return await when(name, call, strike)

            cancelled = await rig.try_it(f'{moment.__name__}-{number}', cancels, around)
            # All but the last calls, of the end and of the store's close, can be cancelled.
            assert cancelled or number > len(NODES) + 1
        assert number == len(NODES) + 4


@without_cluster
async def test_cancelled_again_around_the_call_that_gives_the_claim_up(rig: Rig) -> None:
    for number in range(2, len(NODES) + 2):
        for again in (before, during, after):

            async def around(
                strike: Strike,
                n: int,
                name: str,
                call: Call,
                *,
                at: int = number,
                when: Any = again,
            ) -> Any:
                if n == at:
                    return await before(name, call, strike)
                if n == at + 1:
                    return await when(name, call, strike)
                return await call()

            assert await rig.try_it(f'{again.__name__}-{number}', by_task, around)


@every_kind
async def test_cancelled_in_a_node(rig: Rig, cancels: Callable[[Work], Awaitable[bool]]) -> None:
    for node in NODES:
        assert await rig.try_it(node, cancels, in_node=node)


# --- Ctrl-C ---------------------------------------------------------------------------------------


async def _goes_on_elsewhere(nursery: Nursery, store: Store, url: str, run_id: str) -> None:
    assert await nursery.result('travel', url=url, run_id=run_id) == END
    assert [s.seq for s in await store.snapshots(run_id)] == list(range(len(NODES) + 1))


@pytest.mark.parametrize('job', ['travel', 'travel_sync'])
async def test_interrupted_in_a_node(
    nursery: Nursery, url: str, store: Store, run_id: str, job: str
) -> None:
    arguments: dict[str, Any] = {'halt': 'Climb'}
    if job == 'travel':
        arguments = {'how': 'run', 'halts': ['Climb']}
    async with nursery.child(job, url=url, run_id=run_id, **arguments) as child:
        assert await child.hears('halt') == 'Climb'
        child.signal(signal.SIGINT)
        assert await child.error() == 'KeyboardInterrupt'
    run = await store.run(run_id)
    assert (run.status, run.owner, run.seq) == ('ready', None, 3)
    await _goes_on_elsewhere(nursery, store, url, run_id)


@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_interrupted_in_a_commit(
    nursery: Nursery, url: str, store: Store, run_id: str, moment: str
) -> None:
    park = ('_append', 3, moment)
    async with nursery.child('travel', url=url, run_id=run_id, how='run', park=park) as child:
        assert await child.hears('park')
        child.signal(signal.SIGINT)
        child.tell()
        assert await child.error() == 'KeyboardInterrupt'
    run = await store.run(run_id)
    assert (run.status, run.owner, run.seq) == ('ready', None, 3)
    await _goes_on_elsewhere(nursery, store, url, run_id)


@pytest.mark.parametrize('hook', ['_append', '_release'])
async def test_interrupted_again_and_again(
    nursery: Nursery, url: str, store: Store, run_id: str, hook: str
) -> None:
    """The second Ctrl-C does not wait for anything. What it leaves is that of a dead process."""
    arguments: dict[str, Any] = {'url': url, 'run_id': run_id, 'how': 'run'}
    if hook == '_append':
        arguments |= {'park': ('_append', 3, 'before')}
    else:
        arguments |= {'park': ('_release', 1, 'before'), 'halts': ['Climb']}
    async with nursery.child('travel', **arguments) as child:
        if hook == '_release':
            assert await child.hears('halt') == 'Climb'
            child.signal(signal.SIGINT)
        assert await child.hears('park')
        error = asyncio.ensure_future(child.error())
        while not error.done():
            child.signal(signal.SIGINT)
            await asyncio.wait((error,), timeout=0.3)
        assert await error == 'KeyboardInterrupt'
    assert (await store.run(run_id)).seq in (2, 3)
    await _goes_on_elsewhere(nursery, store, url, run_id)


@pytest.mark.parametrize('closes', [True, False])
@pytest.mark.parametrize('where', ['node', 'commit'])
async def test_the_loop_ends_under_a_run_in_the_background(
    nursery: Nursery, url: str, store: Store, run_id: str, where: str, closes: bool
) -> None:
    """`asyncio.run` cancels whatever is left, the store's own tasks included."""
    arguments: dict[str, Any] = {'halts': ['Climb']}
    if where == 'commit':
        arguments = {'park': ('_append', 4, 'before')}
    async with nursery.child(
        'background', url=url, run_id=run_id, closes=closes, **arguments
    ) as child:
        assert await child.result() is None
    run = await store.run(run_id)
    assert (run.status, run.owner) == ('ready', None)
    assert run.seq == 3 or where == 'commit'
    await _goes_on_elsewhere(nursery, store, url, run_id)


async def test_cancelled_in_a_write_that_does_not_end(sqlite_url: str, run_id: str) -> None:
    """It is waited for, but not for ever, and nothing is tried on the same database after it."""
    answers = asyncio.Event()
    parked = asyncio.Event()

    async def never(number: int, name: str, call: Call) -> Any:
        if number == 3:
            parked.set()
            await answers.wait()
        return await call()

    async with graphkeep.open_store(sqlite_url, retry=0) as store:
        around_calls(store, never)
        task = asyncio.create_task(
            trip.run(Pack(), state=Trip(), deps=Outside(), persistence=store.persistence(run_id))
        )
        await parked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answers.set()
