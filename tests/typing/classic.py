"""pydantic-graph 1.x graphs with our persistence, to a type checker."""

# pyright: strict
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph, GraphRun, GraphRunResult
from pydantic_graph.persistence import BaseStatePersistence, NodeSnapshot, Snapshot

import graphkeep
from graphkeep import Recovered, Store
from graphkeep.classic import StatePersistence


@dataclass
class State:
    topic: str


@dataclass
class Deps:
    key: str


@dataclass
class First(BaseNode[State, Deps]):
    async def run(self, ctx: GraphRunContext[State, Deps]) -> Last:
        return Last()


@dataclass
class Last(BaseNode[State, Deps, int]):
    async def run(self, ctx: GraphRunContext[State, Deps]) -> End[int]:
        return End(1)


@dataclass
class Other(BaseNode[None, None, str]):
    async def run(self, ctx: GraphRunContext[None, None]) -> End[str]:
        return End('')


graph = Graph[State, Deps, int](nodes=(First, Last))
stateless = Graph[None, None, str](nodes=(Other,))


async def a_handle_fits_any_graph(store: Store) -> None:
    handle = store.persistence('order-42', labels={'customer': 'c'})
    assert_type(handle, StatePersistence[Any, Any])
    result = await graph.run(First(), state=State(''), deps=Deps(''), persistence=handle)
    assert_type(result, GraphRunResult[State, int])
    assert_type(result.output, int)
    assert_type(result.state, State)
    assert_type(await stateless.run(Other(), persistence=handle), GraphRunResult[None, str])
    sync = graph.run_sync(First(), state=State(''), deps=Deps(''), persistence=handle)
    assert_type(sync, GraphRunResult[State, int])
    await graph.initialize(First(), handle, state=State(''))
    async with graph.iter(First(), state=State(''), deps=Deps(''), persistence=handle) as run:
        assert_type(run, GraphRun[State, Deps, int])
        assert_type(await run.next(), BaseNode[State, Deps, int] | End[int])
    async with graph.iter_from_persistence(handle, deps=Deps('')) as run:
        assert_type(run.state, State)

    store.persistence(42)  # pyright: ignore[reportArgumentType]
    store.persistence('x', labels={'a': 1})  # pyright: ignore[reportArgumentType]
    store.persistence('x', 'orders')  # pyright: ignore[reportCallIssue]


async def a_handle_may_be_given_the_types_of_its_graph(store: Store) -> None:
    handle: StatePersistence[State, int] = store.persistence('order-42')
    theirs: BaseStatePersistence[State, int] = handle
    await graph.run(First(), state=State(''), deps=Deps(''), persistence=theirs)
    snapshot = await handle.load_next()
    assert_type(snapshot, NodeSnapshot[State, int] | None)
    assert_type(await handle.load_all(), list[Snapshot[State, int]])
    await stateless.run(Other(), persistence=handle)  # pyright: ignore[reportArgumentType]


async def resume_gives_what_the_graph_gives(store: Store) -> None:
    handle = store.persistence('order-42')
    result = await graphkeep.resume(graph, handle, deps=Deps(''))
    assert_type(result, GraphRunResult[State, int])
    assert_type(await graphkeep.resume(stateless, handle), GraphRunResult[None, str])
    started = await graphkeep.resume(graph, handle, deps=Deps(''), start=First(), state=State(''))
    assert_type(started.output, int)
    assert_type(started.state, State)

    await graphkeep.resume(graph, handle)  # pyright: ignore[reportCallIssue, reportArgumentType]
    await graphkeep.resume(graph, handle, deps=5)  # pyright: ignore[reportArgumentType, reportCallIssue]
    await graphkeep.resume(graph, 'order-42', deps=Deps(''))  # pyright: ignore[reportArgumentType, reportCallIssue]
    await graphkeep.resume(
        graph,
        handle,
        deps=Deps(''),
        start=Other(),  # pyright: ignore[reportArgumentType]
    )
    await graphkeep.resume(
        graph,
        handle,
        deps=Deps(''),
        state='x',  # pyright: ignore[reportArgumentType]
    )


async def recover_takes_graphs_of_any_kind(store: Store) -> None:
    recovered = await graphkeep.recover(store, {'orders': graph, 'other': stateless}, ready=True)
    assert_type(recovered, list[Recovered])
    assert_type(recovered[0].error, Exception | None)
    assert_type(recovered[0].run_id, str)
    await graphkeep.recover(store, [graph])  # pyright: ignore[reportArgumentType]
