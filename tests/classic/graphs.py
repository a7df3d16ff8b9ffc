"""The graphs that the tests run, and what they look at afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph, GraphRun, GraphRunResult
from pydantic_graph.persistence import EndSnapshot, NodeSnapshot

from graphkeep import Run, Snapshot, Store
from graphkeep.classic import StatePersistence

Hook: TypeAlias = 'Callable[[Context, BaseNode[Any, Any, Any]], Awaitable[None]]'


@dataclass
class Order:
    lines: list[str] = field(default_factory=list[str])
    total: int = 0


@dataclass
class Deps:
    """What is outside of the run: which nodes ran, and what happens in them."""

    ran: list[str] = field(default_factory=list[str])
    hooks: dict[str, Hook] = field(default_factory=dict[str, Hook])


Context: TypeAlias = GraphRunContext[Order, Deps | None]


async def visit(ctx: Context, node: BaseNode[Any, Any, Any]) -> None:
    """Note that a node runs, and let the test do what it wants to there."""
    if ctx.deps is not None:
        name = type(node).__name__
        ctx.deps.ran.append(name)
        if hook := ctx.deps.hooks.get(name):
            await hook(ctx, node)


@dataclass
class Pick(BaseNode[Order, Deps | None, int]):
    item: str

    async def run(self, ctx: GraphRunContext[Order, Deps | None]) -> Price:
        await visit(ctx, self)
        ctx.state.lines.append(self.item)
        return Price(cents=len(self.item) * 100)


@dataclass
class Price(BaseNode[Order, Deps | None, int]):
    cents: int

    async def run(self, ctx: GraphRunContext[Order, Deps | None]) -> Pay:
        await visit(ctx, self)
        ctx.state.total += self.cents
        return Pay()


@dataclass
class Pay(BaseNode[Order, Deps | None, int]):
    tip: int = 0

    async def run(self, ctx: GraphRunContext[Order, Deps | None]) -> Pick | End[int]:
        await visit(ctx, self)
        ctx.state.lines.append('paid')
        return End(ctx.state.total + self.tip)


orders = Graph[Order, Deps | None, int](nodes=(Pick, Price, Pay), name='orders')
"""Three nodes: `Pick('tea')` ends with 300, and with the lines tea and paid."""


async def order_tea(
    store: Store, run_id: str, *, deps: Deps | None = None
) -> GraphRunResult[Order, int]:
    """A new run of `orders`, to its end."""
    return await orders.run(
        Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
    )


def tea_by_node(
    store: Store, run_id: str, *, deps: Deps | None = None
) -> AbstractAsyncContextManager[GraphRun[Order, Deps | None, int]]:
    """A new run of `orders`, node by node."""
    return orders.iter(Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id))


async def loaded(
    store: Store, run_id: str
) -> tuple[StatePersistence[Any, Any], NodeSnapshot[Any, Any]]:
    """A new run of `orders` in which no node has run: a handle, and what it loaded."""
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    handle = store.persistence(run_id)
    handle.set_graph_types(orders)
    snapshot = await handle.load_next()
    assert snapshot is not None
    return handle, snapshot


def fails(error: BaseException, *, times: int = 1) -> Hook:
    """A hook that raises, the first times it is called."""
    left = [error] * times

    async def hook(ctx: Context, node: BaseNode[Any, Any, Any]) -> None:
        if left:
            raise left.pop()

    return hook


def stops_at(name: str) -> tuple[Deps, asyncio.Event, asyncio.Event]:
    """Deps with which a node waits: that it has begun, and a signal to go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: Any, node: Any) -> None:
        begun.set()
        await go_on.wait()

    return Deps(hooks={name: wait}), begun, go_on


async def stopped_and_resumed(
    graph: Graph[Any, Any, Any],
    start: BaseNode[Any, Any, Any],
    store: Store,
    run_id: str,
    *,
    state: Any = None,
) -> Any:
    """Run one node at a time, each from what is stored. Gives output, state and history."""
    await graph.initialize(start, store.persistence(run_id), state=state, infer_name=False)
    while True:
        persistence = store.persistence(run_id)
        async with graph.iter_from_persistence(persistence, infer_name=False) as run:
            node = await run.next()
        if isinstance(node, End):
            return node.data, run.state, await persistence.load_all()


# --- a person in the loop: the graph of upstream's documentation ----------------------------------


@dataclass
class Quiz:
    question: str | None = None
    wrong: list[str] = field(default_factory=list[str])


@dataclass
class Ask(BaseNode[Quiz, None, str]):
    async def run(self, ctx: GraphRunContext[Quiz]) -> Answer:
        ctx.state.question = 'What is the capital of France?'
        return Answer(ctx.state.question)


@dataclass
class Answer(BaseNode[Quiz, None, str]):
    question: str
    answer: str | None = None

    async def run(self, ctx: GraphRunContext[Quiz]) -> Evaluate:
        assert self.answer is not None, 'nobody has answered'
        return Evaluate(self.answer)


@dataclass
class Evaluate(BaseNode[Quiz, None, str]):
    answer: str

    async def run(self, ctx: GraphRunContext[Quiz]) -> Ask | End[str]:
        if self.answer == 'Paris':
            return End(f'{self.answer} is right, after {len(ctx.state.wrong)} wrong answers')
        ctx.state.wrong.append(self.answer)
        return Ask()


quiz = Graph[Quiz, None, str](nodes=(Ask, Answer, Evaluate), name='quiz')


async def answer_quiz(store: Store, run_id: str, answer: str | None) -> str:
    """What one call of the program in upstream's documentation says, with our persistence."""
    persistence = store.persistence(run_id)
    persistence.set_graph_types(quiz)
    if snapshot := await persistence.load_next():
        assert answer is not None
        state, node = snapshot.state, Evaluate(answer)
    else:
        state, node = Quiz(), Ask()
    async with quiz.iter(node, state=state, persistence=persistence) as run:
        while True:
            node = await run.next()
            if isinstance(node, End):
                return f'END: {node.data}'
            if isinstance(node, Answer):
                return node.question


# --- what is stored -------------------------------------------------------------------------------


async def rows(store: Store, run_id: str) -> tuple[Run, list[Snapshot]]:
    """All that the database holds of a run, but who has the claim."""
    return await store.run(run_id), await store.snapshots(run_id)


async def status(store: Store, run_id: str) -> str:
    """The status of a run."""
    return (await store.run(run_id)).status


async def events(store: Store, run_id: str) -> list[str]:
    """Why each snapshot of a run was written."""
    return [snapshot.event for snapshot in await store.snapshots(run_id)]


def count_calls(store: Store) -> Counter[str]:
    """Count the calls of the database from now on, by hook: `create`, `claim`, `append`, …"""
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        hook = getattr(store, f'_{name}')

        async def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return await hook(*args, **kwargs)

        setattr(store, f'_{name}', call)

    for name in ('create', 'claim', 'append', 'renew', 'release', 'header', 'read', 'history'):
        counted(name)
    return calls


def writes_through(store: Store, append: Any) -> None:
    """Put `append` in the place of the hook that writes commits. It may wait, and fail."""
    store._append = append
    # The memory store's own hook does neither, and needs no queue in front of it.
    store.grouped = True


def writes(calls: Counter[str]) -> dict[str, int]:
    """The calls among these that write."""
    return {
        name: calls[name]
        for name in ('create', 'claim', 'append', 'renew', 'release')
        if calls[name]
    }


# --- histories ------------------------------------------------------------------------------------


def shape(history: Sequence[NodeSnapshot[Any, Any] | EndSnapshot[Any, Any]]) -> list[Any]:
    """A history without its clock readings and the random part of its ids."""
    shaped: list[Any] = []
    for each in history:
        name = each.id.partition(':')[0]
        if isinstance(each, EndSnapshot):
            shaped.append((name, each.state, each.result))
        else:
            ran = each.start_ts is not None, each.duration is not None
            shaped.append((name, each.status, each.state, each.node, *ran))
    return shaped


def nodes(history: Sequence[NodeSnapshot[Any, Any] | EndSnapshot[Any, Any]]) -> list[str]:
    """A history as `Node status`, and `end`."""
    return [
        'end' if isinstance(each, EndSnapshot) else f'{type(each.node).__name__} {each.status}'
        for each in history
    ]
