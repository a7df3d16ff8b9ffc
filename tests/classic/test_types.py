"""Where types are found: through bases, generics, forward references and functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import LossyStateError, Store
from tests.classic.graphs import stopped_and_resumed

T = TypeVar('T')


@dataclass
class Shared:
    items: list[str] = field(default_factory=list[str])


class Logged(BaseNode[Shared, None, T]):
    """A base class that all nodes of a graph share: it names the state, they name the end."""

    async def note(self, ctx: GraphRunContext[Shared]) -> None:
        ctx.state.items.append(type(self).__name__)


@dataclass
class Begin(Logged[Any]):
    async def run(self, ctx: GraphRunContext[Shared]) -> Finish:
        await self.note(ctx)
        return Finish({'when': {1, 2}})


@dataclass
class Finish(Logged[dict[str, set[int]]]):
    data: dict[str, set[int]]

    async def run(self, ctx: GraphRunContext[Shared]) -> End[dict[str, set[int]]]:
        await self.note(ctx)
        return End(self.data)


async def test_state_and_end_are_found_through_a_shared_base_class(
    store: Store, run_id: str
) -> None:
    graph = Graph[Shared, None, dict[str, set[int]]](nodes=(Begin, Finish))

    output, state, _ = await stopped_and_resumed(graph, Begin(), store, run_id, state=Shared())

    assert output == {'when': {1, 2}}
    assert state == Shared(['Begin', 'Finish'])
    ended = await graphkeep.resume(graph, store.persistence(run_id))
    assert (ended.output, ended.state) == (output, state)


@dataclass
class Box(BaseNode[None, None, T], Generic[T]):
    content: T

    async def run(self, ctx: GraphRunContext[None]) -> End[T]:
        return End(self.content)


@dataclass
class Wrap(BaseNode[None, None, Any]):
    async def run(self, ctx: GraphRunContext[None]) -> Box[list[int]]:
        return Box([1, 2])


class Crate(BaseModel, BaseNode[None, None, T], Generic[T]):
    content: T

    async def run(self, ctx: GraphRunContext[None]) -> End[T]:
        return End(self.content)


class Pairs(Crate[list[tuple[int, str]]]):
    pass


async def test_a_generic_node_that_is_a_model(store: Store, run_id: str) -> None:
    graph = Graph[None, None, list[tuple[int, str]]](nodes=(Pairs,))

    output, _, history = await stopped_and_resumed(graph, Pairs(content=[(1, 'a')]), store, run_id)

    assert output == [(1, 'a')]
    assert history[0].node == Pairs(content=[(1, 'a')])


async def test_a_generic_node_that_nobody_gave_a_type_keeps_what_json_keeps(
    store: Store, run_id: str
) -> None:
    graph = Graph[None, None, Any](nodes=(Wrap, Box))

    output, _, history = await stopped_and_resumed(graph, Wrap(), store, run_id)

    assert output == [1, 2]
    assert history[1].node == Box([1, 2])
    with pytest.raises(LossyStateError, match=r'Box\.content'):
        await graph.initialize(Box((1, 'a')), store.persistence(f'{run_id}/tuple'))


@dataclass
class Referring(BaseNode['Shared', None, 'Later']):
    later: Later | None
    nested: list[Later] = field(default_factory=list)

    async def run(self, ctx: GraphRunContext[Shared]) -> Referring | End[Later]:
        if self.later is None:
            return Referring(Later('yes'), [Later('no')])
        return End(self.later)


@dataclass
class Later:
    word: str


async def test_forward_references(store: Store, run_id: str) -> None:
    graph = Graph[Shared, None, Later](nodes=(Referring,))

    output, state, history = await stopped_and_resumed(
        graph, Referring(None), store, run_id, state=Shared()
    )

    assert output == Later('yes')
    assert state == Shared()
    assert history[1].node == Referring(Later('yes'), [Later('no')])


async def test_classes_defined_in_a_function(store: Store, run_id: str) -> None:
    @dataclass
    class Detail:
        size: int

    @dataclass
    class State:
        details: list[Detail]

    @dataclass
    class First(BaseNode[State]):
        async def run(self, ctx: GraphRunContext[State]) -> Second:
            ctx.state.details.append(Detail(1))
            return Second(ctx.state.details[0])

    @dataclass
    class Second(BaseNode[State, None, Detail]):
        detail: Detail

        async def run(self, ctx: GraphRunContext[State]) -> End[Detail]:
            return End(self.detail)

    graph = Graph(nodes=(First, Second))
    output, state, history = await stopped_and_resumed(
        graph, First(), store, run_id, state=State([])
    )

    assert output == Detail(1)
    assert state == State([Detail(1)])
    assert history[1].node == Second(Detail(1))


def local_graph() -> tuple[Any, Any]:
    @dataclass
    class State:
        n: int

    @dataclass
    class Once(BaseNode[State, None, int]):
        async def run(self, ctx: GraphRunContext[State]) -> End[int]:
            return End(ctx.state.n)

    return Graph(nodes=(Once,)), (Once(), State(3))


async def test_a_graph_from_a_function_that_has_returned(store: Store, run_id: str) -> None:
    graph, (node, state) = local_graph()

    output, _, _ = await stopped_and_resumed(graph, node, store, run_id, state=state)

    assert output == 3


async def test_types_that_the_graph_was_given(store: Store, run_id: str) -> None:
    @dataclass
    class Untyped(BaseNode):
        async def run(self, ctx: GraphRunContext[Any]) -> End[Any]:
            return End((ctx.state[0], 'x'))

    graph = Graph(
        nodes=(Untyped,),
        state_type=tuple[int, ...],  # pyright: ignore[reportArgumentType]
        run_end_type=tuple[int, str],
        name='given',
    )
    output, state, _ = await stopped_and_resumed(graph, Untyped(), store, run_id, state=(4, 5))

    assert output == (4, 'x')
    assert state == (4, 5)


async def test_a_node_with_an_id_of_its_own(store: Store, run_id: str) -> None:
    class Renamed(BaseNode[list[str], None, str]):
        @classmethod
        @cache
        def get_node_id(cls) -> str:
            return 'the "renamed" node\n'

        async def run(self, ctx: GraphRunContext[list[str]]) -> End[str]:
            return End('done')

    graph = Graph[list[str], None, str](nodes=(Renamed,))
    output, _, history = await stopped_and_resumed(graph, Renamed(), store, run_id, state=[])

    assert output == 'done'
    assert history[0].id == 'the "renamed" node\n:0'


async def test_a_union_of_what_several_nodes_end_with(store: Store, run_id: str) -> None:
    @dataclass
    class Number(BaseNode[None, None, int]):
        async def run(self, ctx: GraphRunContext[None]) -> Text | End[int]:
            return Text('5')

    @dataclass
    class Text(BaseNode[None, None, str]):
        text: str

        async def run(self, ctx: GraphRunContext[None]) -> End[str]:
            return End(self.text)

    graph = Graph(nodes=(Number, Text))
    output, _, _ = await stopped_and_resumed(graph, Number(), store, run_id)

    assert output == '5'
    assert (await graphkeep.resume(graph, store.persistence(run_id))).output == '5'
