"""Kept builder graphs, to a type checker."""

# pyright: strict
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from pydantic_graph import StepContext
from pydantic_graph.graph_builder import EndMarker, Graph, GraphBuilder, GraphTask

import graphkeep
from graphkeep import CurrentTask, PersistentGraph, Store, current_task, merge, once
from graphkeep.builder import KeptRun


@dataclass
class State:
    count: Annotated[int, merge.add] = 0


@dataclass
class Deps:
    key: str


g = GraphBuilder(state_type=State, deps_type=Deps, input_type=str, output_type=int)


@g.step()
async def measure(ctx: StepContext[State, Deps, str]) -> int:
    return len(ctx.inputs)


g.add(g.edge_from(g.start_node).to(measure), g.edge_from(measure).to(g.end_node))
graph: Graph[State, Deps, str, int] = g.build()
kept = graphkeep.persist(graph)


async def a_kept_graph_has_the_types_of_its_graph(store: Store) -> None:
    assert_type(kept, PersistentGraph[State, Deps, str, int])
    assert_type(kept.graph, Graph[State, Deps, str, int])
    handle = store.persistence('order-42')
    output = await kept.run(state=State(), deps=Deps(''), inputs='a', persistence=handle)
    assert_type(output, int)
    assert_type(await kept.run(state=State(), deps=Deps(''), inputs='a'), int)
    assert_type(kept.run_sync(state=State(), deps=Deps(''), inputs='a'), int)
    assert_type(await kept.resume(handle, deps=Deps('')), int)
    assert_type(await graphkeep.resume(kept, handle, deps=Deps('')), int)
    assert_type(kept.render(title='x', direction='LR'), str)

    await kept.run(state=1, deps=Deps(''), inputs='a')  # pyright: ignore[reportArgumentType]
    await kept.run(state=State(), deps=1, inputs='a')  # pyright: ignore[reportArgumentType]
    await kept.run(state=State(), deps=Deps(''), inputs=1)  # pyright: ignore[reportArgumentType]
    await kept.run(persistence='order-42')  # pyright: ignore[reportArgumentType]
    await kept.resume(handle, deps=1)  # pyright: ignore[reportArgumentType]
    await kept.resume()  # pyright: ignore[reportCallIssue]


async def watching_gives_upstreams_events(store: Store) -> None:
    handle = store.persistence('order-42')
    async with kept.iter(state=State(), deps=Deps(''), inputs='a', persistence=handle) as run:
        assert_type(run, KeptRun[State, Deps, int])
        assert_type(run.state, State)
        assert_type(run.deps, Deps)
        assert_type(run.output, int | None)
        assert_type(await run.next(), Sequence[GraphTask] | EndMarker[Any])
        async for event in run:
            assert_type(event, Sequence[GraphTask] | EndMarker[Any])
    async with kept.iter_resumed(handle, deps=Deps('')) as run:
        assert_type(run, KeptRun[State, Deps, int])


def persist_takes_rules_and_types() -> None:
    def larger(base: Any, mine: int, committed: int) -> int:
        return max(mine, committed)

    graphkeep.persist(
        graph,
        merge={int: merge.add, float: larger},
        aliases={'old': 'measure'},
        types={'measure': str},
        joins={},
        max_parallel=4,
        verify='always',
        namespace={'Deps': Deps},
    )
    graphkeep.persist(graph, verify='never')  # pyright: ignore[reportArgumentType]
    graphkeep.persist(graph, max_parallel='4')  # pyright: ignore[reportArgumentType]
    graphkeep.persist('graph')  # pyright: ignore[reportArgumentType]


async def recover_takes_kept_graphs(store: Store) -> None:
    recovered = await graphkeep.recover(store, {'orders': kept}, deps=Deps(''))
    assert_type(recovered, list[graphkeep.Recovered])


async def a_kept_value_has_the_type_of_its_function() -> None:
    async def charge() -> State:
        return State()

    assert_type(await once('charge', charge), State)
    assert_type(await once('number', lambda: 1), int)
    assert_type(current_task(), CurrentTask)
    await once('argument', len)  # pyright: ignore[reportArgumentType]
    await once(1, charge)  # pyright: ignore[reportArgumentType]
