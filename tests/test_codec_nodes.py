"""Nodes of every shape that pydantic-graph accepts, and the types of a graph."""

from __future__ import annotations

import threading
from dataclasses import InitVar, dataclass, field
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_graph import BaseNode, End, GraphRunContext

from graphkeep.codec import NodeCodec, UnknownNodeError, infer_types
from graphkeep.errors import CodecError, LossyStateError, UnstorableTypeError

T = TypeVar('T')
StateT = TypeVar('StateT')
EndT = TypeVar('EndT')


@dataclass
class State:
    n: int = 0


class Base(BaseNode[State, None, int]):
    async def run(self, ctx: GraphRunContext[State, None]) -> End[int]:
        return End(1)


class Bare(Base):
    pass


@dataclass
class Empty(Base):
    pass


@dataclass
class Shared(Base):
    shared: int


@dataclass
class Inherits(Shared):
    node_id: str = 'x'
    kind: int = 3


class NotDecorated(Shared):
    extra: int = 0


@pydantic_dataclass
class Checked(Base):
    a: int = Field(gt=0)


class Model(BaseModel, BaseNode[State, None, int]):
    a: int
    b: list[int] = []

    async def run(self, ctx: GraphRunContext[State, None]) -> End[int]:
        return End(1)


@dataclass
class Fetch(Base, Generic[T]):
    what: T


@dataclass(frozen=True, kw_only=True)
class Frozen(Base):
    later: Later


@dataclass
class Later:
    z: int


@dataclass(slots=True)
class Slotted(Base):
    a: int


@dataclass
class Counted(Base):
    a: int
    count: int = field(init=False, default=0)


@dataclass
class Derived(Base):
    a: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.a * 2


@dataclass
class WithInitVar(Base):
    a: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self._product = self.a * factor


@dataclass
class Holds(Base):
    inner: Slotted | Empty
    model: Model


def counted() -> Counted:
    node = Counted(1)
    node.count = 9
    return node


NODES = [
    Bare(),
    Empty(),
    Shared(1),
    Inherits(1, 'mine', 4),
    NotDecorated(3),
    Checked(a=1),
    Model(a=1),
    Fetch(1),
    Fetch('x'),
    Frozen(later=Later(1)),
    Slotted(1),
    counted(),
    Derived(4),
    WithInitVar(3),
    Holds(Slotted(1), Model(a=2)),
    Holds(Empty(), Model(a=2)),
]
CODEC = NodeCodec({cls.__name__: cls for cls in map(type, NODES)})


@pytest.mark.parametrize('node', NODES, ids=repr)
def test_a_node_comes_back(node: Any) -> None:
    # What pydantic-graph 1.x puts into a node's `__dict__`.
    for each in (node, *vars(node).values()):
        if isinstance(each, BaseNode):
            object.__setattr__(each, '__snapshot_id', 'Node:1')
    node_id, inputs = CODEC.encode(node)
    back = CODEC.decode(node_id, inputs)
    assert node_id == type(node).__name__
    assert b'snapshot' not in inputs
    assert getattr(node, '__snapshot_id') == 'Node:1'
    assert type(back) is type(node)
    if not isinstance(node, Bare):
        assert back == node or vars(back).keys() < vars(node).keys()
    assert CODEC.encode(back) == (node_id, inputs)


def test_inputs_are_apart_from_the_id() -> None:
    assert CODEC.encode(Inherits(1, 'mine', 4)) == (
        'Inherits',
        b'{"shared":1,"node_id":"mine","kind":4}',
    )
    assert CODEC.encode(Bare()) == ('Bare', b'{}')
    assert CODEC.encode(Empty()) == ('Empty', b'{}')


class OwnInit(Base):
    def __init__(self, x: int) -> None:
        self.x = x


@dataclass
class Locks(Base):
    locks: list[threading.Lock]


@dataclass
class NeedsInitVar(Base):
    a: int
    factor: InitVar[int]


@pytest.mark.parametrize(
    ('node', 'path', 'advice'),
    [
        (OwnInit, 'OwnInit', '@dataclass'),
        (Locks, 'Locks.locks[…]', '`deps`'),
        (NeedsInitVar, 'NeedsInitVar.factor', 'default'),
    ],
)
def test_what_cannot_be_stored_is_refused_when_bound(node: Any, path: str, advice: str) -> None:
    with pytest.raises(UnstorableTypeError, match=advice) as caught:
        NodeCodec({'Empty': Empty, node.__name__: node})
    assert caught.value.path == path


def test_attributes_that_are_no_fields_are_refused() -> None:
    for node in (NotDecorated(3), Bare(), Inherits(1)):
        node.beside = 5  # type: ignore[union-attr]
        with pytest.raises(LossyStateError) as caught:
            CODEC.encode(node)
        assert caught.value.path == f'{type(node).__name__}.beside'


def test_a_node_that_its_post_init_would_change_is_refused() -> None:
    node = Derived(4)
    node.twice = 77
    with pytest.raises(LossyStateError, match=r'77.*8') as caught:
        CODEC.encode(node)
    assert caught.value.path == 'Derived.twice'


def test_a_node_of_another_graph_is_refused() -> None:
    with pytest.raises(LossyStateError, match='not in the graph'):
        CODEC.encode(OwnInit(1))


def test_an_unknown_id_is_a_lookup_error() -> None:
    with pytest.raises(UnknownNodeError, match="no node 'Gone'") as caught:
        CODEC.decode('Gone', b'{}')
    assert isinstance(caught.value, LookupError)
    with pytest.raises(CodecError) as misfit:
        CODEC.decode('Inherits', b'{}')
    assert misfit.value.path == 'Inherits.shared'


def test_a_generic_node_may_be_given_with_its_arguments() -> None:
    codec = NodeCodec({'Fetch': Fetch[tuple[int, ...]]})
    assert codec.decode(*codec.encode(Fetch((1, 2)))) == Fetch((1, 2))
    with pytest.raises(LossyStateError):
        CODEC.encode(Fetch((1, 2)))


def test_classes_defined_in_a_function() -> None:
    @dataclass
    class Place:
        q: int

    @dataclass
    class Local(Base):
        place: Place
        then: Local | None = None

    with pytest.raises(UnstorableTypeError, match=r"'Place'.*namespace="):
        NodeCodec({'Local': Local})
    codec = NodeCodec({'Local': Local}, namespace=locals())
    node = Local(Place(1), Local(Place(2)))
    assert codec.decode(*codec.encode(node)) == node


def test_types_are_found_through_base_classes() -> None:
    class Middle(BaseNode[StateT, None, list[EndT]], Generic[StateT, EndT]):
        pass

    class Ints(Middle[State, int]):
        pass

    class Strs(Middle[StateT, str], Generic[StateT]):
        pass

    class Last(Strs[State]):
        pass

    class Forward(BaseNode['State', 'None', 'int']):
        pass

    class Plain(BaseNode):
        pass

    class StateOnly(BaseNode[State]):
        pass

    assert infer_types([Ints]) == (State, list[int])
    assert infer_types([Last]) == (State, list[str])
    assert infer_types([Strs[State]]) == (State, list[str])
    assert infer_types([Forward]) == (State, int)
    assert infer_types([Inherits, Model]) == (State, int)
    assert infer_types([Plain]) == (None, None)
    assert infer_types([StateOnly]) == (State, None)
    assert infer_types([Plain, StateOnly, Ints, Forward]) == (State, list[int] | int)
    assert infer_types([Ints], state_type=int) == (int, list[int])
    assert infer_types([Ints], end_type=None) == (State, None)
