"""Runs that a graph of today cannot take up: refused before any step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import GraphChangedError, RunStatusError, Store


def mapped(type_: type[Any], work: Callable[[int], Any]) -> Any:
    """A map of a step that returns a `type_`, and a join."""
    g: Any = GraphBuilder(
        name='mapped', input_type=list[int], output_type=list[type_], auto_instrument=False
    )

    async def run(ctx: StepContext[None, None, int]) -> Any:
        return work(ctx.inputs)

    run.__annotations__['return'] = type_
    step = g.step(run, node_id='work')
    join = g.join(reduce_list_append, initial_factory=list[type_], node_id='all')
    g.add(
        g.edge_from(g.start_node).map().to(step),
        g.edge_from(step).to(join),
        g.edge_from(join).to(g.end_node),
    )
    return graphkeep.persist(g.build())


def up_to_one(number: int) -> int:
    if number > 1:
        raise ConnectionError('down')
    return number


async def test_items_that_wait_at_a_join_are_read_before_a_step_runs(
    store: Store, run_id: str
) -> None:
    with pytest.raises(ConnectionError):
        await mapped(int, up_to_one).run(inputs=[1, 2], persistence=store.persistence(run_id))
    before = await store.snapshots(run_id)
    ran: list[int] = []

    with pytest.raises(GraphChangedError, match="items waiting at join 'all'") as caught:
        await mapped(str, ran.append).resume(store.persistence(run_id))

    assert (caught.value.run_id, caught.value.node) == (run_id, 'all')
    assert '..' not in str(caught.value)
    assert ran == []
    assert await store.snapshots(run_id) == before
    assert await mapped(int, lambda number: number).resume(store.persistence(run_id)) == [1, 2]


async def test_a_run_of_which_nothing_is_left_says_so(store: Store, run_id: str) -> None:
    g: Any = GraphBuilder(
        name='nothing', input_type=list[int], output_type=int, auto_instrument=False
    )

    @g.step
    async def same(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs

    g.add(g.edge_from(g.start_node).map().to(same), g.edge_from(same).to(g.end_node))
    kept: Any = graphkeep.persist(g.build())
    # Upstream's own error: a map over nothing, with no join behind.
    with pytest.raises(RuntimeError, match='no result'):
        await kept.run(inputs=[], persistence=store.persistence(run_id))
    assert (await store.run(run_id)).status == 'failed'

    with pytest.raises(RunStatusError, match='nothing of it is left to run') as caught:
        await kept.resume(store.persistence(run_id))

    assert caught.value.status == 'failed'
    assert 'forked' not in str(caught.value)
