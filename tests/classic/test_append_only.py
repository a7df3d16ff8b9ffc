"""`AppendOnly` lists in the state of whole runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import LossyStateError, Store
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import count_calls, nodes, writes


@dataclass
class Line:
    text: str
    words: list[str] = field(default_factory=list[str])


@dataclass
class Talk:
    lines: Annotated[list[Line], graphkeep.AppendOnly] = field(default_factory=list[Line])
    turns: int = 0


Trick = Callable[[Talk], None]


@dataclass
class Say(BaseNode[Talk, dict[int, Trick] | None, int]):
    """Adds a line a turn; `deps` says what else happens in a turn, once."""

    left: int

    async def run(self, ctx: GraphRunContext[Talk, dict[int, Trick] | None]) -> Say | End[int]:
        ctx.state.lines.append(Line(f'line {ctx.state.turns}'))
        ctx.state.turns += 1
        if ctx.deps and (trick := ctx.deps.pop(ctx.state.turns, None)):
            trick(ctx.state)
        return Say(self.left - 1) if self.left else End(len(ctx.state.lines))


talk = Graph[Talk, dict[int, Trick] | None, int](nodes=(Say,), name='talk')


def lines(count: int) -> list[str]:
    return [f'line {n}' for n in range(count)]


def texts(state: Talk) -> list[str]:
    return [line.text for line in state.lines]


@every_store
async def test_a_whole_run(store: Store, run_id: str) -> None:
    result = await talk.run(Say(29), state=Talk(), persistence=store.persistence(run_id))

    assert texts(result.state) == lines(30)
    stored = await graphkeep.resume(talk, store.persistence(run_id))
    assert stored.state == result.state


@every_store
async def test_a_run_that_is_loaded_for_every_step(make_store: MakeStore, run_id: str) -> None:
    store = make_store()
    await talk.initialize(Say(19), store.persistence(run_id), state=Talk([Line('hello')]))
    for turn in range(20):
        if turn % 7 == 6:
            await store.close()
            store = make_store()
        async with talk.iter_from_persistence(store.persistence(run_id)) as run:
            await run.next()

    result = await graphkeep.resume(talk, store.persistence(run_id))
    assert (result.output, texts(result.state)) == (21, ['hello', *lines(20)])


async def test_steps_that_fail_and_run_again(store: Store, run_id: str) -> None:
    def fail(state: Talk) -> None:
        raise ZeroDivisionError

    tricks: dict[int, Trick] = dict.fromkeys((3, 4, 8), fail)
    for attempt in range(4):
        running = (
            talk.run(Say(9), state=Talk(), deps=tricks, persistence=store.persistence(run_id))
            if attempt == 0
            else graphkeep.resume(talk, store.persistence(run_id), deps=tricks)
        )
        if attempt < 3:
            with pytest.raises(ZeroDivisionError):
                await running
        else:
            assert texts((await running).state) == lines(10)


def shorter(state: Talk) -> None:
    del state.lines[0]


def replaced(state: Talk) -> None:
    state.lines[0] = Line('another')


def last_edited(state: Talk) -> None:
    state.lines[-2].text = 'edited'


def reordered(state: Talk) -> None:
    state.lines.reverse()


@pytest.mark.parametrize(
    ('trick', 'path'),
    [
        (shorter, 'state.lines'),
        (replaced, 'state.lines[0]'),
        (last_edited, 'state.lines[3]'),
        (reordered, 'state.lines'),
    ],
)
@pytest.mark.parametrize('loaded', [True, False])
async def test_a_list_that_did_more_than_grow_fails_the_run(
    store: Store, run_id: str, trick: Trick, path: str, loaded: bool
) -> None:
    if loaded:
        # Two lines are from the database, the others from here.
        async with talk.iter(Say(9), state=Talk(), persistence=store.persistence(run_id)) as run:
            await run.next()
            await run.next()
        running = graphkeep.resume(talk, store.persistence(run_id), deps={5: trick})
    else:
        running = talk.run(
            Say(9), state=Talk(), deps={5: trick}, persistence=store.persistence(run_id)
        )

    with pytest.raises(LossyStateError, match='AppendOnly lists may only grow') as error:
        await running

    assert error.value.path.startswith(path)
    run_now = await store.run(run_id)
    assert run_now.status == 'failed'
    assert run_now.error is not None
    assert run_now.error['type'] == 'graphkeep.errors.LossyStateError'
    persistence = store.persistence(run_id)
    persistence.set_graph_types(talk)
    assert nodes(await persistence.load_all()) == [*['Say success'] * 4, 'Say error']
    result = await graphkeep.resume(talk, persistence)
    assert texts(result.state) == lines(10)


async def test_a_caller_may_append_between_two_nodes(store: Store, run_id: str) -> None:
    async with talk.iter(Say(3), state=Talk(), persistence=store.persistence(run_id)) as run:
        await run.next()
        run.state.lines.append(Line('by hand'))
        await run.next()

    result = await graphkeep.resume(talk, store.persistence(run_id))
    assert texts(result.state) == ['line 0', 'by hand', 'line 1', 'line 2', 'line 3']


async def test_a_callers_edit_of_old_lines_is_refused_and_the_run_goes_on(
    store: Store, run_id: str
) -> None:
    persistence = store.persistence(run_id)
    async with talk.iter(Say(3), state=Talk(), persistence=persistence) as run:
        await run.next()
        kept = run.state.lines.pop()
        with pytest.raises(LossyStateError, match='shorter'):
            await run.next()
        assert (await store.run(run_id)).status in ('ready', 'running')
        run.state.lines.append(kept)
        await run.next()

    assert texts(run.state) == lines(2)


async def test_a_node_of_the_callers_goes_on_with_the_loaded_list(
    store: Store, run_id: str
) -> None:
    async with talk.iter(Say(5), state=Talk(), persistence=store.persistence(run_id)) as run:
        await run.next()
        await run.next()
    persistence = store.persistence(run_id)
    persistence.set_graph_types(talk)
    snapshot = await persistence.load_next()
    assert snapshot is not None

    result = await talk.run(Say(1), state=snapshot.state, persistence=persistence)

    assert texts(result.state) == lines(4)


async def test_a_fork_has_the_list_as_it_was(store: Store, run_id: str) -> None:
    await talk.run(Say(9), state=Talk(), persistence=store.persistence(run_id))
    await store.fork(run_id, new_run_id=f'{run_id}/fork', at=4)

    result = await graphkeep.resume(talk, store.persistence(f'{run_id}/fork'))

    assert texts(result.state) == lines(10)


async def test_unchanged_lists_cost_no_write(store: Store, run_id: str) -> None:
    await talk.initialize(Say(0), store.persistence(run_id), state=Talk([Line('hello')]))
    calls = count_calls(store)

    await graphkeep.resume(talk, store.persistence(run_id))

    assert writes(calls) == {'claim': 1, 'append': 1}


async def test_a_step_writes_what_it_appended(store: Store, run_id: str) -> None:
    state = Talk([Line('x' * 1000) for _ in range(200)])
    await talk.run(Say(9), state=state, persistence=store.persistence(run_id))

    start, *steps = await store.snapshots(run_id)

    assert len(start.data) > 200_000
    assert all(len(step.data) < 300 for step in steps)


async def test_only_a_plain_list_may_be_append_only(store: Store, run_id: str) -> None:
    @dataclass
    class Odd:
        names: Annotated[dict[str, int], graphkeep.AppendOnly]

    @dataclass
    class Node(BaseNode[Odd, None, int]):
        async def run(self, ctx: GraphRunContext[Odd]) -> End[int]:
            return End(0)

    with pytest.raises(graphkeep.UnstorableTypeError, match=r'state\.names') as error:
        await Graph(nodes=(Node,)).run(Node(), state=Odd({}), persistence=store.persistence(run_id))
    assert error.value.path == 'state.names'
