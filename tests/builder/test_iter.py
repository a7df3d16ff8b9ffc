"""Watching kept runs: upstream's events in commit order, and what cannot be supported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN
from pydantic_graph import GraphBuilder, StepContext, _utils
from pydantic_graph.graph_builder import EndMarker, GraphTask

import graphkeep
from graphkeep import Store

from .fixed import CASES, Diary, Ledger, sorted_output


def shown(event: Any) -> Any:
    """An event as nodes and inputs."""
    if isinstance(event, EndMarker):
        return 'end', sorted_output(event.value)
    assert isinstance(event, list)
    assert all(isinstance(task, GraphTask) for task in event)
    return [(str(task.node_id), task.inputs) for task in event]


def line(**options: Any) -> Any:
    """Two steps, one after the other."""
    g: Any = GraphBuilder(
        state_type=Ledger, input_type=int, output_type=int, auto_instrument=False, **options
    )

    @g.step
    async def first(ctx: StepContext[Ledger, None, int]) -> int:
        ctx.state.mark('first')
        return ctx.inputs + 1

    @g.step
    async def second(ctx: StepContext[Ledger, None, int]) -> int:
        ctx.state.mark('second')
        return ctx.inputs * 2

    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(second),
        g.edge_from(second).to(g.end_node),
    )
    return g.build()


async def watched(iterator: AsyncIterator[Any]) -> list[Any]:
    return [shown(event) async for event in iterator]


async def test_events_of_a_line_are_upstreams() -> None:
    graph = line()
    async with graph.iter(state=Ledger(), inputs=1) as run:
        upstream = await watched(run)
    async with graphkeep.persist(graph).iter(state=Ledger(), inputs=1) as run:
        ours = await watched(run)
    assert ours == upstream
    assert ours[0] == [('first', 1)]
    assert ours[-1] == ('end', 4)


@pytest.mark.parametrize('name', CASES)
async def test_every_task_is_seen_once_and_then_the_end(name: str) -> None:
    case = CASES[name]
    kept: Any = graphkeep.persist(case.build())
    seen: set[str] = set()
    diary = Diary()
    async with kept.iter(state=Ledger(), inputs=case.inputs, deps=diary) as run:
        async for event in run:
            assert run.next_task is event
            if isinstance(event, EndMarker):
                assert sorted_output(event.value) == case.output
                assert run.output is event.value
                break
            assert run.output is None
            for task in event:
                assert task.task_id not in seen, 'no task is yielded twice'
                seen.add(task.task_id)
        else:
            pytest.fail('no end')
        with pytest.raises(StopAsyncIteration):
            await anext(run)
    assert {f'task:{task}' for task in diary.starts} <= seen


async def test_an_event_is_committed_before_it_is_seen(store: Store, run_id: str) -> None:
    kept: Any = graphkeep.persist(line())
    persistence = store.persistence(run_id)
    async with kept.iter(state=Ledger(), inputs=1, persistence=persistence) as run:
        seqs = [(await store.run(run_id)).seq async for _ in run]
    assert seqs == [0, 1, 2, 2]


async def test_next_goes_one_event_on() -> None:
    kept: Any = graphkeep.persist(line())
    async with kept.iter(state=Ledger(), inputs=1) as run:
        assert shown(run.next_task) == [('first', 1)]
        event = await run.next()
        assert shown(event) == [('second', 2)]
        assert run.next_task is event
        assert run.state.ends == {'first': 1}
        event = await run.next(event)
        assert shown(event)[0][1] == 4
        event = await run.next(event)
        assert isinstance(event, EndMarker)
        assert run.output == 4


async def test_the_next_tasks_cannot_be_overridden(store: Store, run_id: str) -> None:
    kept: Any = graphkeep.persist(line())
    persistence = store.persistence(run_id)
    async with kept.iter(state=Ledger(), inputs=1, persistence=persistence) as run:
        (task,) = await anext(run)
        with pytest.raises(TypeError, match='override_next'):
            run.override_next([task])
        for other in ([], [task], EndMarker(5)):
            with pytest.raises(TypeError, match='override_next'):
                await run.next(other)
        assert shown(await run.next()) == [('second', 2)]
        assert (await run.next())[0].inputs == 4
    assert (await store.run(run_id)).status == 'done'


@pytest.mark.parametrize('after', [0, 1, 2])
async def test_a_run_that_is_left_half_way_is_ready(after: int, store: Store, run_id: str) -> None:
    kept: Any = graphkeep.persist(line())
    state = Ledger()
    async with kept.iter(state=state, inputs=1, persistence=store.persistence(run_id)) as run:
        for _ in range(after):
            await anext(run)
    run = await store.run(run_id)
    assert (run.status, run.owner, run.seq) == ('ready', None, max(0, after - 1))
    async with kept.iter_resumed(store.persistence(run_id)) as run:
        events = await watched(run)
    assert events[0] == ([('first', 1)] if after < 2 else [('second', 2)])
    assert events[-1] == ('end', 4)
    assert state.ends == ({} if after < 2 else {'first': 1})


async def test_what_runs_is_ended_when_the_watcher_leaves(store: Store, run_id: str) -> None:
    g: Any = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)
    ended: list[str] = []

    @g.step
    async def go(ctx: StepContext[None, None, int]) -> int:
        return 1

    @g.step
    async def quick(ctx: StepContext[None, None, int]) -> int:
        return 1

    @g.step
    async def slow(ctx: StepContext[None, None, int]) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append('slow')
        return 1

    @g.step
    async def later(ctx: StepContext[None, None, int]) -> int:
        return 1

    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(quick, slow),
        g.edge_from(quick).to(later),
        g.edge_from(later, slow).to(g.end_node),
    )
    kept = graphkeep.persist(g.build())
    with pytest.raises(KeyError):
        async with kept.iter(inputs=1, persistence=store.persistence(run_id)) as run:
            async for event in run:
                if shown(event) == [('later', 1)]:
                    raise KeyError
    assert ended == ['slow']
    assert (await store.run(run_id)).status == 'ready'


async def test_watching_a_run_that_is_done(store: Store, run_id: str) -> None:
    kept: Any = graphkeep.persist(line())
    await kept.run(state=Ledger(), inputs=1, persistence=store.persistence(run_id))
    async with kept.iter_resumed(store.persistence(run_id)) as run:
        events = [event async for event in run]
        assert run.output == 4
    assert shown(events[-1]) == ('end', 4)
    assert not any(task for event in events[:-1] for task in event)


async def test_an_edit_between_events_is_kept(store: Store, run_id: str) -> None:
    kept: Any = graphkeep.persist(line())
    persistence = store.persistence(run_id)
    state = Ledger()
    async with kept.iter(state=state, inputs=1, persistence=persistence) as run:
        await anext(run)
        await anext(run)
        run.state.marks.append('edited')
        await anext(run)
    assert [s.event for s in await store.snapshots(run_id)] == ['start', 'step', 'edit', 'end']
    stored = kept._plan.state.decode((await store.document(run_id)).state)
    assert stored == state
    assert stored.marks == ['first', 'edited', 'second']


async def test_a_step_that_fails_raises_at_its_event_and_goes_on_raising() -> None:
    g: Any = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)

    @g.step
    async def fails(ctx: StepContext[None, None, int]) -> int:
        raise ValueError('told to')

    g.add(g.edge_from(g.start_node).to(fails), g.edge_from(fails).to(g.end_node))
    kept: Any = graphkeep.persist(g.build())
    async with kept.iter(inputs=1) as run:
        await anext(run)
        for _ in range(2):
            with pytest.raises(ValueError, match='told to'):
                await anext(run)


def test_run_sync() -> None:
    kept: Any = graphkeep.persist(line())
    state = Ledger()
    assert kept.run_sync(state=state, inputs=1) == 4
    assert state.ends == {'first': 1, 'second': 1}


async def test_run_sync_inside_of_a_loop_is_refused() -> None:
    kept: Any = graphkeep.persist(line())
    with pytest.raises(RuntimeError, match='running event loop'):
        kept.run_sync(state=Ledger(), inputs=1)


def test_render_is_upstreams() -> None:
    graph = line()
    kept: Any = graphkeep.persist(graph)
    for options in ({}, {'title': 'A title'}, {'direction': 'LR'}):
        assert kept.render(**options) == graph.render(**options)


async def test_graphs_are_named_as_upstream_names_them(store: Store, run_id: str) -> None:
    graph = line()
    kept: Any = graphkeep.persist(graph)
    await kept.run(state=Ledger(), inputs=1, persistence=store.persistence(run_id))
    assert graph.name == kept.name == 'graph'
    assert (await store.run(run_id)).graph == 'graph'

    by_us: Any = graphkeep.persist(line())
    async with by_us.iter(state=Ledger(), inputs=1) as run:
        assert by_us.name == 'by_us'
        assert 'by_us' in repr(run)
    assert 'by_us' in repr(by_us)

    nameless: Any = graphkeep.persist(line())
    await nameless.run(state=Ledger(), inputs=1, infer_name=False)
    assert nameless.name is None

    named: Any = graphkeep.persist(line(name='given'))
    persistence = store.persistence(f'{run_id}-2', graph='recorded')
    await named.run(state=Ledger(), inputs=1, persistence=persistence)
    assert named.name == 'given'
    assert (await store.run(f'{run_id}-2')).graph == 'recorded'


class Spans:
    """In the place of logfire: what was opened, and inside of what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._open = 0

    @contextmanager
    def span(self, template: str, **attributes: Any) -> Iterator[Any]:
        # pydantic-graph 1.x leaves it to logfire to fill the template.
        self.names.append('  ' * self._open + template.format(**attributes))
        self._open += 1
        try:
            yield INVALID_SPAN
        finally:
            self._open -= 1


async def test_spans_are_named_as_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = line(name='line')
    graph.auto_instrument = True
    theirs, ours, again = Spans(), Spans(), Spans()
    monkeypatch.setattr(_utils, '_logfire', theirs)
    await graph.run(state=Ledger(), inputs=1)
    kept: Any = graphkeep.persist(graph)
    monkeypatch.setattr(_utils, '_logfire', ours)
    async with graphkeep.open_store('memory://') as store:
        await kept.run(state=Ledger(), inputs=1, persistence=store.persistence('run'))
        monkeypatch.setattr(_utils, '_logfire', again)
        assert await kept.resume(store.persistence('run')) == 4
    assert ours.names == ['run graph line', '  run node first', '  run node second']
    assert theirs.names == ours.names
    assert again.names == ['run graph line']


async def test_a_graph_that_is_not_instrumented_opens_no_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = Spans()
    monkeypatch.setattr(_utils, '_logfire', spans)
    kept: Any = graphkeep.persist(line(name='line'))
    await kept.run(state=Ledger(), inputs=1)
    assert not spans.names
    with_own = Spans()
    await kept.run(state=Ledger(), inputs=1, span=with_own.span('own'))
    assert with_own.names == ['own']


@pytest.mark.parametrize('name', CASES)
async def test_a_watcher_without_patience_misses_nothing(
    name: str, store: Store, run_id: str
) -> None:
    """Whatever a cancellation of `next` hits: a step, the wait for one, or a commit."""
    case, state, diary = CASES[name], Ledger(), Diary()
    kept: Any = graphkeep.persist(case.build())
    handle = store.persistence(run_id)
    seen: set[str] = set()
    turns = 0
    async with (
        asyncio.timeout(20),
        kept.iter(state=state, inputs=case.inputs, deps=diary, persistence=handle) as run,
    ):
        seen.update(task.task_id for task in run.next_task)
        while not isinstance(run.next_task, EndMarker):
            turns += 1
            next_ = asyncio.ensure_future(run.next())
            for _ in range(turns % 17):
                await asyncio.sleep(0)
            next_.cancel()
            await asyncio.wait((next_,))
            if not isinstance(run.next_task, EndMarker):
                seen.update(task.task_id for task in run.next_task)
        assert sorted_output(run.output) == case.output
    assert state.ends == case.ends
    assert {f'task:{task}' for task in diary.starts} <= seen
    assert (await store.run(run_id)).status == 'done'
    snapshots = await store.snapshots(run_id)
    assert [s.seq for s in snapshots] == list(range(len(snapshots)))
