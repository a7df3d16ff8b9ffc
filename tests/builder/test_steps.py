"""A step is a transaction: detached inputs, a state of its own, all or nothing of what it did."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_graph import (
    GraphBuilder,
    ReduceFirstValue,
    ReducerContext,
    StepContext,
    reduce_list_append,
    reduce_sum,
)

import graphkeep
from graphkeep import AppendOnly, StateConflictError, merge, once
from graphkeep.codec import Codec


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)
    count: int = 0


Ctx = StepContext[Log, Any, Any]


@pytest.fixture
async def store() -> AsyncIterator[graphkeep.Store]:
    async with graphkeep.open_store('memory://') as store:
        yield store


def builder(**types: Any) -> Any:
    given = {'state_type': Log, 'input_type': int, 'output_type': Any, 'auto_instrument': False}
    return GraphBuilder(**{**given, **types})


async def turns(number: int = 5) -> None:
    """Wait until others have had their turns."""
    for _ in range(number):
        await asyncio.sleep(0)


def chain(g: Any, *steps: Any) -> Any:
    g.add(g.edge_from(g.start_node).to(steps[0]))
    for one, two in zip(steps, (*steps[1:], g.end_node), strict=True):
        g.add(g.edge_from(one).to(two))
    return g.build()


_FROM_THE_LAST = importlib.util.find_spec('pydantic_graph.persistence') is not None


def in_order(*steps: Any) -> Any:
    """The branches of a broadcast that start in this order: 1.x begins with the last."""
    return steps[::-1] if _FROM_THE_LAST else steps


def parallel(g: Any, *steps: Any, then: Any = None) -> Any:
    """The steps side by side, and a join."""

    @g.step
    async def go(ctx: StepContext[Any, Any, int]) -> int:
        return ctx.inputs

    all_ = g.join(reduce_list_append, initial_factory=list[Any], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(*in_order(*steps)),
        g.edge_from(*steps).to(all_),
    )
    g.add(g.edge_from(all_).to(g.end_node) if then is None else g.edge_from(all_).to(then))
    if then is not None:
        g.add(g.edge_from(then).to(g.end_node))
    return g.build()


# --- inputs are detached --------------------------------------------------------------------------


async def test_what_a_step_returned_of_the_state_does_not_change_with_it() -> None:
    g = builder(output_type=list[str])

    @g.step
    async def give(ctx: StepContext[Log, None, int]) -> list[str]:
        ctx.state.lines.append('one')
        return ctx.state.lines

    @g.step
    async def change(ctx: StepContext[Log, None, list[str]]) -> list[str]:
        ctx.state.lines.append('two')
        ctx.inputs.append('mine')
        return ctx.inputs

    state = Log()
    output = await graphkeep.persist(chain(g, give, change)).run(state=state, inputs=0)
    assert output == ['one', 'mine']
    assert state.lines == ['one', 'two']


async def test_parallel_steps_do_not_share_their_inputs() -> None:
    g = builder(input_type=int, output_type=list[list[int]])

    @g.step
    async def give(ctx: StepContext[Log, None, int]) -> list[int]:
        return []

    async def add(ctx: StepContext[Log, None, list[int]]) -> list[int]:
        await turns(1)
        ctx.inputs.append(len(ctx.inputs))
        return ctx.inputs

    one, two = g.step(add, node_id='one'), g.step(add, node_id='two')
    all_ = g.join(reduce_list_append, initial_factory=list[list[int]], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(give),
        g.edge_from(give).to(one, two),
        g.edge_from(one, two).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    assert await graphkeep.persist(g.build()).run(state=Log(), inputs=0) == [[0], [0]]


async def test_one_object_in_three_items_is_three_objects() -> None:
    g = builder(output_type=list[list[int]])

    @g.step
    async def give(ctx: StepContext[Log, None, int]) -> list[list[int]]:
        return [[0]] * 3

    @g.step
    async def add(ctx: StepContext[Log, None, list[int]]) -> list[int]:
        ctx.inputs.append(1)
        return ctx.inputs

    all_ = g.join(reduce_list_append, initial_factory=list[list[int]], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(give),
        g.edge_from(give).map().to(add),
        g.edge_from(add).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    assert await graphkeep.persist(g.build()).run(state=Log(), inputs=0) == [[0, 1]] * 3


async def test_what_waits_at_a_join_does_not_change_with_the_state() -> None:
    g = builder(output_type=list[list[str]])

    @g.step
    async def first(ctx: StepContext[Log, None, int]) -> list[str]:
        ctx.state.lines.append('first')
        return ctx.state.lines

    @g.step
    async def second(ctx: StepContext[Log, None, int]) -> list[str]:
        await turns()
        ctx.state.lines.append('second')
        return ctx.state.lines

    kept: Any = graphkeep.persist(parallel(g, first, second))
    state = Log()
    assert await kept.run(state=state, inputs=0) == [['first'], ['first', 'second']]
    assert state.lines == ['first', 'second']


# --- the state ------------------------------------------------------------------------------------


async def test_a_step_that_is_alone_works_on_the_callers_object() -> None:
    g, state = builder(), Log()

    @g.step
    async def alone(ctx: StepContext[Log, None, int]) -> int:
        assert ctx.state is state
        return 1

    @g.step
    async def beside(ctx: StepContext[Log, None, int]) -> int:
        assert ctx.state is not state
        assert ctx.state == state
        return 1

    @g.step
    async def other(ctx: StepContext[Log, None, int]) -> int:
        return 1

    @g.step
    async def last(ctx: StepContext[Log, None, list[Any]]) -> int:
        assert ctx.state is state
        return len(ctx.inputs)

    kept: Any = graphkeep.persist(parallel(g, beside, other, then=last))
    assert await kept.run(state=state, inputs=1) == 2
    assert await graphkeep.persist(chain(builder(), alone)).run(state=state, inputs=1) == 1


@pytest.mark.parametrize('touches', [False, True])
async def test_a_step_that_never_touches_the_state_makes_no_copy(
    touches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = builder(output_type=int)

    @g.step
    async def numbers(ctx: StepContext[Log, None, int]) -> list[int]:
        return list(range(20))

    @g.step
    async def work(ctx: StepContext[Log, None, int]) -> int:
        await turns(1)
        return ctx.inputs + (ctx.state.count if touches else 0)

    total = g.join(reduce_sum, initial=0, node_id='total')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(total),
        g.edge_from(total).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    decode, decoded = Codec.decode, Counter[str]()

    def counted(self: Codec[Any], data: Any) -> Any:
        decoded['state'] += self is kept._plan.state
        return decode(self, data)

    monkeypatch.setattr(Codec, 'decode', counted)
    assert await kept.run(state=Log(), inputs=0) == 190
    assert decoded['state'] == (20 if touches else 0)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)

    lines: list[str] = []
    count: int = 0


@dataclass(frozen=True)
class FrozenLog:
    lines: list[str] = field(default_factory=list)
    count: int = 0


@pytest.mark.parametrize('cls', [Log, Frozen, FrozenLog])
@pytest.mark.parametrize('beside', [False, True])
async def test_a_step_that_fails_changes_nothing(
    cls: Any, beside: bool, store: graphkeep.Store
) -> None:
    g, state = builder(state_type=cls), cls(lines=['before'])

    @g.step
    async def fails(ctx: StepContext[Any, None, int]) -> int:
        ctx.state.lines.append('half')
        object.__setattr__(ctx.state, 'count', 7)
        raise ValueError('no')

    @g.step
    async def waits(ctx: StepContext[Any, None, int]) -> int:
        ctx.state.lines.append('half as well')
        await asyncio.Event().wait()
        return 1

    kept: Any = graphkeep.persist(parallel(g, waits, fails) if beside else chain(g, fails))
    with pytest.raises(ValueError, match='no'):
        await kept.run(state=state, inputs=0, persistence=store.persistence('run'))
    assert state == cls(lines=['before'])
    assert kept._plan.state.decode((await store.document('run')).state) == state
    run = await store.run('run')
    assert run.status == 'failed'
    assert run.error is not None
    assert run.error['node'] == 'fails'


@pytest.mark.parametrize('beside', [False, True])
async def test_a_step_that_is_cancelled_changes_nothing(
    beside: bool, store: graphkeep.Store
) -> None:
    g, state, begun = builder(), Log(['before']), asyncio.Event()

    @g.step
    async def waits(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.lines.append('half')
        begun.set()
        await asyncio.Event().wait()
        return 1

    @g.step
    async def other(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.count += 1
        return 1

    kept: Any = graphkeep.persist(parallel(g, waits, other) if beside else chain(g, waits))
    task = asyncio.create_task(
        kept.run(state=state, inputs=0, persistence=store.persistence('run'))
    )
    await begun.wait()
    await turns(20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert state == Log(['before'], count=int(beside))
    assert (await store.run('run')).status == 'ready'


async def test_half_a_step_is_nobodys_edit(store: graphkeep.Store) -> None:
    """Who watches a run may lose patience with one step, and go on."""
    g, state, slow = builder(), Log(), [True]

    @g.step
    async def patient(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.lines.append('once')
        if slow.pop():
            slow.append(False)
            await asyncio.Event().wait()
        return 1

    kept: Any = graphkeep.persist(chain(g, patient))
    async with kept.iter(state=state, inputs=0, persistence=store.persistence('run')) as run:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await run.next()
        assert state == Log()
        async for _ in run:
            pass
    assert state == Log(['once'])


async def test_frozen_state_takes_what_parallel_steps_did() -> None:
    g, state = builder(state_type=Frozen), Frozen()

    async def add(ctx: StepContext[Frozen, None, int]) -> int:
        ctx.state.lines.append('line')
        return 1

    kept: Any = graphkeep.persist(
        parallel(g, g.step(add, node_id='one'), g.step(add, node_id='two'))
    )
    await kept.run(state=state, inputs=0)
    assert state == Frozen(lines=['line', 'line'])


# --- settling -------------------------------------------------------------------------------------


def runs_noted(g: Any, runs: Counter[str], name: str, before: int, error: list[bool]) -> Any:
    """A step that notes that it ran, waits, changes the state, and may raise."""

    async def run(ctx: StepContext[Log, None, int]) -> int:
        runs[name] += 1
        await turns(before)
        ctx.state.lines.append(name)
        if error and error[0]:
            raise ValueError(name)
        return 1

    return g.step(run, node_id=name)


async def test_siblings_that_settled_before_a_failure_are_committed(
    store: graphkeep.Store,
) -> None:
    g, runs, fails = builder(output_type=list[int]), Counter[str](), [True]
    good = runs_noted(g, runs, 'good', 0, [])
    bad = runs_noted(g, runs, 'bad', 20, fails)
    kept: Any = graphkeep.persist(parallel(g, good, bad))
    with pytest.raises(ValueError, match='bad'):
        await kept.run(state=Log(), inputs=0, persistence=store.persistence('run'))
    assert kept._plan.state.decode((await store.document('run')).state) == Log(['good'])
    fails[0] = False
    assert await kept.resume(store.persistence('run')) == [1, 1]
    assert runs == {'good': 1, 'bad': 2}
    assert kept._plan.state.decode((await store.document('run')).state) == Log(['good', 'bad'])


@pytest.mark.parametrize('first', ['good', 'bad'])
async def test_what_ended_in_the_same_turn_as_a_failure_is_committed(
    first: str, store: graphkeep.Store
) -> None:
    """Whether it ended before the one that failed or after it."""
    g, runs, fails = builder(output_type=list[int]), Counter[str](), [True]
    good = runs_noted(g, runs, 'good', 3, [])
    bad = runs_noted(g, runs, 'bad', 3, fails)
    kept: Any = graphkeep.persist(parallel(g, *((good, bad) if first == 'good' else (bad, good))))
    with pytest.raises(ValueError, match='bad'):
        await kept.run(state=Log(), inputs=0, persistence=store.persistence('run'))
    committed = kept._plan.state.decode((await store.document('run')).state)
    assert committed == Log(['good'])
    fails[0] = False
    assert await kept.resume(store.persistence('run')) == [1, 1]
    assert runs == {'good': 1, 'bad': 2}
    final = kept._plan.state.decode((await store.document('run')).state)
    assert sorted(final.lines) == ['bad', 'good']


@pytest.mark.parametrize('where', ['transform', 'decision', 'reducer', 'reducer with a context'])
async def test_what_follows_a_step_belongs_to_it(where: str, store: graphkeep.Store) -> None:
    """An error there takes the step back, and a resume runs the step again."""
    g, runs, fails = builder(output_type=int), Counter[str](), [True]
    step = runs_noted(g, runs, 'step', 0, [])
    aside = runs_noted(g, runs, 'aside', 0, [])

    def check(value: int) -> int:
        if fails[0]:
            raise ValueError(where)
        return value

    def transform(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.count += 1
        return check(ctx.inputs)

    def reducer(current: int, inputs: int) -> int:
        return current + check(inputs)

    def reducer_with_a_context(ctx: ReducerContext[Log, None], current: int, inputs: int) -> int:
        ctx.state.count += 1
        return current + check(inputs)

    reducers: dict[str, Any] = {
        'reducer': reducer,
        'reducer with a context': reducer_with_a_context,
    }
    total = g.join(reducers.get(where, reduce_sum), initial=0, node_id='total')

    @g.step
    async def go(ctx: StepContext[Log, None, int]) -> int:
        return ctx.inputs

    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(*in_order(step, aside)),
        g.edge_from(aside).to(total),
        g.edge_from(total).to(g.end_node),
    )
    if where == 'transform':
        g.add(g.edge_from(step).transform(transform).to(total))
    elif where == 'decision':
        g.add(
            g.edge_from(step).to(
                g.decision(node_id='which')
                .branch(g.match(int, matches=lambda n: check(n) > 5).to(total))
                .branch(g.match(int).to(total))
            )
        )
    else:
        g.add(g.edge_from(step).to(total))
    kept: Any = graphkeep.persist(g.build())
    with pytest.raises(ValueError, match=where):
        await kept.run(state=Log(), inputs=0, persistence=store.persistence('run'))
    run = await store.run('run')
    assert run.error is not None
    assert run.error['node'] == 'step'
    assert kept._plan.state.decode((await store.document('run')).state).count == 0
    fails[0] = False
    assert await kept.resume(store.persistence('run')) == 2
    final = kept._plan.state.decode((await store.document('run')).state)
    assert sorted(final.lines) == ['aside', 'step']
    assert final.count == {'transform': 1, 'reducer with a context': 2}.get(where, 0)


# --- cancelled siblings ---------------------------------------------------------------------------


@pytest.mark.parametrize('late', ['returns', 'raises', 'calls once'])
async def test_cancelled_siblings_are_awaited_and_what_they_still_do_is_ignored(
    late: str, store: graphkeep.Store
) -> None:
    g, ended, kept_late = builder(output_type=int), list[str](), list[str]()

    @g.step
    async def quick(ctx: StepContext[Log, None, int]) -> int:
        await turns(3)
        return 1

    @g.step
    async def slow(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.lines.append('slow')
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await turns()
            if late == 'raises':
                raise ValueError('late') from None
            if late == 'calls once':
                kept_late.append(await once('late', lambda: 'value'))
            return 2
        finally:
            ended.append('slow')
        return 0

    @g.step
    async def after(ctx: StepContext[Log, None, int]) -> int:
        assert ended == ['slow'], 'it still runs'
        return ctx.inputs

    race = g.join(ReduceFirstValue[int](), initial=0, node_id='race')

    @g.step
    async def go(ctx: StepContext[Log, None, int]) -> int:
        return ctx.inputs

    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(quick, slow),
        g.edge_from(quick, slow).to(race),
        g.edge_from(race).to(after),
        g.edge_from(after).to(g.end_node),
    )
    state = Log()
    kept: Any = graphkeep.persist(g.build())
    async with asyncio.timeout(5):
        output = await kept.run(state=state, inputs=0, persistence=store.persistence('run'))
    assert output == 1
    assert state == Log()
    assert not kept_late
    assert 'once' not in {snapshot.event for snapshot in await store.snapshots('run')}


@pytest.mark.parametrize('how', ['the end', 'a failure'])
async def test_once_in_the_cleanup_of_a_step_that_is_stopped_keeps_nobody_waiting(
    how: str, store: graphkeep.Store
) -> None:
    g = builder(output_type=int)

    @g.step
    async def quick(ctx: StepContext[Log, None, int]) -> int:
        await turns(3)
        if how == 'a failure':
            raise ValueError(how)
        return 1

    @g.step
    async def slow(ctx: StepContext[Log, None, int]) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await once('late', lambda: 1)
        return 1

    @g.step
    async def go(ctx: StepContext[Log, None, int]) -> int:
        return 0

    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(quick, slow),
        g.edge_from(quick, slow).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    async with asyncio.timeout(5):
        if how == 'the end':
            assert await kept.run(state=Log(), inputs=0, persistence=store.persistence('run')) == 1
        else:
            with pytest.raises(ValueError, match=how):
                await kept.run(state=Log(), inputs=0, persistence=store.persistence('run'))
    assert (await store.run('run')).status == ('done' if how == 'the end' else 'failed')


# --- parallel writers -----------------------------------------------------------------------------


class Color(Enum):
    RED = 'red'
    BLUE = 'blue'


@dataclass
class Point:
    x: int = 0
    y: int = 0


class Model(BaseModel):
    name: str = ''
    tags: list[str] = []


@dataclass
class Fields:
    number: int = 10
    ratio: float = 0.0
    exact: Decimal = Decimal(0)
    added: Annotated[int, merge.add] = 10
    most: Annotated[int, merge.maximum] = 10
    least: Annotated[int, merge.minimum] = 10
    final: Annotated[str, merge.last] = ''
    text: str = ''
    story: Annotated[str, merge.append] = '.'
    raw: bytes = b''
    pair: tuple[int, int] = (0, 0)
    flag: bool = False
    color: Color | None = None
    words: list[str] = field(default_factory=lambda: ['base'])
    kept: Annotated[list[str], AppendOnly] = field(default_factory=lambda: ['base'])
    queue: deque[str] = field(default_factory=lambda: deque(['base']))
    points: list[Point] = field(default_factory=lambda: [Point(), Point()])
    members: set[str] = field(default_factory=lambda: {'base'})
    fixed: frozenset[str] = frozenset(('base',))
    by_name: dict[str, int] = field(default_factory=lambda: {'base': 1})
    counted: dict[str, Annotated[int, merge.add]] = field(default_factory=lambda: {'base': 1})
    point: Point = field(default_factory=Point)
    model: Model = field(default_factory=Model)
    anything: Any = None


Write = Callable[[Fields, str], None]
"""Changes a field, as the step of this name."""


def _set(name: str, value: Any) -> Write:
    return lambda state, _: setattr(state, name, value)


def _add(name: str, value: Any) -> Write:
    return lambda state, _: setattr(state, name, getattr(state, name) + value)


def _do(change: Callable[[Any, str], Any]) -> Write:
    def write(state: Fields, step: str) -> None:
        change(state, step)

    return write


KINDS: dict[str, dict[str, Write]] = {
    'number': {'add': _add('number', 1), 'set': _set('number', 5)},
    'ratio': {'add': _add('ratio', 0.5), 'set': _set('ratio', 2.0)},
    'exact': {'add': _add('exact', Decimal('0.1')), 'set': _set('exact', Decimal(7))},
    'added': {'one': _add('added', 1), 'five': _add('added', 5), 'less': _add('added', -3)},
    'most': {'up': _set('most', 12), 'further': _set('most', 15), 'down': _set('most', 3)},
    'least': {'up': _set('least', 12), 'down': _set('least', 3), 'further': _set('least', 1)},
    'final': {'a': _set('final', 'a'), 'b': _set('final', 'b')},
    'text': {'add': _add('text', 'x'), 'set': _set('text', 'y')},
    'story': {'a': _add('story', 'a'), 'b': _add('story', 'b'), 'new': _set('story', 'new')},
    'raw': {'add': _add('raw', b'x'), 'set': _set('raw', b'y')},
    'pair': {'one': _set('pair', (1, 0)), 'two': _set('pair', (0, 1))},
    'flag': {'on': _set('flag', True)},
    'color': {'red': _set('color', Color.RED), 'blue': _set('color', Color.BLUE)},
    'words': {
        'append': _do(lambda s, step: s.words.append(step)),
        'more': _do(lambda s, step: s.words.extend((step, 'more'))),
        'insert': _do(lambda s, step: s.words.insert(0, step)),
        'clear': _do(lambda s, _: s.words.clear()),
        'replace': _do(lambda s, step: setattr(s, 'words', [step])),
    },
    'kept': {'append': _do(lambda s, step: s.kept.append(step))},
    'queue': {'append': _do(lambda s, step: s.queue.append(step))},
    'points': {
        'first': _do(lambda s, _: setattr(s.points[0], 'x', 1)),
        'second': _do(lambda s, _: setattr(s.points[1], 'x', 1)),
        'append': _do(lambda s, _: s.points.append(Point(9, 9))),
    },
    'members': {
        'add': _do(lambda s, step: s.members.add(step)),
        'remove': _do(lambda s, _: s.members.discard('base')),
    },
    'fixed': {
        'add': _do(lambda s, step: setattr(s, 'fixed', s.fixed | {step})),
        'remove': _do(lambda s, _: setattr(s, 'fixed', s.fixed - {'base'})),
    },
    'by_name': {
        'own': _do(lambda s, step: s.by_name.update({step: 1})),
        'same': _do(lambda s, _: s.by_name.update({'base': s.by_name.get('base', 0) + 1})),
        'delete': _do(lambda s, _: s.by_name.pop('base')),
    },
    'counted': {
        'own': _do(lambda s, step: s.counted.update({step: 1})),
        'same': _do(lambda s, _: s.counted.update({'base': s.counted['base'] + 1})),
        'new': _do(lambda s, _: s.counted.update({'new': s.counted.get('new', 0) + 2})),
        'delete': _do(lambda s, _: s.counted.pop('base')),
    },
    'point': {
        'x': _do(lambda s, _: setattr(s.point, 'x', 1)),
        'y': _do(lambda s, _: setattr(s.point, 'y', 2)),
        'new': _do(lambda s, _: setattr(s, 'point', Point(3, 3))),
    },
    'model': {
        'name': _do(lambda s, step: setattr(s.model, 'name', step)),
        'tag': _do(lambda s, step: s.model.tags.append(step)),
    },
    'anything': {'one': _set('anything', {'a': 1}), 'two': _set('anything', [2])},
}

MERGED: dict[tuple[str, str, str], Any] = {
    ('flag', 'on', 'on'): True,
    ('color', 'red', 'red'): Color.RED,
    ('color', 'blue', 'blue'): Color.BLUE,
    ('words', 'append', 'append'): ['base', 'one', 'two'],
    ('words', 'append', 'more'): ['base', 'one', 'two', 'more'],
    ('words', 'more', 'append'): ['base', 'one', 'more', 'two'],
    ('words', 'more', 'more'): ['base', 'one', 'more', 'two', 'more'],
    ('kept', 'append', 'append'): ['base', 'one', 'two'],
    ('points', 'append', 'append'): [Point(), Point(), Point(9, 9), Point(9, 9)],
    ('members', 'add', 'add'): {'base', 'one', 'two'},
    ('members', 'add', 'remove'): {'one'},
    ('members', 'remove', 'add'): {'two'},
    ('members', 'remove', 'remove'): set(),
    ('fixed', 'add', 'add'): frozenset({'base', 'one', 'two'}),
    ('fixed', 'add', 'remove'): frozenset({'one'}),
    ('fixed', 'remove', 'add'): frozenset({'two'}),
    ('fixed', 'remove', 'remove'): frozenset(),
    ('by_name', 'own', 'own'): {'base': 1, 'one': 1, 'two': 1},
    ('by_name', 'own', 'same'): {'base': 2, 'one': 1},
    ('by_name', 'same', 'own'): {'base': 2, 'two': 1},
    ('by_name', 'own', 'delete'): {'one': 1},
    ('by_name', 'delete', 'own'): {'two': 1},
    ('by_name', 'delete', 'delete'): {},
    ('counted', 'own', 'own'): {'base': 1, 'one': 1, 'two': 1},
    ('counted', 'own', 'same'): {'base': 2, 'one': 1},
    ('counted', 'own', 'new'): {'base': 1, 'one': 1, 'new': 2},
    ('counted', 'own', 'delete'): {'one': 1},
    ('counted', 'same', 'own'): {'base': 2, 'two': 1},
    ('counted', 'same', 'same'): {'base': 3},
    ('counted', 'same', 'new'): {'base': 2, 'new': 2},
    ('counted', 'new', 'own'): {'base': 1, 'two': 1, 'new': 2},
    ('counted', 'new', 'same'): {'base': 2, 'new': 2},
    ('counted', 'new', 'new'): {'base': 1, 'new': 4},
    ('counted', 'new', 'delete'): {'new': 2},
    ('counted', 'delete', 'own'): {'two': 1},
    ('counted', 'delete', 'new'): {'new': 2},
    ('counted', 'delete', 'delete'): {},
    ('point', 'x', 'y'): Point(1, 2),
    ('point', 'y', 'x'): Point(1, 2),
    ('model', 'name', 'tag'): Model(name='one', tags=['two']),
    ('model', 'tag', 'name'): Model(name='two', tags=['one']),
    ('model', 'tag', 'tag'): Model(tags=['one', 'two']),
    ('story', 'a', 'a'): '.aa',
    ('story', 'a', 'b'): '.ab',
    ('story', 'b', 'a'): '.ba',
    ('story', 'b', 'b'): '.bb',
    ('final', 'a', 'a'): 'a',
    ('final', 'a', 'b'): 'b',
    ('final', 'b', 'a'): 'a',
    ('final', 'b', 'b'): 'b',
}
"""What two steps make of a field, the first settled first; what is not here is a conflict."""

_ADDS = {'one': 1, 'five': 5, 'less': -3}
for _one, _n in _ADDS.items():
    for _two, _m in _ADDS.items():
        MERGED['added', _one, _two] = 10 + _n + _m
for _kind, _best in (('most', max), ('least', min)):
    _values = {'up': 12, 'further': 15 if _kind == 'most' else 1, 'down': 3}
    for _one, _n in _values.items():
        for _two, _m in _values.items():
            MERGED[_kind, _one, _two] = _best(_n, _m)

PAIRS = [(kind, one, two) for kind, writes in KINDS.items() for one in writes for two in writes]


def test_every_kind_of_field_is_tried() -> None:
    assert set(KINDS) == set(Fields.__dataclass_fields__)
    assert set(MERGED) <= set(PAIRS)


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize(('kind', 'one', 'two'), PAIRS)
async def test_two_writers_of_one_field_lose_no_update(
    kind: str, one: str, two: str, turned: bool, store: graphkeep.Store
) -> None:
    """They end in one turn of the loop, or in two commits."""
    g, state = builder(state_type=Fields, output_type=list[int]), Fields()

    def writer(name: str, write: Write, wait: int) -> Any:
        async def run(ctx: StepContext[Fields, None, int]) -> int:
            seen = ctx.state
            await turns(wait)
            write(seen, name)
            return 1

        return g.step(run, node_id=name)

    steps = (
        writer('one', KINDS[kind][one], 0),
        writer('two', KINDS[kind][two], 20 if turned else 0),
    )
    kept: Any = graphkeep.persist(parallel(g, *steps))
    handle = store.persistence('run')
    if (kind, one, two) in MERGED:
        await kept.run(state=state, inputs=0, persistence=handle)
        expected = Fields(**{kind: MERGED[kind, one, two]})
    else:
        with pytest.raises(StateConflictError) as caught:
            await kept.run(state=state, inputs=0, persistence=handle)
        assert caught.value.path.startswith(f'state.{kind}')
        assert caught.value.steps == ('two', 'one')
        says = 'The merge rule append' if kind == 'story' else 'Annotated['
        for word in ("'one'", "'two'", f'`{caught.value.path}`', says):
            assert word in str(caught.value)
        expected = Fields()
        KINDS[kind][one](expected, 'one')
    assert state == expected
    assert kept._plan.state.decode((await store.document('run')).state) == expected


async def test_a_conflict_names_the_side_that_a_transform_wrote() -> None:
    g = builder(output_type=list[int])

    def count(ctx: StepContext[Log, None, int]) -> int:
        ctx.state.count += 1
        return 1

    @g.step
    async def early(ctx: StepContext[Log, None, int]) -> int:
        return 1

    @g.step
    async def late(ctx: StepContext[Log, None, int]) -> int:
        state = ctx.state
        await turns(20)
        state.count += 1
        return 1

    @g.step
    async def go(ctx: StepContext[Log, None, int]) -> int:
        return 1

    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(early, late),
        g.edge_from(early).transform(count).to(all_),
        g.edge_from(late).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    state = Log()
    with pytest.raises(StateConflictError) as caught:
        await graphkeep.persist(g.build()).run(state=state, inputs=0)
    assert caught.value.steps == ('late', 'early')
    assert state == Log(count=1)


async def test_three_writers_add_up_whatever_their_order() -> None:
    g, state = builder(state_type=Fields, output_type=list[int]), Fields()

    def adder(number: int) -> Any:
        async def run(ctx: StepContext[Fields, None, int]) -> int:
            seen = ctx.state
            await turns((3 - number) * 7)
            seen.added += number
            seen.words.append(str(number))
            return number

        return g.step(run, node_id=f'add_{number}')

    kept: Any = graphkeep.persist(parallel(g, adder(1), adder(2), adder(3)))
    assert await kept.run(state=state, inputs=0) == [3, 2, 1]
    assert state == Fields(added=16, words=['base', '3', '2', '1'])


async def test_a_run_does_not_end_in_the_turn_in_which_a_step_failed(
    store: graphkeep.Store,
) -> None:
    """It would hide the failure. The step that would end it runs again."""
    g, ran, failing = builder(output_type=int), Counter[str](), asyncio.Event()

    @g.step
    async def bad(ctx: StepContext[Log, None, int]) -> int:
        ran['bad'] += 1
        if not failing.is_set():
            await turns(3)
            failing.set()
            raise ValueError('bad')
        return 1

    @g.step
    async def last(ctx: StepContext[Log, None, int]) -> int:
        ran['last'] += 1
        await failing.wait()
        return 1

    @g.step
    async def aside(ctx: StepContext[Log, None, int]) -> int:
        await asyncio.Event().wait()
        return 0

    @g.step
    async def go(ctx: StepContext[Log, None, int]) -> int:
        return ctx.inputs

    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(bad, last),
        g.edge_from(bad).to(aside),
        g.edge_from(aside, last).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    with pytest.raises(ValueError, match='bad'):
        await kept.run(state=Log(), inputs=0, persistence=store.persistence('run'))
    assert (await store.run('run')).status == 'failed'
    assert await kept.resume(store.persistence('run')) == 1
    assert ran == {'bad': 2, 'last': 2}
