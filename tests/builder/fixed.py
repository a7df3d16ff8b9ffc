"""Graphs of every kind that upstream can build, and what an undisturbed run of each gives.

Steps note their start in the dependencies, which a crash takes nothing back of, and their end in
the state, which holds each end exactly once, however often a step was started.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic_graph import (
    BaseNode,
    GraphBuilder,
    GraphRunContext,
    ReduceFirstValue,
    ReducerContext,
    StepContext,
    StepNode,
    reduce_list_append,
    reduce_list_extend,
    reduce_sum,
)
from pydantic_graph.graph_builder import Graph
from pydantic_graph.join import JoinNode

from graphkeep import current_task, merge


@dataclass
class Ledger:
    """The state."""

    ends: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    """How often each step has ended."""
    marks: list[str] = field(default_factory=list)
    """What they had to say, in the order they were settled."""

    def mark(self, name: str, *said: object) -> None:
        self.ends[name] = self.ends.get(name, 0) + 1
        self.marks.append(' '.join(map(str, (name, *said))))


@dataclass
class Diary:
    """The dependencies: the tasks that were started."""

    starts: Counter[str] = field(default_factory=Counter)

    def note(self) -> None:
        """The step that calls has started."""
        self.starts[current_task().key.rpartition('/')[2]] += 1


Ctx = StepContext[Ledger, Diary, Any]
Draw = Callable[[], Graph[Ledger, Diary, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph and what comes of it."""

    build: Draw
    inputs: Any
    output: Any
    """Sorted, where it is a list: parallel steps end in any order."""
    ends: dict[str, int]


CASES: dict[str, Case] = {}


def case(inputs: Any, output: Any, **ends: int) -> Callable[[Draw], Draw]:
    def add(build: Draw) -> Draw:
        CASES[build.__name__] = Case(build=build, inputs=inputs, output=output, ends=ends)
        return build

    return add


def sorted_output(output: Any) -> Any:
    return sorted(output) if isinstance(output, list) else output


def _builder(output_type: Any, input_type: Any = int) -> Any:
    return GraphBuilder(
        state_type=Ledger,
        deps_type=Diary,
        input_type=input_type,
        output_type=output_type,
        auto_instrument=False,
    )


def _work(g: Any, name: str, function: Any, *, turns: int = 0, gives: Any = int) -> Any:
    """A step that starts, waits for some turns of the loop, and ends."""

    async def run(ctx: StepContext[Ledger, Diary, Any]) -> Any:
        ctx.deps.note()
        for _ in range(turns):
            await asyncio.sleep(0)
        value = function(ctx.inputs)
        ctx.state.mark(name, value)
        return value

    run.__annotations__['return'] = gives
    return g.step(run, node_id=name)


@case(3, [2, 4, 6], count=1, double=3)
def one_map() -> Graph[Ledger, Diary, int, list[int]]:
    g = _builder(list[int])
    count = _work(g, 'count', lambda n: list(range(1, n + 1)), gives=list[int])
    double = _work(g, 'double', lambda n: n * 2, turns=1)
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(double),
        g.edge_from(double).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


@case(3, [10, 20, 20, 30, 30, 30], count=1, spread=3, tenfold=6, collect=1)
def nested_map() -> Graph[Ledger, Diary, int, list[int]]:
    """The inner join belongs to the inner map, the outer one to the outer."""
    g = _builder(list[int])
    count = _work(g, 'count', lambda n: list(range(1, n + 1)), gives=list[int])
    spread = _work(g, 'spread', lambda n: [n] * n, gives=list[int])
    tenfold = _work(g, 'tenfold', lambda n: n * 10, turns=2)
    collect = _work(g, 'collect', list, gives=list[int])
    inner = g.join(
        reduce_list_append,
        initial_factory=list[int],
        node_id='inner',
        preferred_parent_fork='closest',
    )
    outer = g.join(
        reduce_list_extend, initial_factory=list[int], node_id='outer', parent_fork_id='outside'
    )
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map(fork_id='outside').to(spread),
        g.edge_from(spread).map(fork_id='inside').to(tenfold),
        g.edge_from(tenfold).to(inner),
        g.edge_from(inner).to(outer),
        g.edge_from(outer).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()


@case(3, 1 + 2 + 2 + 3 + 3 + 3, count=1, spread=3, same=6, say=1)
def farthest_fork() -> Graph[Ledger, Diary, int, int]:
    """One join for both maps: with the outermost fork it fires once."""
    g = _builder(int)
    count = _work(g, 'count', lambda n: list(range(1, n + 1)), gives=list[int])
    spread = _work(g, 'spread', lambda n: [n] * n, gives=list[int])
    same = _work(g, 'same', lambda n: n, turns=1)
    say = _work(g, 'say', lambda n: n)
    total = g.join(reduce_sum, initial=0, node_id='total', preferred_parent_fork='farthest')
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(spread),
        g.edge_from(spread).map().to(same),
        g.edge_from(same).to(total),
        g.edge_from(total).to(say),
        g.edge_from(say).to(g.end_node),
    )
    return g.build()


@case(5, [6, 10, 25], go=1, plus=1, double=1, square=1)
def broadcast_and_join() -> Graph[Ledger, Diary, int, list[int]]:
    g = _builder(list[int])
    go = _work(g, 'go', lambda n: n)
    plus = _work(g, 'plus', lambda n: n + 1, turns=3)
    double = _work(g, 'double', lambda n: n * 2)
    square = _work(g, 'square', lambda n: n * n, turns=1)
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(plus, double, square),
        g.edge_from(plus, double, square).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


@case(4, ['even', 'even', 'odd', 'odd'], count=1, even=2, odd=2)
def decision_in_a_map() -> Graph[Ledger, Diary, int, list[str]]:
    g = _builder(list[str])
    count = _work(g, 'count', lambda n: list(range(n)), gives=list[int])
    even = _work(g, 'even', lambda _: 'even', gives=str)
    odd = _work(g, 'odd', lambda _: 'odd', turns=2, gives=str)
    all_ = g.join(reduce_list_append, initial_factory=list[str], node_id='all')
    which = (
        g.decision(node_id='which')
        .branch(g.match(int, matches=lambda n: n % 2 == 0).label('even').to(even))
        .branch(g.match(int).label('odd').to(odd))
    )
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(which),
        g.edge_from(even, odd).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


@case(1, 'after 5', up=4, report=1)
def loop() -> Graph[Ledger, Diary, int, str]:
    g = _builder(str)
    up = _work(g, 'up', lambda n: n + 1)
    report = _work(g, 'report', lambda n: f'after {n}', gives=str)
    g.add(
        g.edge_from(g.start_node).to(up),
        g.edge_from(up).to(
            g.decision(node_id='enough')
            .branch(g.match(int, matches=lambda n: n < 5).to(up))
            .branch(g.match(int).to(report))
        ),
        g.edge_from(report).to(g.end_node),
    )
    return g.build()


@case(2, [100, 109], go=1, one=1, two=1, hundred=1, more=1)
def join_before_a_join() -> Graph[Ledger, Diary, int, list[int]]:
    """The first join is no final one: what it gives stays inside of the fork of the second."""
    g = _builder(list[int])
    go = _work(g, 'go', lambda n: n)
    one = _work(g, 'one', lambda n: n + 1, turns=2)
    two = _work(g, 'two', lambda n: n + 2)
    hundred = _work(g, 'hundred', lambda _: 100)
    more = _work(g, 'more', lambda n: n + 102)
    first = g.join(reduce_sum, initial=0, node_id='first')
    second = g.join(reduce_list_append, initial_factory=list[int], node_id='second')
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(one, two, hundred),
        g.edge_from(one, two).to(first),
        g.edge_from(first).to(more),
        g.edge_from(more, hundred).to(second),
        g.edge_from(second).to(g.end_node),
    )
    return g.build()


@case(3, [10, 20, 30], count=1, item=3, quick=3)
def first_value() -> Graph[Ledger, Diary, int, list[int]]:
    """Of each item the first of two steps wins, and the other is cancelled."""
    g = _builder(list[int])
    count = _work(g, 'count', lambda n: list(range(1, n + 1)), gives=list[int])
    item = _work(g, 'item', lambda n: n)
    quick = _work(g, 'quick', lambda n: n * 10)

    @g.step(node_id='never')
    async def never(ctx: StepContext[Ledger, Diary, int]) -> int:
        ctx.deps.note()
        ctx.state.mark('never')
        await asyncio.Event().wait()
        return 0

    race = g.join(
        ReduceFirstValue[int](), initial=0, node_id='race', preferred_parent_fork='closest'
    )
    all_ = g.join(
        reduce_list_append, initial_factory=list[int], node_id='all', parent_fork_id='each'
    )
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map(fork_id='each').to(item),
        g.edge_from(item).to(quick, never, fork_id='both'),
        g.edge_from(quick, never).to(race),
        g.edge_from(race).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


def sum_and_mark(ctx: ReducerContext[Ledger, Diary], current: int, inputs: int) -> int:
    ctx.state.mark('reduced', inputs)
    return current + inputs * (1 if ctx.state.ends else 0)


@case(4, 1 + 2 + 3 + 4, count=1, same=4, reduced=4)
def reducer_with_a_context() -> Graph[Ledger, Diary, int, int]:
    """The reducer reads the state and writes to it."""
    g = _builder(int)
    count = _work(g, 'count', lambda n: list(range(1, n + 1)), gives=list[int])
    same = _work(g, 'same', lambda n: n, turns=1)
    total = g.join(sum_and_mark, initial=0, node_id='total')
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(same),
        g.edge_from(same).to(total),
        g.edge_from(total).to(g.end_node),
    )
    return g.build()


@dataclass
class Weigh(BaseNode[Ledger, Diary, Any]):
    grams: int

    async def run(self, ctx: GraphRunContext[Ledger, Diary]) -> Wrap | Skip:
        ctx.deps.note()
        await asyncio.sleep(0)
        ctx.state.mark('weigh', self.grams)
        return Wrap(self.grams + 1) if self.grams % 2 else Skip(self.grams)


@case(3, 2 + 3 + 4, count=1, weigh=3, wrap=2, skip=1, post=2)
def nodes() -> Graph[Ledger, Diary, int, int]:
    """`BaseNode` steps that hand over to one another, to a step, and to a join."""
    g = _builder(int)
    count = _work(g, 'count', lambda n: [Weigh(i) for i in range(1, n + 1)], gives=list[Weigh])
    post = _work(g, 'post', lambda n: n, turns=1)
    total = g.join(reduce_sum, initial=0, node_id='total')

    # What they hand over to are steps of this very graph.
    Wrap.run.__annotations__['return'] = Annotated[StepNode[Ledger, Diary], post]
    Skip.run.__annotations__['return'] = Annotated[JoinNode[Ledger, Diary], total]
    Wrap.to, Skip.to = post, total
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(Weigh),
        g.node(Weigh),
        g.node(Wrap),
        g.node(Skip),
        g.edge_from(post).to(total),
        g.edge_from(total).to(g.end_node),
    )
    return g.build()


@dataclass
class Wrap(BaseNode[Ledger, Diary, Any]):
    to: ClassVar[Any]
    grams: int

    async def run(self, ctx: GraphRunContext[Ledger, Diary]) -> Any:
        ctx.deps.note()
        ctx.state.mark('wrap', self.grams)
        return self.to.as_node(self.grams)


@dataclass
class Skip(BaseNode[Ledger, Diary, Any]):
    to: ClassVar[Any]
    grams: int

    async def run(self, ctx: GraphRunContext[Ledger, Diary]) -> Any:
        ctx.deps.note()
        ctx.state.mark('skip', self.grams)
        return self.to.as_node(self.grams + 1)


@case(4, [0, 1, 4, 9], numbers=1, square=4)
def stream_to_a_map() -> Graph[Ledger, Diary, int, list[int]]:
    g = _builder(list[int])

    @g.stream(node_id='numbers')
    async def numbers(ctx: StepContext[Ledger, Diary, int]) -> AsyncIterator[int]:
        ctx.deps.note()
        for number in range(ctx.inputs):
            await asyncio.sleep(0)
            yield number
        ctx.state.mark('numbers')

    square = _work(g, 'square', lambda n: n * n, turns=1)
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map(downstream_join_id='all').to(square),
        g.edge_from(square).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


@case(3, [5, 6, 7], numbers=1, plus=3)
def async_iterable_to_a_map() -> Graph[Ledger, Diary, int, list[int]]:
    g = _builder(list[int])

    @g.step(node_id='numbers')
    async def numbers(ctx: StepContext[Ledger, Diary, int]) -> AsyncIterable[int]:
        ctx.deps.note()
        ctx.state.mark('numbers')

        async def each() -> AsyncIterator[int]:
            for number in range(ctx.inputs):
                yield number

        return each()

    plus = _work(g, 'plus', lambda n: n + 5)
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(plus),
        g.edge_from(plus).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


def marked(ctx: StepContext[Ledger, Diary, int]) -> int:
    ctx.state.mark('on_the_way', ctx.inputs)
    return ctx.inputs + 1


@case(2, [12, 22], go=1, left=1, right=1, on_the_way=4)
def transforms() -> Graph[Ledger, Diary, int, list[int]]:
    """Transforms write to the state: at a broadcast, behind the start, and before a join."""
    g = _builder(list[int])
    go = _work(g, 'go', lambda n: n)
    left = _work(g, 'left', lambda n: n + 7, turns=1)
    right = _work(g, 'right', lambda n: n + 17)
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).transform(marked).to(go),
        g.edge_from(go).transform(marked).to(left, right),
        g.edge_from(left, right).transform(marked).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g.build()


def _kind(n: int) -> Literal['few', 'many']:
    return 'few' if n < 3 else 'many'


@case(0, ['few'], count=1, decide=1, none=1)
def empty_map() -> Graph[Ledger, Diary, int, list[str]]:
    """A map over nothing: its join fires with the initial value, in front of a decision."""
    g = _builder(list[str])
    count = _work(g, 'count', lambda n: list(range(n)), gives=list[int])
    same = _work(g, 'same', lambda n: n)
    total = g.join(reduce_sum, initial=0, node_id='total')
    decide = _work(g, 'decide', _kind, gives=Literal['few', 'many'])
    none = _work(g, 'none', lambda kind: [kind], gives=list[str])
    some = _work(g, 'some', lambda kind: [kind] * 2, gives=list[str])
    few: Any = Literal['few']
    many: Any = Literal['many']
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map(downstream_join_id='total').to(same),
        g.edge_from(same).to(total),
        g.edge_from(total).to(decide),
        g.edge_from(decide).to(
            g.decision().branch(g.match(few).to(none)).branch(g.match(many).to(some))
        ),
        g.edge_from(none, some).to(g.end_node),
    )
    return g.build()


__all__ = ('CASES', 'Case', 'Diary', 'Ledger', 'sorted_output')
