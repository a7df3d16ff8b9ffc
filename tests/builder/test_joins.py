"""When joins fire."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import Store


async def test_an_inner_join_fires_when_its_own_fork_run_is_complete(
    store: Store, run_id: str
) -> None:
    """Not when those of its siblings are: what follows one of them lets the other go on."""
    g: Any = GraphBuilder(
        name='nested',
        deps_type=asyncio.Event,
        input_type=list[list[int]],
        output_type=list[list[int]],
        auto_instrument=False,
    )

    @g.step
    async def split(ctx: StepContext[None, asyncio.Event, list[int]]) -> list[int]:
        return ctx.inputs

    @g.step
    async def work(ctx: StepContext[None, asyncio.Event, int]) -> int:
        if ctx.inputs == 4:
            await ctx.deps.wait()
        return ctx.inputs

    @g.step
    async def after(ctx: StepContext[None, asyncio.Event, list[int]]) -> list[int]:
        ctx.deps.set()
        return sorted(ctx.inputs)

    inner = g.join(
        reduce_list_append,
        initial_factory=list[int],
        node_id='inner',
        preferred_parent_fork='closest',
    )
    outer = g.join(reduce_list_append, initial_factory=list[list[int]], node_id='outer')
    g.add(
        g.edge_from(g.start_node).map().to(split),
        g.edge_from(split).map().to(work),
        g.edge_from(work).to(inner),
        g.edge_from(inner).to(after),
        g.edge_from(after).to(outer),
        g.edge_from(outer).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    async with asyncio.timeout(10):
        output = await kept.run(
            inputs=[[1, 2], [3, 4]],
            deps=asyncio.Event(),
            persistence=store.persistence(run_id),
        )
    assert sorted(output) == [[1, 2], [3, 4]]
