"""`graphkeep.Worker` inside of this process: what it takes, what it leaves, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_graph import GraphBuilder, StepContext

import graphkeep
from graphkeep import Store, StoreUnavailableError, Worker, wait_for, worker
from graphkeep.testing import Worker as Elsewhere
from graphkeep.testing import eventually

QUICK: dict[str, Any] = {'poll': 0.01}
SLOW: dict[str, Any] = {'poll': 30.0}


async def _at_once(run: str) -> None:
    pass


@dataclass
class Deps:
    """What steps do, by the name of the run that is its input."""

    first: Callable[[str], Awaitable[object]] = _at_once
    second: Callable[[str], Awaitable[object]] = _at_once
    ran: Counter[str] = field(default_factory=Counter)
    most: int = 0
    _now: int = 0

    async def work(self, step: str, run: str) -> None:
        self.ran[step] += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await getattr(self, step)(run)
        finally:
            self._now -= 1


Ctx = StepContext[None, Deps, Any]


def _pair(second: str = 'second') -> Any:
    g: Any = GraphBuilder(deps_type=Deps, input_type=str, output_type=str, auto_instrument=False)

    @g.step
    async def first(ctx: StepContext[None, Deps, str]) -> str:
        await ctx.deps.work('first', ctx.inputs)
        return ctx.inputs

    @g.step(node_id=second)
    async def last(ctx: StepContext[None, Deps, str]) -> str:
        await ctx.deps.work('second', ctx.inputs)
        return f'{ctx.inputs} is done'

    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(last),
        g.edge_from(last).to(g.end_node),
    )
    return graphkeep.persist(g.build())


pair, changed = _pair(), _pair('another name')


@pytest.fixture
def url() -> str:
    return f'memory://{uuid.uuid4().hex}'


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with graphkeep.open_store(url) as store:
        yield store


async def begun(store: Store, run_id: str, *, graph: str = 'pair', kept: Any = pair) -> None:
    handle = store.persistence(run_id, graph=graph)
    await kept.start(inputs=run_id, persistence=handle, infer_name=False)


async def until(store: Store, run_id: str, status: str, *, timeout: float = 10.0) -> None:
    async def reached() -> bool:
        return (await store.run(run_id)).status == status

    await eventually(reached, what=f'{run_id} is {status}', timeout=timeout)


async def status(store: Store, run_id: str) -> str:
    return (await store.run(run_id)).status


def counted(store: Store) -> Counter[str]:
    """The calls of the database from now on, by hook."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        hook = getattr(store, name)

        async def call(*args: Any) -> Any:
            calls[name[1:]] += 1
            return await hook(*args)

        setattr(store, name, call)

    for name in ('_claim', '_append', '_read', '_candidates', '_release'):
        count(name)
    return calls


class Gate:
    """Holds runs up in a step."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = False

    async def __call__(self, run: str) -> None:
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


# --- what it takes --------------------------------------------------------------------------------


async def test_it_takes_what_is_ready_and_what_becomes_so(store: Store) -> None:
    await begun(store, 'before')
    async with Worker(store, {'pair': pair}, deps=Deps(), **QUICK):
        await until(store, 'before', 'done')
        await begun(store, 'after')
        await until(store, 'after', 'done')
    assert await pair.resume(store.persistence('after')) == 'after is done'


async def test_it_takes_what_another_process_left(store: Store) -> None:
    await begun(store, 'left')
    await Elsewhere(store, 'left', ttl=0.0).take()
    async with Worker(store, {'pair': pair}, deps=Deps(), **QUICK):
        await until(store, 'left', 'done')


async def test_it_leaves_what_another_process_runs(store: Store) -> None:
    await begun(store, 'held')
    await Elsewhere(store, 'held', ttl=60.0).take()
    calls = counted(store)
    async with Worker(store, {'pair': pair}, deps=Deps(), **QUICK):
        await begun(store, 'other')
        await until(store, 'other', 'done')
    assert await status(store, 'held') == 'running'
    assert calls['claim'] == 1


async def test_several_graphs_and_the_runs_of_others(store: Store) -> None:
    deps = Deps()
    for graph in ('pair', 'changed', 'foreign'):
        await begun(store, graph, graph=graph, kept=changed if graph == 'changed' else pair)
    async with Worker(store, {'pair': pair, 'changed': changed}, deps=deps, **QUICK):
        await until(store, 'pair', 'done')
        await until(store, 'changed', 'done')
    assert await status(store, 'foreign') == 'ready'
    assert deps.ran == {'first': 2, 'second': 2}


async def test_no_more_runs_go_on_at_once_than_asked_for(store: Store) -> None:
    gate = Gate()
    deps = Deps(first=gate)
    for number in range(10):
        await begun(store, f'run-{number}')
    async with Worker(store, {'pair': pair}, deps=deps, concurrency=3, **QUICK):

        async def full() -> bool:
            return deps.ran['first'] == 3

        await eventually(full, what='three go on')
        for _ in range(50):
            await asyncio.sleep(0)
        assert deps.ran['first'] == 3
        gate.opened.set()
        for number in range(10):
            await until(store, f'run-{number}', 'done')
    assert deps.most == 3
    assert deps.ran == {'first': 10, 'second': 10}


async def test_a_run_that_ends_makes_room_at_once(store: Store) -> None:
    for number in range(20):
        await begun(store, f'run-{number}')
    async with (
        asyncio.timeout(10),
        Worker(store, {'pair': pair}, deps=Deps(), concurrency=2, **SLOW),
    ):
        for number in range(20):
            await until(store, f'run-{number}', 'done')


async def test_two_share_the_runs(url: str, store: Store) -> None:
    async def slowly(run: str) -> None:
        await asyncio.sleep(0.001)

    deps = [Deps(first=slowly), Deps(first=slowly)]
    for number in range(60):
        await begun(store, f'run-{number}')
    async with graphkeep.open_store(url) as other, contextlib.AsyncExitStack() as stack:
        for mine, each in zip((store, other), deps, strict=True):
            await stack.enter_async_context(
                Worker(mine, {'pair': pair}, deps=each, concurrency=4, **QUICK)
            )
        for number in range(60):
            await until(store, f'run-{number}', 'done')
    assert deps[0].ran + deps[1].ran == {'first': 60, 'second': 60}
    assert min(each.ran['first'] for each in deps) > 0


# --- what goes wrong ------------------------------------------------------------------------------


async def test_a_step_that_raises_fails_its_run_and_no_other(store: Store) -> None:
    async def fails(run: str) -> None:
        if run == 'bad':
            raise ValueError('no')

    deps = Deps(second=fails)
    await begun(store, 'bad')
    async with Worker(store, {'pair': pair}, deps=deps, **QUICK) as work:
        await until(store, 'bad', 'failed')
        await begun(store, 'good')
        await until(store, 'good', 'done')
        assert work._refused.keys() == {'bad'}
    run = await store.run('bad')
    assert run.error is not None
    assert (run.error['type'], run.error['message']) == ('builtins.ValueError', 'no')
    assert deps.ran == {'first': 2, 'second': 2}


async def test_runs_that_failed_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, '_FIRST_BACKOFF', 0.02)

    async def fails(run: str) -> None:
        raise ValueError('no')

    async with Worker(store, {'pair': pair}, deps=Deps(first=fails), **QUICK) as work:
        for number in range(50):
            await begun(store, f'run-{number}')
        for number in range(50):
            await until(store, f'run-{number}', 'failed')

        async def forgotten() -> bool:
            return not work._refused

        await eventually(forgotten, what='none is remembered')


async def _attempts(
    store: Store, deps: Deps, monkeypatch: pytest.MonkeyPatch, kept: Any = pair
) -> tuple[int, float]:
    """How often a worker reads or claims a run that it cannot go on with, in how many back-offs."""
    monkeypatch.setattr(worker, '_FIRST_BACKOFF', 0.05)
    calls, began = counted(store), time.monotonic()
    async with Worker(store, {'pair': kept}, deps=deps, poll=0.001):

        async def twice() -> bool:
            return calls['read'] + calls['claim'] >= 4

        await eventually(twice, what='it is tried again')
        await begun(store, 'good', graph='pair', kept=kept)
        await until(store, 'good', 'done')
        await asyncio.sleep(0.2)
    return calls['read'] - 1, (time.monotonic() - began) / 0.05


async def test_a_run_that_does_not_fit_the_graph_is_tried_ever_more_rarely(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stops(run: str) -> None:
        raise asyncio.CancelledError

    await begun(store, 'bad')
    with contextlib.suppress(asyncio.CancelledError):
        await pair.resume(store.persistence('bad'), deps=Deps(second=stops))
    seq = (await store.run('bad')).seq
    reads, times = await _attempts(store, Deps(), monkeypatch, changed)
    # They double: of twenty back-offs, the fifth would be over after 31.
    assert 2 <= reads < times / 2 + 2
    run = await store.run('bad')
    assert (run.status, run.seq, run.owner) == ('ready', seq, None)


async def test_a_step_that_cancels_itself_is_tried_ever_more_rarely(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is ready again at once; nobody has cancelled the worker."""

    async def cancelled(run: str) -> None:
        if run == 'bad':
            raise asyncio.CancelledError

    await begun(store, 'bad')
    reads, times = await _attempts(store, Deps(first=cancelled), monkeypatch)
    assert 2 <= reads < times / 2 + 2
    assert await status(store, 'bad') == 'ready'


async def test_a_step_that_raises_a_group_of_no_exceptions_stops_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raises(run: str) -> None:
        if run == 'bad':
            raise BaseExceptionGroup('both', [asyncio.CancelledError(), ValueError('no')])

    await begun(store, 'bad')
    reads, times = await _attempts(store, Deps(first=raises), monkeypatch)
    assert 2 <= reads < times / 2 + 2


async def test_a_run_that_is_cancelled_or_deleted_meanwhile(store: Store) -> None:
    gate = Gate()
    deps = Deps(first=gate)
    await begun(store, 'cancelled')
    await begun(store, 'deleted')
    async with Worker(store, {'pair': pair}, deps=deps, **QUICK):

        async def both() -> bool:
            return deps.ran['first'] == 2

        await eventually(both, what='both go on')
        await store.cancel('cancelled')
        await store.delete('deleted', force=True)
        gate.opened.set()
        await begun(store, 'good')
        await until(store, 'good', 'done')
    assert await status(store, 'cancelled') == 'cancelled'
    assert deps.ran['second'] == 1


async def test_a_store_that_cannot_be_reached_for_a_while(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, '_FIRST_BACKOFF', 0.05)
    monkeypatch.setattr(worker, '_DEAD', 0.05)
    async with graphkeep.open_store(url) as other, graphkeep.open_store(url, retry=0.0) as store:
        away, failed = False, Counter[str]()

        def flaky(name: str) -> None:
            hook = getattr(store, name)

            async def call(*args: Any) -> Any:
                if away:
                    failed[name] += 1
                    raise StoreUnavailableError('away')
                return await hook(*args)

            setattr(store, name, call)

        for name in ('_candidates', '_header', '_read', '_claim', '_append', '_find', '_release'):
            flaky(name)
        gate = Gate()
        deps = Deps(first=gate)
        await begun(other, 'running')
        async with Worker(store, {'pair': pair}, deps=deps, **QUICK):
            await gate.begun.wait()
            away = True
            gate.opened.set()

            async def tried() -> bool:
                return failed['_append'] > 0 and failed['_candidates'] > 2

            await eventually(tried, what='the store is away')
            await begun(other, 'next')
            away = False
            await until(other, 'next', 'done')
            await until(other, 'running', 'done')
        assert deps.ran == {'first': 3, 'second': 2}


async def test_a_store_that_was_closed_ends_it(url: str) -> None:
    store = graphkeep.open_store(url)
    work = Worker(store, {'pair': pair}, deps=Deps(), **QUICK)
    running = asyncio.create_task(work.run(signals=False))
    await eventually(lambda: _is_open(store), what='it works')
    await store.close()
    with pytest.raises(graphkeep.StoreClosedError):
        await running


async def _is_open(store: Store) -> bool:
    return store._state == 'open'


# --- how it stops ---------------------------------------------------------------------------------


async def test_it_lets_the_running_step_end(store: Store) -> None:
    gate = Gate()
    deps = Deps(first=gate)
    await begun(store, 'run')
    await begun(store, 'late')
    work = Worker(store, {'pair': pair}, deps=deps, concurrency=1, **QUICK)
    running = asyncio.create_task(work.run(signals=False))
    await gate.begun.wait()
    work.stop()
    await asyncio.sleep(0.02)
    assert not running.done()
    gate.opened.set()
    await running
    assert deps.ran == {'first': 1}
    assert [await status(store, run_id) for run_id in ('run', 'late')] == ['ready', 'ready']
    # The other was not begun, and the first is behind its first step.
    assert await pair.resume(store.persistence('run'), deps=deps) == 'run is done'
    assert await pair.resume(store.persistence('late'), deps=deps) == 'late is done'
    assert deps.ran == {'first': 2, 'second': 2}


@pytest.mark.parametrize('how', ['stopped twice', 'out of time', 'cancelled'])
async def test_steps_are_cancelled(store: Store, how: str) -> None:
    gate = Gate()
    await begun(store, 'run')
    grace = 0.0 if how != 'stopped twice' else 60.0
    work = Worker(store, {'pair': pair}, deps=Deps(first=gate), grace=grace, **QUICK)
    running = asyncio.create_task(work.run(signals=False))
    await gate.begun.wait()
    if how == 'cancelled':
        running.cancel()
    else:
        work.stop()
        await asyncio.sleep(0)
    if how == 'stopped twice':
        work.stop()
    async with asyncio.timeout(5):
        with (
            pytest.raises(asyncio.CancelledError)
            if how == 'cancelled'
            else contextlib.nullcontext()
        ):
            await running
    assert gate.cancelled
    assert await status(store, 'run') == 'ready'


async def test_leaving_its_block_stops_it(store: Store) -> None:
    gate = Gate()
    await begun(store, 'run')
    async with Worker(store, {'pair': pair}, deps=Deps(first=gate), **SLOW):
        await gate.begun.wait()
        asyncio.get_running_loop().call_later(0.01, gate.opened.set)
    assert not gate.cancelled
    assert await status(store, 'run') == 'ready'


async def test_an_error_in_its_block_is_raised(store: Store) -> None:
    with pytest.raises(ValueError, match='mine'):
        async with Worker(store, {'pair': pair}, deps=Deps(), **SLOW):
            raise ValueError('mine')


async def test_it_stops_while_the_store_does_not_answer(url: str) -> None:
    async with graphkeep.open_store(url, retry=60.0) as store:
        asked = asyncio.Event()

        async def away(graphs: Sequence[str], limit: int) -> Sequence[graphkeep.Run]:
            asked.set()
            raise StoreUnavailableError('away')

        store._candidates = away
        work = Worker(store, {'pair': pair}, deps=Deps(), grace=0.1, **QUICK)
        running = asyncio.create_task(work.run(signals=False))
        await asked.wait()
        work.stop()
        async with asyncio.timeout(5):
            await running


async def test_signals_are_handled_only_meanwhile(store: Store) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    work = Worker(store, {'pair': pair}, deps=Deps(), **SLOW)
    running = asyncio.create_task(work.run())
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        await running
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


# --- answers --------------------------------------------------------------------------------------


def _asking() -> Any:
    g: Any = GraphBuilder(input_type=str, output_type=str, auto_instrument=False)

    @g.step
    async def ask(ctx: StepContext[None, None, str]) -> str:
        if ctx.inputs.startswith('due'):
            return await wait_for(str, timeout=0.05, default='too late')
        return await wait_for(str)

    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return graphkeep.persist(g.build())


asking = _asking()


@pytest.mark.parametrize('database', ['memory', 'postgres', 'redis'])
async def test_it_hears_of_an_answer_at_once(
    database: str, request: pytest.FixtureRequest, url: str
) -> None:
    if database != 'memory':
        url = request.getfixturevalue(f'{database}_url')
    run_id = uuid.uuid4().hex
    async with graphkeep.open_store(url) as store, graphkeep.open_store(url) as other:
        await begun(store, run_id, graph=run_id, kept=asking)
        async with Worker(store, {run_id: asking}, **SLOW):
            await until(other, run_id, 'paused')
            [asked] = await other.requests(run_id=run_id)
            if database == 'memory':
                other = store  # nothing else tells
            else:
                await eventually(lambda: _watched(store), what='the database tells of answers')
            before = time.monotonic()
            await other.answer(run_id, asked.request_id, 'yes')
            await until(other, run_id, 'done')
            assert time.monotonic() - before < 0.5


async def _watched(store: Store) -> bool:
    return store.notices.watched


async def test_it_goes_on_when_a_deadline_has_passed(store: Store) -> None:
    await begun(store, 'due', kept=asking)
    async with Worker(store, {'pair': asking}, **QUICK):
        await until(store, 'due', 'done')
    assert await asking.resume(store.persistence('due')) == 'too late'


async def test_paused_runs_take_no_place(store: Store) -> None:
    async with Worker(store, {'asking': asking, 'pair': pair}, deps=None, concurrency=1, **QUICK):
        for number in range(5):
            await begun(store, f'run-{number}', graph='asking', kept=asking)
        for number in range(5):
            await until(store, f'run-{number}', 'paused')
        [asked] = await store.requests(run_id='run-3')
        await store.answer('run-3', asked.request_id, 'yes')
        await until(store, 'run-3', 'done')


# --- what it is not made with ---------------------------------------------------------------------


async def test_wrong_arguments(store: Store) -> None:
    wrong: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
        ('sqlite:///runs.db', {'pair': pair}, {}, TypeError),
        (store, pair, {}, TypeError),
        (store, {pair: 'pair'}, {}, TypeError),
        (store, {'pair': pair.graph}, {}, TypeError),
        (store, {'pair': pair}, {'concurrency': 0}, ValueError),
        (store, {'pair': pair}, {'concurrency': True}, TypeError),
        (store, {'pair': pair}, {'poll': 0}, ValueError),
        (store, {'pair': pair}, {'poll': float('nan')}, ValueError),
        (store, {'pair': pair}, {'grace': -1}, ValueError),
        (store, {'pair': pair}, {'grace': float('nan')}, ValueError),
    ]
    for given, graphs, options, error in wrong:
        with pytest.raises(error):
            Worker(given, graphs, **options)


async def test_a_graph_under_another_name_is_told_of(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    kept = _pair()
    kept.graph.name = 'pair'
    Worker(store, {'pear': kept})
    assert "named 'pair': only runs that are recorded under 'pear' are found" in caplog.text
    caplog.clear()
    Worker(store, {'pair': kept, 'old name': kept})
    assert not caplog.text
