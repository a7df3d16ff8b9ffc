"""The state of parallel steps: each field is stored once, and only what a step has changed is
settled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NotRequired

import pytest
from pydantic import PlainSerializer, PlainValidator
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append
from typing_extensions import TypedDict

import graphkeep
from graphkeep import AppendOnly, LossyStateError, StateConflictError, merge
from graphkeep.stores.memory import MemoryStore

COUNTED = Counter[str]()


def counted(what: str, value: str) -> str:
    COUNTED[what] += 1
    return value


@dataclass
class State:
    text: Annotated[
        str,
        PlainValidator(partial(counted, 'loaded'), json_schema_input_type=str),
        PlainSerializer(partial(counted, 'dumped'), return_type=str),
    ] = 'a long text'
    number: Annotated[int, merge.add] = 0
    other: int = 0
    lines: Annotated[list[str], AppendOnly] = field(default_factory=list[str])
    wrong: Annotated[int, lambda base, mine, committed: f'{mine}{committed}'] = 0


class Open(TypedDict):
    a: NotRequired[int]
    b: NotRequired[int]
    c: int
    d: NotRequired[int]


def mapped(act: Any, *, state_type: Any = State, maps: int = 1) -> Any:
    """A map whose steps do `act(state, item)`, so often one after the other."""
    g = GraphBuilder(state_type=state_type, input_type=list[int], output_type=list[int])

    async def work(ctx: StepContext[Any, None, int]) -> int:
        acting = act(ctx.state, ctx.inputs)
        if acting is not None:
            await acting
        return ctx.inputs

    before: Any = g.start_node
    for number in range(maps):
        step = g.step(work, node_id=f'work {number}')
        join = g.join(reduce_list_append, initial_factory=list[int], node_id=f'join {number}')
        g.add(g.edge_from(before).map().to(step), g.edge_from(step).to(join))
        before = join
    g.add(g.edge_from(before).to(g.end_node))
    return graphkeep.persist(g.build())


async def resumed_state(store: MemoryStore, kept: Any, live: Any) -> Any:
    """The state of the run as another process would load it: compared with the live one."""
    async with kept.iter_resumed(store.persistence('run')) as run:
        assert run.state == live
        return run.state


async def test_a_step_loads_and_dumps_once_what_it_does_not_change() -> None:
    def act(state: State, item: int) -> None:
        state.number += item

    async with MemoryStore() as store:
        kept, state = mapped(act), State()
        before = COUNTED.copy()
        await kept.run(state=state, inputs=list(range(50)), persistence=store.persistence('run'))
        assert state == State(number=sum(range(50)))
        done = COUNTED - before
        # Once each, and once more to prove that it comes back, as its own serializer may lose it.
        assert done['dumped'] <= 2 * 50 + 8
        assert done['loaded'] <= 2 * 50 + 8
        await resumed_state(store, kept, state)


async def test_fields_that_nobody_changed_stay_the_callers_objects() -> None:
    def act(state: State, item: int) -> None:
        state.number += item

    lines = ['one', 'two']
    state = State(lines=lines)
    await mapped(act).run(state=state, inputs=[1, 2, 3])
    assert state.number == 6
    assert state.lines is lines


async def test_append_only_lists_grow_by_what_each_step_added() -> None:
    def act(state: State, item: int) -> None:
        state.lines.append(f'line {item}')
        state.lines.append('end')

    async with MemoryStore() as store:
        kept, state = mapped(act, maps=3), State(lines=['first'])
        await kept.run(state=state, inputs=[1, 2, 3], persistence=store.persistence('run'))
        assert state.lines[0] == 'first'
        assert state.lines[1::2] == [f'line {number}' for number in (1, 2, 3)] * 3
        assert state.lines[2::2] == ['end'] * 9
        await resumed_state(store, kept, state)


async def test_an_append_only_list_that_a_parallel_step_has_edited_is_refused() -> None:
    def act(state: State, item: int) -> None:
        state.lines[0] = f'edited {item}'

    state = State(lines=['first'])
    with pytest.raises(LossyStateError, match=r'state\.lines'):
        await mapped(act).run(state=state, inputs=[1])
    assert state.lines == ['first']


async def test_keys_that_parallel_steps_add_and_remove_keep_the_declared_order() -> None:
    def act(state: Open, item: int) -> None:
        if item == 0:
            del state['b']
        elif item == 1:
            state['d'] = 4
        elif item == 2:
            state['a'] = 1
        else:
            state['c'] = 3

    async with MemoryStore() as store:
        kept = mapped(act, state_type=Open)
        state: Open = {'b': 2, 'c': 0}
        await kept.run(state=state, inputs=[0, 1, 2, 3], persistence=store.persistence('run'))
        assert state == {'a': 1, 'c': 3, 'd': 4}
        found = await resumed_state(store, kept, state)
        assert list(found) == ['a', 'c', 'd']


async def test_what_a_rule_made_is_checked_and_taken_back() -> None:
    def act(state: State, item: int) -> None:
        state.number += 1
        state.wrong += item

    async with MemoryStore() as store:
        kept, state = mapped(act), State()
        with pytest.raises(LossyStateError, match=r'state\.wrong'):
            await kept.run(state=state, inputs=[1, 2], persistence=store.persistence('run'))
        # What was settled before it stays, and is committed.
        assert state == State(number=1, wrong=1)
        run = await store.run('run')
        assert run.status == 'failed'


async def test_a_conflict_takes_back_its_step_and_nothing_else() -> None:
    def act(state: State, item: int) -> None:
        state.number += 1
        if item:
            state.other = item

    async with MemoryStore() as store:
        kept, state = mapped(act), State()
        with pytest.raises(StateConflictError, match=r'state\.other'):
            await kept.run(state=state, inputs=[0, 5, 0, 6], persistence=store.persistence('run'))
        assert state == State(number=3, other=5)


async def test_what_happens_to_a_copy_after_its_step_has_ended_is_not_of_the_step() -> None:
    late: list[asyncio.Task[None]] = []

    def act(state: State, item: int) -> None:
        async def later() -> None:
            state.other = 99
            state.lines.append('late')

        state.number += item
        late.append(asyncio.create_task(later()))

    async with MemoryStore() as store:
        kept, state = mapped(act), State()
        await kept.run(state=state, inputs=[1, 2], persistence=store.persistence('run'))
        await asyncio.gather(*late)
        assert state == State(number=3)
        await resumed_state(store, kept, state)
