"""Makes a pydantic-graph graph of a shape."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic_graph import (
    BaseNode,
    GraphBuilder,
    GraphRunContext,
    ReducerContext,
    StepContext,
    StepNode,
    reduce_list_append,
    reduce_sum,
)
from pydantic_graph.graph_builder import Graph

import graphkeep

from .shapes import (
    Both,
    Choice,
    Each,
    Joining,
    Shape,
    Staged,
    Tally,
    Then,
    Until,
    Work,
    items,
    small,
)

_LONGEST = 3
"""Most turns of the event loop that a step waits for."""


class Deps:
    """Which steps ran, and how often: outside of the state, where a crash takes nothing back."""

    def __init__(self, *, kept: bool = True, seed: int | None = None) -> None:
        """Note nothing yet.

        Args:
            kept: Whether graphkeep runs the graph.
            seed: Of how long steps take; without it none waits for longer than it says.
        """
        self._kept = kept
        self._chance = None if seed is None else random.Random(seed)
        self.runs: Counter[str] = Counter()
        """By step."""
        self.starts: Counter[str] = Counter()
        """By task."""
        self._drawn: dict[str, int] = {}

    def note(self, name: str) -> None:
        """A step has started."""
        self.runs[name] += 1
        if self._kept:
            self.starts[_task()] += 1

    async def draw(self) -> None:
        """What a step has been given once is given to it at every attempt."""
        if self._kept:
            drawn = await graphkeep.once('draw', _random)
            assert self._drawn.setdefault(_task(), drawn) == drawn, 'drawn twice'

    async def wait(self, turns: int = 0) -> None:
        """Let others run meanwhile."""
        pause = 0.0
        if self._chance is not None:
            turns += self._chance.choice((0, 0, 0, 1, 2, 7))
            pause = self._chance.choice((0.0, 0.0, 0.0005, 0.003)) if turns > _LONGEST else 0.0
        for _ in range(turns):
            await asyncio.sleep(0)
        if pause:
            await asyncio.sleep(pause)


def _task() -> str:
    return graphkeep.current_task().key.rpartition('/')[2]


async def _random() -> int:
    await asyncio.sleep(0)
    return random.randrange(1 << 32)


class _Hop(BaseNode[Tally, Deps, int]):
    """A `BaseNode`; each in a graph is a class of its own."""


def build(shape: Shape) -> Graph[Tally, Deps, int, int]:
    """A graph of this shape."""
    drawing = _Drawing()
    g = drawing.builder
    entered, left = drawing.draw(shape, '')
    g.add(g.edge_from(g.start_node).to(entered), g.edge_from(left).to(g.end_node))
    graph = g.build()
    graph.auto_instrument = False
    return graph


class _Drawing:
    def __init__(self) -> None:
        self.builder: Any = GraphBuilder(
            state_type=Tally, deps_type=Deps, input_type=int, output_type=int
        )

    def draw(self, shape: Shape, at: str) -> tuple[Any, Any]:
        """Add a shape to the graph; gives where it is entered, and where it is left."""
        g = self.builder
        match shape:
            case Work():
                return self._work(shape, f'w{at}')
            case Until(divisor, body, counts):
                step = self._step(f'u{at}', lambda x: x + 1, counts=counts)
                done = self._plain(f'u{at}_done', _same)
                first = step
                if body is not None:
                    first, left = self.draw(body, f'{at}_b')
                    g.add(g.edge_from(left).to(step))
                again = g.match(int, matches=lambda x: x % divisor != 0).to(first)
                decision = g.decision(node_id=f'u{at}_more').branch(again)
                g.add(g.edge_from(step).to(decision.branch(g.match(int).to(done))))
                return first, done
            case Then(parts, marks):
                ends = [self.draw(part, f'{at}_{n}') for n, part in enumerate(parts)]
                for (_, left), (entered, _) in itertools.pairwise(ends):
                    edge = g.edge_from(left)
                    if marks:
                        edge = edge.transform(_marking(f't{at}'))
                    g.add(edge.to(entered))
                return ends[0][0], ends[-1][1]
            case Choice(even, odd):
                ask = self._plain(f'c{at}', _same)
                done = self._plain(f'c{at}_done', _same)
                sides = [self.draw(even, f'{at}_e'), self.draw(odd, f'{at}_o')]
                decision = (
                    g.decision(node_id=f'c{at}_which')
                    .branch(g.match(int, matches=lambda x: x % 2 == 0).to(sides[0][0]))
                    .branch(g.match(int).to(sides[1][0]))
                )
                g.add(g.edge_from(ask).to(decision))
                g.add(*(g.edge_from(left).to(done) for _, left in sides))
                return ask, done
            case Both(branches, joining):
                drawn = [self.draw(branch, f'{at}_{n}') for n, branch in enumerate(branches)]
                done = self._joined(f'j{at}', f'fork{at}', joining, [left for _, left in drawn])
                return self._forked(at, [entered for entered, _ in drawn]), done
            case Staged(early, between, late, (first, second)):
                ones = [self.draw(each, f'{at}_f{n}') for n, each in enumerate(early)]
                others = [self.draw(each, f'{at}_s{n}') for n, each in enumerate(late)]
                middle, left = self.draw(between, f'{at}_m')
                early_done = self._joined(f'j{at}f', f'fork{at}', first, [e for _, e in ones])
                g.add(g.edge_from(early_done).to(middle))
                lefts = [*(e for _, e in others), left]
                done = self._joined(f'j{at}s', f'fork{at}', second, lefts)
                return self._forked(at, [e for e, _ in (*ones, *others)]), done
            case Each(most, body, joining, streams):
                ask = self._stream(f'm{at}', most) if streams else self._list(f'm{at}', most)
                entered, left = self.draw(body, f'{at}_b')
                join, done = self._join(f'j{at}', f'fork{at}', joining)
                ways = g.edge_from(ask).map(fork_id=f'fork{at}', downstream_join_id=join.id)
                g.add(ways.to(entered), g.edge_from(left).to(join))
                return ask, done

    # --- steps ------------------------------------------------------------------------------------

    def _step(
        self, name: str, function: Any, *, counts: bool, turns: int = 0, asks: bool = False
    ) -> Any:
        async def run(ctx: StepContext[Tally, Deps, int]) -> int:
            await _do(ctx, name, ctx.inputs, counts=counts, turns=turns, asks=asks)
            return function(ctx.inputs)

        return self.builder.step(run, node_id=name)

    def _plain(self, name: str, function: Any, returns: Any = int, takes: Any = int) -> Any:
        """A step that is no work: it does not count."""

        async def run(ctx: StepContext[Tally, Deps, Any]) -> Any:
            ctx.deps.note(name)
            await ctx.deps.wait()
            return function(ctx.inputs)

        run.__annotations__.update(ctx=StepContext[Tally, Deps, takes])
        run.__annotations__['return'] = returns
        return self.builder.step(run, node_id=name)

    def _work(self, work: Work, name: str) -> tuple[Any, Any]:
        def function(x: int) -> int:
            return small(x * work.factor + 1)

        if not work.node:
            step = self._step(name, function, counts=work.counts, turns=work.turns, asks=work.asks)
            return step, step
        done = self._plain(f'{name}_done', _same)

        async def run(self: Any, ctx: GraphRunContext[Tally, Deps]) -> Any:
            await _do(ctx, name, self.value, counts=work.counts, turns=work.turns, asks=work.asks)
            return done.as_node(function(self.value))

        run.__annotations__['return'] = Annotated[StepNode[Tally, Deps], done]
        hop: Any = dataclass(
            type(
                name,
                (_Hop,),
                {'__annotations__': {'value': int}, 'run': run, '__module__': __name__},
            )
        )
        # Upstream makes the edges to and from it by what is returned: one more whenever an edge to
        # the step that returns it is added.
        g, ask, wrap = (
            self.builder,
            self._plain(f'{name}_ask', _same),
            self._plain(f'{name}_wrap', hop, hop),
        )
        g.add(g.edge_from(ask).to(wrap), g.node(hop))
        return ask, done

    def _list(self, name: str, most: int) -> Any:
        return self._plain(name, lambda x: items(x, most), list[int])

    def _stream(self, name: str, most: int) -> Any:
        async def run(ctx: StepContext[Tally, Deps, int]) -> AsyncIterator[int]:
            ctx.deps.note(name)
            ctx.state.begin(name)
            for item in items(ctx.inputs, most):
                await ctx.deps.wait(item % (_LONGEST + 1))
                yield item
            ctx.state.end(name, ctx.inputs)

        return self.builder.stream(run, node_id=name)

    # --- forks and joins --------------------------------------------------------------------------

    def _forked(self, at: str, entered: Sequence[Any]) -> Any:
        ask = self._plain(f'f{at}', _same)
        self.builder.add(
            self.builder.edge_from(ask).broadcast(
                lambda b: [b.to(each) for each in entered], fork_id=f'fork{at}'
            )
        )
        return ask

    def _joined(self, name: str, fork: str, joining: Joining, lefts: Sequence[Any]) -> Any:
        join, done = self._join(name, fork, joining)
        self.builder.add(*(self.builder.edge_from(left).to(join) for left in lefts))
        return done

    def _join(self, name: str, fork: str, joining: Joining) -> tuple[Any, Any]:
        g = self.builder
        if joining == 'list':
            reducer, initial, takes = reduce_list_append, list[int], list[int]
        else:
            reducer = reduce_sum if joining == 'sum' else _reducing(name)
            initial, takes = int, int
        join = g.join(reducer, initial_factory=initial, node_id=name, parent_fork_id=fork)
        done = self._plain(
            f'{name}_done',
            lambda x: small(sum(x) if isinstance(x, list) else x),
            takes=takes,
        )
        g.add(g.edge_from(join).to(done))
        return join, done


def _same(value: int) -> int:
    return value


async def _do(ctx: Any, name: str, value: int, *, counts: bool, turns: int, asks: bool) -> None:
    """What every step does that is work."""
    ctx.deps.note(name)
    if counts:
        ctx.state.begin(name)
    await ctx.deps.wait(turns)
    if asks:
        await ctx.deps.draw()
        await ctx.deps.wait()
    if counts:
        ctx.state.end(name, value)


def _marking(name: str) -> Any:
    def transform(ctx: StepContext[Tally, Deps, int]) -> int:
        ctx.state.begin(name)
        ctx.state.end(name, ctx.inputs)
        return ctx.inputs

    return transform


def _reducing(name: str) -> Any:
    def reduce(ctx: ReducerContext[Tally, Deps], current: int, inputs: int) -> int:
        ctx.state.begin(name)
        ctx.state.end(name, inputs)
        return current + inputs

    return reduce
