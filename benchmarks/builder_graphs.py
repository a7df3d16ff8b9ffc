"""The GraphBuilder graphs that are run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Annotated, Any

from pydantic_graph import GraphBuilder, StepContext, reduce_list_append
from pydantic_graph.graph_builder import Graph

from graphkeep import merge, wait_for

__all__ = (
    'APPROVED',
    'Approval',
    'Big',
    'Moments',
    'Ticks',
    'approval',
    'asking',
    'big_map',
    'chain',
    'sleeping_map',
    'ticking',
    'wide_map',
)

Moments = list[float]
"""When each step began: a graph's deps."""


@dataclass
class Ticks:
    customer: str = 'ACME Ltd.'
    count: int = 0


def ticking(*, stop_at: int | None = None) -> Graph[Ticks, Moments, int, int]:
    """A loop of one step, which runs as often as its input says.

    Args:
        stop_at: Raise in the step of this number, and in every later attempt of it.
    """
    g = GraphBuilder(
        name='ticking', state_type=Ticks, deps_type=list[float], input_type=int, output_type=int
    )

    @g.step
    async def tick(ctx: StepContext[Ticks, Moments, int]) -> int:
        ctx.deps.append(perf_counter())
        if ctx.state.count + 1 == stop_at:
            raise InterruptedError('as it was told to')
        ctx.state.count += 1
        return ctx.inputs - 1

    _loop(g, tick)
    return g.build()


@dataclass
class Approval:
    """What a person is asked for."""

    approved: bool
    comment: str = ''


APPROVED = {'approved': True, 'comment': 'as agreed on the phone'}


async def approval(number: int) -> Approval:
    """Ask for one, as a step does. Every other request has a deadline, a week from now."""
    return await wait_for(
        Approval,
        'manager',
        prompt=f'May order {number} be refunded?',
        payload={'order': number, 'customer': 'ACME Ltd.', 'amount': '129.90', 'currency': 'EUR'},
        timeout=timedelta(days=7) if number % 2 else None,
    )


def asking() -> Graph[Ticks, Moments, int, int]:
    """As `ticking`, but its last step asks a person, and notes when it has been answered."""
    g = GraphBuilder(
        name='asking', state_type=Ticks, deps_type=list[float], input_type=int, output_type=int
    )

    @g.step
    async def tick(ctx: StepContext[Ticks, Moments, int]) -> int:
        if ctx.inputs == 1:
            await approval(ctx.state.count)
            # The same clock for all processes of a machine.
            ctx.deps.append(monotonic())
        ctx.state.count += 1
        return ctx.inputs - 1

    _loop(g, tick)
    return g.build()


def _loop(g: Any, step: Any) -> None:
    again = g.match(int, matches=lambda left: left > 0)
    g.add(
        g.edge_from(g.start_node).to(step),
        g.edge_from(step).to(
            g.decision(node_id='more').branch(again.to(step)).branch(g.match(int).to(g.end_node))
        ),
    )


def chain(length: int) -> Graph[Ticks, None, int, int]:
    """So many steps, one after the other."""
    g = GraphBuilder(name='chain', state_type=Ticks, input_type=int, output_type=int)

    def step(number: int) -> Any:
        async def work(ctx: StepContext[Ticks, None, int]) -> int:
            ctx.state.count += 1
            return ctx.inputs + 1

        return g.step(work, node_id=f'step {number}')

    steps = [step(number) for number in range(length)]
    before: list[Any] = [g.start_node, *steps]
    after: list[Any] = [*steps, g.end_node]
    g.add(*(g.edge_from(a).to(b) for a, b in zip(before, after, strict=True)))
    return g.build()


def sleeping_map(seconds: float) -> Graph[Ticks, None, list[int], list[int]]:
    """A map whose steps wait, as for a model."""
    g = GraphBuilder(name='sleeping', state_type=Ticks, input_type=list[int], output_type=list[int])

    @g.step
    async def wait(ctx: StepContext[Ticks, None, int]) -> int:
        await asyncio.sleep(seconds)
        return ctx.inputs

    return _mapped(g, wait)


def wide_map(payload: int) -> Graph[None, None, list[int], list[str]]:
    """A map whose steps give texts of `payload` characters, which a join collects."""
    g = GraphBuilder(name='wide', input_type=list[int], output_type=list[str])

    @g.step
    async def write(ctx: StepContext[None, None, int]) -> str:
        return f'{ctx.inputs:06}'.ljust(payload, 'x')

    collect = g.join(reduce_list_append, initial_factory=list[str], node_id='collect')
    g.add(
        g.edge_from(g.start_node).map().to(write),
        g.edge_from(write).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()


@dataclass
class Big:
    texts: list[str] = field(default_factory=list[str])
    touched: Annotated[int, merge.add] = 0


def big_map(*, touch: bool) -> Graph[Big, None, list[int], list[int]]:
    """A map beside a state, whose steps change it or never look at it."""
    g = GraphBuilder(name='big', state_type=Big, input_type=list[int], output_type=list[int])

    @g.step
    async def work(ctx: StepContext[Big, None, int]) -> int:
        if touch:
            ctx.state.touched += 1
        return ctx.inputs

    return _mapped(g, work)


def _mapped(g: Any, step: Any) -> Any:
    collect = g.join(reduce_list_append, initial_factory=list[int], node_id='collect')
    g.add(
        g.edge_from(g.start_node).map().to(step),
        g.edge_from(step).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()
