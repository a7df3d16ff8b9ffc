"""What `persist` refuses, and what a run refuses: each names the step, and says what to do."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal, TypeVar

import pytest
from pydantic import BaseModel
from pydantic_graph import (
    BaseNode,
    GraphBuilder,
    StepContext,
    reduce_list_append,
    reduce_sum,
)

import graphkeep
from graphkeep import (
    GeneratedIdWarning,
    LossyStateError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    RunStatusError,
    Store,
    UnstorableTypeError,
)

T = TypeVar('T')


@dataclass
class State:
    count: int = 0


def builder(**types: Any) -> Any:
    given: dict[str, Any] = {
        'state_type': State,
        'input_type': Any,
        'output_type': Any,
        'auto_instrument': False,
    }
    return GraphBuilder(**{**given, **types})


def graph_of(*steps: Any, g: Any = None, **types: Any) -> Any:
    """The steps one after the other; functions are made steps."""
    g = builder(**types) if g is None else g
    made = [step if hasattr(step, 'id') else g.step(step) for step in steps]
    for one, two in zip((g.start_node, *made), (*made, g.end_node), strict=True):
        g.add(g.edge_from(one).to(two))
    return g.build()


async def same(ctx: StepContext[State, None, Any]) -> Any:
    return ctx.inputs


def refusal(graph: Any, **options: Any) -> str:
    with pytest.raises(UnstorableTypeError) as caught:
        graphkeep.persist(graph, **options)
    assert caught.value.path
    return str(caught.value)


# --- the types of steps' inputs -------------------------------------------------------------------


async def test_a_step_without_annotations_is_refused() -> None:
    async def silent(ctx):
        return ctx.inputs

    said = refusal(graph_of(silent))
    assert "'silent'" in said
    assert 'async def silent(ctx: StepContext[State, Deps, Inputs])' in said
    assert "persist(types={'silent': Inputs})" in said
    kept: Any = graphkeep.persist(graph_of(silent), types={'silent': list[int]})
    assert await kept.run(state=State(), inputs=[1]) == [1]


async def test_a_step_without_annotations_is_told_by_those_before_it() -> None:
    async def pair(ctx: StepContext[State, None, int]) -> tuple[int, str]:
        return ctx.inputs, 'x'

    async def silent(ctx):
        return repr(ctx.inputs)

    kept: Any = graphkeep.persist(graph_of(pair, silent))
    assert await kept.run(state=State(), inputs=1) == "(1, 'x')"


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    graph = graph_of(same)
    # Upstream resolves what it is given; what it cannot see any more we may not see either.
    same_as: Any = graph.nodes['same']
    said = refusal(with_annotation(same_as, 'StepContext[State, None, Nowhere]', graph))
    for word in ("'same'", '`Nowhere`', 'persist(namespace=', "persist(types={'same': Inputs})"):
        assert word in said
    graphkeep.persist(graph, namespace={'Nowhere': int})
    graphkeep.persist(graph, types={'same': int})


async def test_names_of_state_and_deps_need_not_resolve() -> None:
    graph = graph_of(same)
    with_annotation(graph.nodes['same'], 'StepContext[Nowhere, Neither, "int"]', graph)
    assert await graphkeep.persist(graph).run(state=State(), inputs=2) == 2


def with_annotation(step: Any, annotation: str, graph: Any) -> Any:
    """Have the step's function annotated as if its module were another one."""
    call = FunctionType(step.call.__code__, step.call.__globals__, 'same')
    call.__annotations__.update(ctx=annotation)
    step._call = call
    return graph


async def test_types_of_the_function_that_calls_persist_are_known() -> None:
    class Local(BaseModel):
        number: int

    g = builder()

    @g.step
    async def step(ctx: StepContext[State, None, Local]) -> int:
        return ctx.inputs.number

    g.add(g.edge_from(g.start_node).to(step), g.edge_from(step).to(g.end_node))
    kept: Any = graphkeep.persist(g.build())
    assert await kept.run(state=State(), inputs=Local(number=3)) == 3


class NotStorable:
    pass


@dataclass
class Half:
    number: int
    lock: threading.Lock = field(default_factory=threading.Lock)


@pytest.mark.parametrize(
    'type_', [NotStorable, Half, Callable[[], int], list[NotStorable], dict[str, Half]]
)
def test_inputs_that_cannot_be_stored_are_refused(type_: Any) -> None:
    async def step(ctx: StepContext[State, None, Any]) -> int:
        return 1

    step.__annotations__['ctx'] = StepContext[State, None, type_]
    said = refusal(graph_of(step))
    assert "The inputs of step 'step' cannot be stored" in said
    assert "persist(types={'step': …})" in said


@pytest.mark.parametrize('type_', [Iterable[int], Iterable[str], AsyncIterator[int]])
def test_an_iterable_as_inputs_is_refused(type_: Any) -> None:
    """It would load as something that can be read only once."""

    async def step(ctx: StepContext[State, None, Any]) -> int:
        return 1

    step.__annotations__['ctx'] = StepContext[State, None, type_]
    said = refusal(graph_of(step))
    assert "'step'" in said
    assert ('list[' if type_ != AsyncIterator[int] else 'straight from its step to a map') in said


@pytest.mark.parametrize('value', [NotStorable(), object(), (1, 2), {1: 2}, b'\xff', {1, 2}])
async def test_inputs_of_no_known_type_must_be_what_json_keeps(value: Any) -> None:
    runs: list[int] = []

    async def first(ctx: StepContext[State, None, int]) -> Any:
        return value

    async def second(ctx: StepContext[State, None, Any]) -> int:
        runs.append(1)
        return 1

    kept: Any = graphkeep.persist(graph_of(first, second))
    with pytest.raises((LossyStateError, UnstorableTypeError), match='second'):
        await kept.run(state=State(), inputs=1)
    assert not runs


@pytest.mark.parametrize('type_', [Any, object, T])
async def test_what_says_nothing_is_taken_from_the_steps_before(type_: Any) -> None:
    async def first(ctx: StepContext[State, None, int]) -> tuple[int, int]:
        return ctx.inputs, ctx.inputs

    async def second(ctx: StepContext[State, None, Any]) -> str:
        return repr(ctx.inputs)

    second.__annotations__['ctx'] = StepContext[State, None, type_]
    kept: Any = graphkeep.persist(graph_of(first, second))
    assert await kept.run(state=State(), inputs=1) == '(1, 1)'


class One(BaseModel):
    number: int


class Two(BaseModel):
    number: int


async def test_a_union_whose_members_look_the_same_is_found_out() -> None:
    """Reloaded as `Two`, a decision would take the other branch."""

    async def first(ctx: StepContext[State, None, int]) -> One:
        return One(number=1)

    async def second(ctx: StepContext[State, None, Two | One]) -> str:
        return type(ctx.inputs).__name__

    kept: Any = graphkeep.persist(graph_of(first, second))
    with pytest.raises(LossyStateError, match='second'):
        await kept.run(state=State(), inputs=1)


# --- what is not given ----------------------------------------------------------------------------


async def test_an_omitted_state_type_is_none() -> None:
    runs: list[int] = []

    async def step(ctx: StepContext[None, None, int]) -> int:
        runs.append(1)
        return 1

    g = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)
    kept: Any = graphkeep.persist(graph_of(step, g=g))
    assert await kept.run(inputs=1) == 1
    runs.clear()
    with pytest.raises((LossyStateError, UnstorableTypeError), match='state'):
        await kept.run(state=State(), inputs=1)
    assert not runs


async def test_an_omitted_output_type_is_none() -> None:
    async def step(ctx: StepContext[State, None, int]) -> int:
        return 5

    g = GraphBuilder(state_type=State, input_type=int, auto_instrument=False)
    kept: Any = graphkeep.persist(graph_of(step, g=g))
    with pytest.raises((LossyStateError, UnstorableTypeError), match='output'):
        await kept.run(state=State(), inputs=1)


@pytest.mark.parametrize('which', ['state_type', 'output_type'])
def test_state_and_output_that_cannot_be_stored_are_refused(which: str) -> None:
    said = refusal(graph_of(same, **{which: NotStorable}))
    assert which.removesuffix('_type') in said


def test_a_join_whose_result_is_of_no_known_type_is_taken_as_json() -> None:
    """A reducer of two arguments is repeated from its items: what it makes need not be stored."""
    g = builder()

    @g.step
    async def numbers(ctx: StepContext[State, None, int]) -> list[int]:
        return [1]

    @g.step
    async def work(ctx: StepContext[State, None, int]) -> int:
        return 1

    @g.step
    async def end(ctx: StepContext[State, None, Any]) -> int:
        return 1

    def reducer(current: Any, inputs: Any) -> Any:
        return inputs

    all_ = g.join(reducer, initial_factory=NotStorable, node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(end),
        g.edge_from(end).to(g.end_node),
    )
    graphkeep.persist(g.build())


# --- what a run brings ----------------------------------------------------------------------------


def mapped(step: Any, g: Any = None, *, through: Any = None) -> Any:
    g = builder(output_type=list[Any]) if g is None else g
    first = step if hasattr(step, 'id') else g.step(step)
    work = g.step(same, node_id='work')
    all_ = g.join(reduce_list_append, initial_factory=list[Any], node_id='all')
    edge = g.edge_from(first)
    if through is not None:
        edge = edge.transform(through)
    g.add(
        g.edge_from(g.start_node).to(first),
        edge.map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


@pytest.mark.parametrize('value', [7, None, 1.5, State()])
async def test_a_map_over_what_cannot_be_mapped(value: Any, store: Store, run_id: str) -> None:
    async def first(ctx: StepContext[State, None, int]) -> Any:
        ctx.state.count += 1
        return value

    state = State()
    kept: Any = graphkeep.persist(mapped(first))
    with pytest.raises(RuntimeError, match='Cannot map non-iterable value'):
        await kept.run(state=state, inputs=1, persistence=store.persistence(run_id))
    run = await store.run(run_id)
    assert run.status == 'failed'
    assert run.error is not None
    assert run.error['node'] == 'first'
    assert state == State()


@pytest.mark.parametrize('value', ['abc', (1, 2), {'a': 1}, range(3), {1, 2}])
async def test_a_map_over_any_iterable(value: Any) -> None:
    async def first(ctx: StepContext[State, None, int]) -> Any:
        return value

    kept: Any = graphkeep.persist(mapped(first))
    assert await kept.run(state=State(), inputs=1) == list(value)


async def test_a_decision_without_a_matching_branch(store: Store, run_id: str) -> None:
    g = builder(output_type=str)

    @g.step
    async def first(ctx: StepContext[State, None, int]) -> str:
        ctx.state.count += 1
        return 'c'

    @g.step
    async def second(ctx: StepContext[State, None, str]) -> str:
        return ctx.inputs

    a, b = (g.match(each) for each in (Literal['a'], Literal['b']))
    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(
            g.decision(node_id='which').branch(a.to(second)).branch(b.to(second))
        ),
        g.edge_from(second).to(g.end_node),
    )
    state = State()
    kept: Any = graphkeep.persist(g.build())
    with pytest.raises(RuntimeError, match='No branch matched inputs c'):
        await kept.run(state=state, inputs=1, persistence=store.persistence(run_id))
    assert (await store.run(run_id)).status == 'failed'
    assert state == State()


async def each(ctx: StepContext[State, None, int]) -> AsyncIterator[int]:
    for number in range(3):
        yield number


def stream_through_a_transform() -> Any:
    g = builder(output_type=list[Any])
    return mapped(g.stream(each), g, through=lambda ctx: ctx.inputs)


def stream_to_a_step() -> Any:
    g = builder()
    return graph_of(g.stream(each), same, g=g)


def stream_to_a_broadcast() -> Any:
    g = builder()
    first = g.stream(each)
    one, two = g.step(same, node_id='one'), g.step(same, node_id='two')
    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(one, two),
        g.edge_from(one, two).to(g.end_node),
    )
    return g.build()


def stream_to_a_decision() -> Any:
    g = builder()
    first, one = g.stream(each), g.step(same, node_id='one')
    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(g.decision().branch(g.match(object).to(one))),
        g.edge_from(one).to(g.end_node),
    )
    return g.build()


def stream_to_the_end() -> Any:
    g = builder()
    return graph_of(g.stream(each), g=g)


@pytest.mark.parametrize(
    'build',
    [
        stream_through_a_transform,
        stream_to_a_step,
        stream_to_a_broadcast,
        stream_to_a_decision,
        stream_to_the_end,
    ],
)
async def test_a_stream_that_does_not_go_straight_to_its_map(build: Callable[[], Any]) -> None:
    with pytest.raises(UnstorableTypeError, match='straight from its step to a map'):
        await graphkeep.persist(build()).run(state=State(), inputs=1)


async def test_a_stream_with_a_label_goes_straight() -> None:
    g = builder(output_type=list[int])
    first, work = g.stream(each), g.step(same, node_id='work')
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).label('numbers').map().label('one').to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    assert sorted(await kept.run(state=State(), inputs=1)) == [0, 1, 2]


@dataclass
class Stray(BaseNode[State, None, int]):
    async def run(self, ctx: Any) -> Any:
        return 5


async def test_a_node_that_returns_no_node(store: Store, run_id: str) -> None:
    g = builder(output_type=int)

    @g.step
    async def first(ctx: StepContext[State, None, int]) -> Stray:
        return Stray()

    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(Stray),
        g.edge_from(g.step(same, node_id='unused')).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build(validate_graph_structure=False))
    with pytest.raises(TypeError, match='must return a node or End, got 5'):
        await kept.run(state=State(), inputs=1, persistence=store.persistence(run_id))
    assert (await store.run(run_id)).status == 'failed'


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('options', 'says'),
    [
        ({'types': {'sane': int}}, r"types=…\) names 'sane'"),
        ({'joins': {'same': int}}, r"joins=…\) names 'same'"),
        ({'aliases': {'old': 'sane'}}, r"aliases=…\) maps 'old' to 'sane'"),
        ({'max_parallel': 0}, 'max_parallel must be at least 1, got 0'),
        ({'max_parallel': -1}, 'max_parallel must be at least 1, got -1'),
    ],
)
def test_options_that_name_nothing(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        graphkeep.persist(graph_of(same), **options)


@pytest.mark.parametrize('most', [1, 2, 5])
async def test_no_more_steps_run_at_once_than_allowed(most: int) -> None:
    running: list[int] = []
    widest = 0

    async def first(ctx: StepContext[State, None, int]) -> list[int]:
        return list(range(5))

    g = builder(output_type=int)

    @g.step
    async def work(ctx: StepContext[State, None, int]) -> int:
        nonlocal widest
        running.append(1)
        widest = max(widest, len(running))
        await asyncio.sleep(0.001)
        running.pop()
        return 1

    total = g.join(reduce_sum, initial=0, node_id='total')
    numbers = g.step(first)
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(total),
        g.edge_from(total).to(g.end_node),
    )
    kept = graphkeep.persist(g.build(), max_parallel=most)
    assert await kept.run(state=State(), inputs=1) == 5
    assert widest == most


@pytest.mark.parametrize('named', [True, False])
def test_joins_without_an_id_of_their_own_are_warned_of(named: bool) -> None:
    g = builder(output_type=int)
    one, two, go = (g.step(same, node_id=name) for name in ('one', 'two', 'go'))
    total = g.join(reduce_sum, initial=0, **({'node_id': 'total'} if named else {}))
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(one, two),
        g.edge_from(one, two).to(total),
        g.edge_from(total).to(g.end_node),
    )
    graph = g.build()
    if named:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            graphkeep.persist(graph)
        return
    with pytest.warns(GeneratedIdWarning, match='reduce_sum') as caught:
        graphkeep.persist(graph)
    assert 'node_id=' in str(caught[0].message)
    assert caught[0].filename == __file__, 'it points to who called persist'


# --- the run itself -------------------------------------------------------------------------------


class Switch:
    """A graph of one step that counts, and does what it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.fails = False
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

        async def step(ctx: StepContext[State, None, int]) -> int:
            self.runs += 1
            ctx.state.count += 1
            self.begun.set()
            await self.go_on.wait()
            if self.fails:
                raise ValueError('told to')
            return ctx.inputs + self.runs

        self.kept: Any = graphkeep.persist(graph_of(step, output_type=int))

    async def run(self, store: Store, run_id: str, if_exists: Any = 'raise') -> int:
        persistence = store.persistence(run_id, if_exists=if_exists)
        return await self.kept.run(state=State(), inputs=10, persistence=persistence)


async def test_a_run_that_is_done(store: Store, run_id: str) -> None:
    switch = Switch()
    assert await switch.run(store, run_id) == 11
    with pytest.raises(RunExistsError, match=run_id):
        await switch.run(store, run_id)
    assert await switch.run(store, run_id, 'resume') == 11
    assert await switch.kept.resume(store.persistence(run_id)) == 11
    assert switch.runs == 1
    assert (await store.run(run_id)).seq == 1


async def test_a_run_that_failed(store: Store, run_id: str) -> None:
    switch = Switch()
    switch.fails = True
    with pytest.raises(ValueError, match='told to'):
        await switch.run(store, run_id)
    with pytest.raises(RunExistsError):
        await switch.run(store, run_id)
    assert switch.runs == 1
    assert (await store.run(run_id)).status == 'failed'
    switch.fails = False
    assert await switch.run(store, run_id, 'resume') == 12
    document = await store.document(run_id)
    assert switch.kept._plan.state.decode(document.state) == State(1)


async def test_a_run_that_was_cancelled(store: Store, run_id: str) -> None:
    switch = Switch()
    switch.fails = True
    with pytest.raises(ValueError, match='told to'):
        await switch.run(store, run_id)
    await store.cancel(run_id)
    with pytest.raises(RunExistsError):
        await switch.run(store, run_id)
    for go_on in (
        lambda: switch.run(store, run_id, 'resume'),
        lambda: switch.kept.resume(store.persistence(run_id)),
        lambda: graphkeep.resume(switch.kept, store.persistence(run_id)),
    ):
        with pytest.raises(RunStatusError) as caught:
            await go_on()
        assert caught.value.status == 'cancelled'
    assert switch.runs == 1


async def test_a_run_that_is_running(store: Store, run_id: str) -> None:
    """Also in the same process: nobody takes the step away that runs."""
    switch = Switch()
    switch.go_on.clear()
    task = asyncio.create_task(switch.run(store, run_id))
    await switch.begun.wait()
    with pytest.raises(RunExistsError):
        await switch.run(store, run_id)
    with pytest.raises(RunBusyError):
        await switch.run(store, run_id, 'resume')
    with pytest.raises(RunBusyError):
        await switch.kept.resume(store.persistence(run_id))
    switch.go_on.set()
    assert await task == 11
    assert switch.runs == 1


async def test_a_run_that_is_cancelled_while_it_runs(store: Store, run_id: str) -> None:
    switch = Switch()
    switch.go_on.clear()
    task = asyncio.create_task(switch.run(store, run_id))
    await switch.begun.wait()
    await store.cancel(run_id)
    switch.go_on.set()
    with pytest.raises(graphkeep.LeaseLostError):
        await task
    run = await store.run(run_id)
    assert (run.status, run.seq) == ('cancelled', 0)


async def test_a_run_that_is_not_there(store: Store, run_id: str) -> None:
    switch = Switch()
    for resume in (switch.kept.resume, lambda p: graphkeep.resume(switch.kept, p)):
        with pytest.raises(RunNotFoundError):
            await resume(store.persistence(run_id))
    assert await switch.run(store, run_id, 'resume') == 11


async def test_a_fork_from_the_end_has_nothing_to_go_on_with(store: Store, run_id: str) -> None:
    switch = Switch()
    await switch.run(store, run_id)
    await store.fork(run_id, new_run_id=f'{run_id}-2')
    with pytest.raises(RunStatusError, match='forked from the end'):
        await switch.kept.resume(store.persistence(f'{run_id}-2'))
    await store.fork(run_id, new_run_id=f'{run_id}-3', at=0)
    assert await switch.kept.resume(store.persistence(f'{run_id}-3')) == 12


async def test_what_is_for_other_graphs_is_refused(store: Store, run_id: str) -> None:
    switch = Switch()
    resume: Any = graphkeep.resume
    with pytest.raises(TypeError, match='start= and state='):
        await resume(switch.kept, store.persistence(run_id), state=State())
    with pytest.raises(TypeError, match=r'graphkeep\.persist\(graph\)'):
        await resume(switch.kept.graph, store.persistence(run_id))
