"""Graphs made from a small grammar, and what an interpreter of the same grammar says of them.

Upstream's runner is no oracle: it disagrees with itself on some graphs (two joins that wait for
each other's buffers, a join behind a slow sibling). The interpreter is: it follows the structure
and knows neither forks nor buffers.

A graph computes on integers. Every step adds to a counter of its own in the state, which parallel
steps share by `merge.add`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

from hypothesis import strategies as st
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append, reduce_sum
from pydantic_graph.graph_builder import Graph

import graphkeep
from graphkeep import merge


@dataclass
class Tally:
    """The state: how often each step has changed it, and what it saw."""

    hits: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    total: Annotated[int, merge.add] = 0
    seen: set[str] = field(default_factory=set)


# --- the grammar ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A step: `x -> x * factor + 1`; it may change the state, and may wait."""

    factor: int
    counts: bool
    turns: int


@dataclass(frozen=True)
class Both:
    """A broadcast: every branch gets the value, a join adds their results up."""

    branches: tuple[Shape, ...]


@dataclass(frozen=True)
class Each:
    """A map over `range(x % most)`: a body for each item, and a join of all results."""

    most: int
    body: Shape


@dataclass(frozen=True)
class Choice:
    """A decision by whether the value is even."""

    even: Shape
    odd: Shape


@dataclass(frozen=True)
class Until:
    """A loop: a step is repeated until the value divides."""

    divisor: int
    counts: bool


@dataclass(frozen=True)
class Then:
    """One after the other."""

    parts: tuple[Shape, ...]


Shape = Work | Both | Each | Choice | Until | Then

_works = st.builds(Work, st.integers(1, 3), st.booleans(), st.integers(0, 3))
_loops = st.builds(Until, st.integers(2, 4), st.booleans())


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(Both, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Each, st.integers(1, 4), inner),
        st.builds(Choice, inner, inner),
        st.builds(Then, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    )


shapes = st.recursive(_works | _loops, _nested, max_leaves=7)


# --- the interpreter ------------------------------------------------------------------------------


@dataclass
class Expected:
    """What an undisturbed run gives."""

    output: int
    hits: Counter[str]
    runs: Counter[str]
    total: int


def interpret(shape: Shape, value: int) -> Expected:
    expected = Expected(0, Counter(), Counter(), 0)
    expected.output = _interpret(shape, value, '', expected)
    return expected


def _ran(name: str, value: int, *, counts: bool, expected: Expected) -> None:
    expected.runs[name] += 1
    if counts:
        expected.hits[name] += 1
        expected.total += value


def _interpret(shape: Shape, value: int, at: str, expected: Expected) -> int:
    match shape:
        case Work(factor, counts, _):
            _ran(f'w{at}', value, counts=counts, expected=expected)
            return _small(value * factor + 1)
        case Until(divisor, counts):
            while True:
                _ran(f'u{at}', value, counts=counts, expected=expected)
                value += 1
                if value % divisor == 0:
                    return value
        case Then(parts):
            for number, part in enumerate(parts):
                value = _interpret(part, value, f'{at}_{number}', expected)
            return value
        case Choice(even, odd):
            chosen, side = (even, 'e') if value % 2 == 0 else (odd, 'o')
            return _interpret(chosen, value, f'{at}_{side}', expected)
        case Both(branches):
            return _small(
                sum(
                    _interpret(branch, value, f'{at}_{number}', expected)
                    for number, branch in enumerate(branches)
                )
            )
        case Each(most, body):
            return _small(
                sum(_interpret(body, item, f'{at}_b', expected) for item in _items(value, most))
            )


def _small(value: int) -> int:
    return value % 997


def _items(value: int, most: int) -> list[int]:
    return list(range(value, value + value % (most + 1)))


# --- the graph ------------------------------------------------------------------------------------


class Deps:
    """Which steps ran, and how often: outside of the state, where a crash takes nothing back."""

    def __init__(self, *, kept: bool = True) -> None:
        self.kept = kept
        self.runs: Counter[str] = Counter()
        self.tasks: list[str] = []
        """The tasks that began, by number, in order."""


class _Drawing:
    def __init__(self) -> None:
        self.builder: Any = GraphBuilder(
            state_type=Tally, deps_type=Deps, input_type=int, output_type=int
        )
        self._joins = itertools.count()

    def step(self, name: str, *, counts: bool, turns: int, function: Any) -> Any:
        async def run(ctx: StepContext[Tally, Deps, int]) -> int:
            ctx.deps.runs[name] += 1
            if ctx.deps.kept:
                ctx.deps.tasks.append(graphkeep.current_task().key.rpartition('/')[2])
            for _ in range(turns):
                await asyncio.sleep(0)
            if counts:
                state = ctx.state
                state.hits[name] = state.hits.get(name, 0) + 1
                state.total += ctx.inputs
                state.seen.add(name)
            return function(ctx.inputs)

        return self.builder.step(run, node_id=name)

    def plain(self, name: str, function: Any, returns: Any = int) -> Any:
        """A step that is no work: it neither counts nor waits."""

        async def run(ctx: StepContext[Tally, Deps, int]) -> Any:
            return function(ctx.inputs)

        run.__annotations__['return'] = returns
        return self.builder.step(run, node_id=name)

    def draw(self, shape: Shape, at: str) -> tuple[Any, Any]:
        """Add a shape to the graph; gives where it is entered, and where it is left."""
        g = self.builder
        match shape:
            case Work(factor, counts, turns):
                step = self.step(
                    f'w{at}',
                    counts=counts,
                    turns=turns,
                    function=lambda x: _small(x * factor + 1),
                )
                return step, step
            case Until(divisor, counts):
                step = self.step(f'u{at}', counts=counts, turns=0, function=lambda x: x + 1)
                done = self.plain(f'u{at}_done', lambda x: x)
                again = g.match(int, matches=lambda x: x % divisor != 0).to(step)
                decision = g.decision(node_id=f'u{at}_more').branch(again)
                g.add(g.edge_from(step).to(decision.branch(g.match(int).to(done))))
                return step, done
            case Then(parts):
                ends = [self.draw(part, f'{at}_{n}') for n, part in enumerate(parts)]
                for (_, left), (entered, _) in itertools.pairwise(ends):
                    g.add(g.edge_from(left).to(entered))
                return ends[0][0], ends[-1][1]
            case Choice(even, odd):
                ask = self.plain(f'c{at}', lambda x: x)
                done = self.plain(f'c{at}_done', lambda x: x)
                sides = [self.draw(even, f'{at}_e'), self.draw(odd, f'{at}_o')]
                decision = (
                    g.decision(node_id=f'c{at}_which')
                    .branch(g.match(int, matches=lambda x: x % 2 == 0).to(sides[0][0]))
                    .branch(g.match(int).to(sides[1][0]))
                )
                g.add(g.edge_from(ask).to(decision))
                g.add(*(g.edge_from(left).to(done) for _, left in sides))
                return ask, done
            case Both(branches):
                ask = self.plain(f'f{at}', lambda x: x)
                drawn = [self.draw(branch, f'{at}_{n}') for n, branch in enumerate(branches)]
                done = self._joined(at, [left for _, left in drawn])
                g.add(
                    g.edge_from(ask).broadcast(
                        lambda b: [b.to(entered) for entered, _ in drawn], fork_id=f'fork{at}'
                    )
                )
                return ask, done
            case Each(most, body):
                ask = self.plain(f'm{at}', lambda x: _items(x, most), list[int])
                entered, left = self.draw(body, f'{at}_b')
                join, done = self._join(at)
                g.add(
                    g.edge_from(ask)
                    .map(fork_id=f'fork{at}', downstream_join_id=join.id)
                    .to(entered)
                )
                g.add(g.edge_from(left).to(join))
                return ask, done

    def _joined(self, at: str, lefts: list[Any]) -> Any:
        join, done = self._join(at)
        self.builder.add(*(self.builder.edge_from(left).to(join) for left in lefts))
        return done

    def _join(self, at: str) -> tuple[Any, Any]:
        g, number = self.builder, next(self._joins)
        if number % 2:
            join = g.join(
                reduce_sum,
                initial_factory=int,
                node_id=f'j{at}',
                parent_fork_id=f'fork{at}',
            )
            done = self.plain(f'j{at}_done', _small)
        else:
            join = g.join(
                reduce_list_append,
                initial_factory=list[int],
                node_id=f'j{at}',
                parent_fork_id=f'fork{at}',
            )

            async def run(ctx: StepContext[Tally, Deps, list[int]]) -> int:
                return _small(sum(ctx.inputs))

            done = g.step(run, node_id=f'j{at}_done')
        g.add(g.edge_from(join).to(done))
        return join, done


def build(shape: Shape) -> Graph[Tally, Deps, int, int]:
    drawing = _Drawing()
    g = drawing.builder
    entered, left = drawing.draw(shape, '')
    g.add(g.edge_from(g.start_node).to(entered), g.edge_from(left).to(g.end_node))
    graph = g.build()
    graph.auto_instrument = False
    return graph
