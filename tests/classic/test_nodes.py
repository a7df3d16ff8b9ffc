"""Nodes of every shape that upstream accepts."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

from graphkeep import LossyStateError, Store, UnstorableTypeError
from tests.classic.graphs import nodes, stopped_and_resumed

# --- one object, one class, many executions -------------------------------------------------------


@dataclass
class Loop(BaseNode[None, None, int]):
    """Returns itself until it has run ten times."""

    count: int = 0

    async def run(self, ctx: GraphRunContext[None]) -> Loop | End[int]:
        self.count += 1
        return self if self.count < 10 else End(self.count)


loop = Graph[None, None, int](nodes=(Loop,), name='loop')


@pytest.mark.parametrize('stops', [True, False])
async def test_a_node_that_returns_itself(store: Store, run_id: str, stops: bool) -> None:
    if stops:
        output, _, history = await stopped_and_resumed(loop, Loop(), store, run_id)
    else:
        persistence = store.persistence(run_id)
        output = (await loop.run(Loop(), persistence=persistence)).output
        history: Any = await persistence.load_all()

    assert output == 10
    assert nodes(history) == ['Loop success'] * 10 + ['end']
    assert [each.node.count for each in history[:-1]] == list(range(10))
    assert len({each.id for each in history}) == 11


@dataclass
class Copying(BaseNode[None, None, int]):
    count: int = 0

    async def run(self, ctx: GraphRunContext[None]) -> Copying | End[int]:
        # A copy has the snapshot id of its original.
        again = copy.copy(self) if self.count % 2 else dataclasses.replace(self)
        again.count += 1
        return again if again.count < 6 else End(again.count)


async def test_a_node_that_returns_a_copy_of_itself(store: Store, run_id: str) -> None:
    graph = Graph[None, None, int](nodes=(Copying,))
    persistence = store.persistence(run_id)

    result = await graph.run(Copying(), persistence=persistence)

    history: Any = await persistence.load_all()
    assert result.output == 6
    assert [each.node.count for each in history[:-1]] == list(range(6))


@dataclass
class Rounds:
    left: int = 3
    order: list[str] = field(default_factory=list[str])


@dataclass
class Ping(BaseNode[Rounds, None, int]):
    async def run(self, ctx: GraphRunContext[Rounds]) -> Pong | End[int]:
        ctx.state.order.append('ping')
        return PONG if ctx.state.left else End(len(ctx.state.order))


@dataclass
class Pong(BaseNode[Rounds, None, int]):
    async def run(self, ctx: GraphRunContext[Rounds]) -> Ping:
        ctx.state.order.append('pong')
        ctx.state.left -= 1
        return PING


PING, PONG = Ping(), Pong()
rounds = Graph[Rounds, None, int](nodes=(Ping, Pong), name='rounds')


async def test_node_objects_that_are_used_again_and_again(store: Store, run_id: str) -> None:
    """In this run, and in others: the objects belong to a module."""
    for number in range(2):
        persistence = store.persistence(f'{run_id}/{number}')
        result = await rounds.run(PING, state=Rounds(), persistence=persistence)

        assert result.output == 7
        history = await persistence.load_all()
        assert nodes(history) == [*['Ping success', 'Pong success'] * 3, 'Ping success', 'end']
        assert len({each.id for each in history}) == 8


async def test_ids_are_never_set_on_the_users_objects(store: Store, run_id: str) -> None:
    node = Loop(8)
    node.set_snapshot_id('mine')

    await loop.run(node, persistence=store.persistence(run_id))

    assert node.get_snapshot_id() == 'mine'


# --- fields, and none -----------------------------------------------------------------------------


class Bare(BaseNode[list[str], None, str]):
    """No fields, and no `@dataclass`."""

    async def run(self, ctx: GraphRunContext[list[str]]) -> Odd:
        ctx.state.append('bare')
        return Odd(node_id='a', kind='b', id='c', inputs={'node': 1})


@dataclass
class Odd(BaseNode[list[str], None, str]):
    """Its fields have the names that are ours in the document and upstream's in its file."""

    node_id: str
    kind: str
    id: str
    inputs: dict[str, int]

    async def run(self, ctx: GraphRunContext[list[str]]) -> Frozen:
        return Frozen(word=f'{self.node_id}{self.kind}{self.id}{self.inputs["node"]}')


@dataclass(frozen=True, kw_only=True)
class Frozen(BaseNode[list[str], None, str]):
    word: str

    async def run(self, ctx: GraphRunContext[list[str]]) -> Slotted:
        return Slotted(self.word)


@dataclass(slots=True)
class Slotted(BaseNode[list[str], None, str]):
    word: str

    async def run(self, ctx: GraphRunContext[list[str]]) -> FrozenSlotted:
        return FrozenSlotted(word=self.word)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlotted(BaseNode[list[str], None, str]):
    word: str

    async def run(self, ctx: GraphRunContext[list[str]]) -> Late:
        return Late(self.word)


@dataclass
class Late(BaseNode[list[str], None, str]):
    """A field that `__post_init__` sets, and one with a factory."""

    word: str
    length: int = field(init=False)
    seen: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.length = len(self.word)

    async def run(self, ctx: GraphRunContext[list[str]]) -> Model:
        return Model(length=self.length, **{'the word': self.word})


class Model(BaseModel, BaseNode[list[str], None, str]):
    """A pydantic model, with an alias."""

    model_config = ConfigDict(populate_by_name=True)

    length: int
    word: str = Field(alias='the word')

    async def run(self, ctx: GraphRunContext[list[str]]) -> Validated:
        return Validated(self.word * self.length)


@pydantic_dataclass
class Validated(BaseNode[list[str], None, str]):
    word: str

    async def run(self, ctx: GraphRunContext[list[str]]) -> End[str]:
        ctx.state.append(self.word)
        return End(self.word)


shapes = Graph[list[str], None, str](
    nodes=(Bare, Odd, Frozen, Slotted, FrozenSlotted, Late, Model, Validated), name='shapes'
)


async def test_every_kind_of_class(store: Store, run_id: str) -> None:
    output, state, history = await stopped_and_resumed(shapes, Bare(), store, run_id, state=[])

    assert output == 'abc1' * 4
    assert state == ['bare', 'abc1' * 4]
    assert [type(each.node) for each in history[:-1]] == list(shapes.get_nodes())
    assert [each.node for each in history[1:-1]] == [
        Odd(node_id='a', kind='b', id='c', inputs={'node': 1}),
        Frozen(word='abc1'),
        Slotted('abc1'),
        FrozenSlotted(word='abc1'),
        Late('abc1'),
        Model(length=4, word='abc1'),  # pyright: ignore[reportCallIssue]
        Validated('abc1' * 4),
    ]


async def test_every_kind_of_class_in_one_go(store: Store, run_id: str) -> None:
    result = await shapes.run(Bare(), state=[], persistence=store.persistence(run_id))

    assert result.output == 'abc1' * 4


# --- what cannot be stored ------------------------------------------------------------------------


class Holding(BaseNode[None, None, int]):
    """It holds something, and declares nothing."""

    def __init__(self, value: int) -> None:
        self.value = value

    async def run(self, ctx: GraphRunContext[None]) -> End[int]:
        return End(self.value)


@dataclass
class Callback(BaseNode[None, None, int]):
    callback: Any = None
    lock: object = None

    async def run(self, ctx: GraphRunContext[None]) -> End[int]:
        return End(0)


async def test_a_node_without_declared_fields_that_holds_something_is_refused_when_bound(
    store: Store, run_id: str
) -> None:
    graph = Graph[None, None, int](nodes=(Holding,))

    with pytest.raises(UnstorableTypeError, match=r'`Holding`.*@dataclass') as error:
        await graph.run(Holding(1), persistence=store.persistence(run_id))

    assert error.value.path == 'Holding'
    assert await store.runs() == []


async def test_what_was_hung_on_a_node_is_not_lost_unnoticed(store: Store, run_id: str) -> None:
    node = Bare()
    node.extra = 1  # type: ignore[attr-defined]

    with pytest.raises(LossyStateError, match=r'Bare\.extra'):
        await shapes.run(node, state=[], persistence=store.persistence(run_id))

    assert await store.runs() == []


async def test_a_field_of_any_kind_is_refused_when_its_value_would_change(
    store: Store, run_id: str
) -> None:
    graph = Graph[None, None, int](nodes=(Callback,))

    for value, path in ((Callback(callback=print), 'callback'), (Callback(lock=(1,)), 'lock')):
        with pytest.raises(LossyStateError) as error:
            await graph.run(value, persistence=store.persistence(run_id))
        assert error.value.path == f'Callback.{path}'
    assert await store.runs() == []


async def test_a_subclass_of_a_node_is_not_stored_as_the_node(store: Store, run_id: str) -> None:
    @dataclass
    class Special(Loop):
        extra: int = 0

        @classmethod
        @cache
        def get_node_id(cls) -> str:
            return 'Loop'

    with pytest.raises(LossyStateError, match='Special'):
        await loop.run(Special(), persistence=store.persistence(run_id))

    assert await store.runs() == []
