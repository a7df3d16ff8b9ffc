"""Every type that pydantic can round-trip, through whole runs."""

from __future__ import annotations

import enum
import gc
import weakref
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph
from typing_extensions import TypedDict

import graphkeep
from graphkeep import Store
from tests.classic.conftest import every_store

UTC_PLUS = timezone(timedelta(hours=5, minutes=45))


class Shelf:
    class Colour(enum.Enum):
        RED = 'red'
        DEEP = 'deep'

    class Size(enum.IntEnum):
        BIG = 9


class Word(enum.StrEnum):
    YES = 'yes'


class Flags(enum.Flag):
    A = 1
    B = 2


class Cat(BaseModel):
    kind: Literal['cat'] = 'cat'
    lives: int


class Dog(BaseModel):
    kind: Literal['dog'] = 'dog'
    tricks: tuple[str, ...] = ()


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    user_name: str = Field(alias='userName')
    pets: list[Annotated[Cat | Dog, Field(discriminator='kind')]] = []


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    deep: bool
    names: list[str]


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = 'EUR'


@dataclass
class Everything:
    decimal: Decimal
    zoned: datetime
    naive: datetime
    day: date
    clock: time
    span: timedelta
    uuid: UUID
    colour: Shelf.Colour
    size: Shelf.Size
    word: Word
    flags: Flags
    words: set[str]
    frozen: frozenset[tuple[int, str]]
    pair: tuple[int, float, None]
    queue: deque[int]
    counts: defaultdict[str, list[int]]
    ordered: OrderedDict[str, int]
    big: int
    small: float
    by_number: dict[int, Money]
    by_colour: dict[Word, Point]
    pets: list[Annotated[Cat | Dog, Field(discriminator='kind')]]
    aliased: Aliased
    options: Options
    raw: bytes
    address: IPv4Address
    path: PurePosixPath
    union: int | str | float | bool | None
    nested: list[dict[str, set[Money]]]
    anything: Any
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    recursive: Everything | None = None


def messages() -> list[ModelMessage]:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        ModelRequest(
            parts=[
                UserPromptPart(
                    ['Look:', BinaryContent(data=bytes(range(256)), media_type='image/png')],
                    timestamp=when,
                )
            ]
        ),
        ModelResponse(
            parts=[TextPart('hm'), ToolCallPart('look', {'at': 'it'}, tool_call_id='1')],
            timestamp=when,
        ),
        ModelRequest(
            parts=[ToolReturnPart('look', {'seen': [1, 'two']}, tool_call_id='1', timestamp=when)]
        ),
    ]


def everything() -> Everything:
    money = Money(Decimal('0.10'))
    return Everything(
        decimal=Decimal('1.10'),
        zoned=datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC_PLUS),
        naive=datetime(2026, 3, 1),  # noqa: DTZ001
        day=date(1, 1, 1),
        clock=time(23, 59, 59, 999999),
        span=timedelta(days=-1, microseconds=1),
        uuid=UUID(int=1),
        colour=Shelf.Colour.DEEP,
        size=Shelf.Size.BIG,
        word=Word.YES,
        flags=Flags.A | Flags.B,
        words={'b', 'a', ''},
        frozen=frozenset({(1, 'a'), (2, 'b')}),
        pair=(1, 2.0, None),
        queue=deque([3, 1, 2]),
        counts=defaultdict(list, {'a': [1]}),
        ordered=OrderedDict([('z', 1), ('a', 2)]),
        big=10**100,
        small=0.1 + 0.2,
        by_number={1: money, -2: Money(Decimal(5))},
        by_colour={Word.YES: Point(1, 2.0)},
        pets=[Dog(tricks=('sit',)), Cat(lives=9)],
        aliased=Aliased(userName='u', pets=[Cat(lives=1)]),
        options={'names': ['n']},
        raw=b'\xff\x00',
        address=IPv4Address('10.0.0.1'),
        path=PurePosixPath('a/b'),
        union=True,
        nested=[{'x': {money}}],
        anything={'a': [1, 1.5, None, True, 'x', {'deep': []}]},
        messages=messages(),
    )


@dataclass
class Keep(BaseNode[Everything, None, Everything]):
    """Has the state among its own fields as well."""

    also: Everything | None = None

    async def run(self, ctx: GraphRunContext[Everything]) -> Keep | End[Everything]:
        if self.also is None:
            ctx.state.recursive = everything()
            ctx.state.messages.extend(messages())
            return Keep(everything())
        return End(self.also)


keep = Graph[Everything, None, Everything](nodes=(Keep,), name='keep')


def same(found: Any, expected: Any) -> None:
    assert found == expected
    for each in fields(expected):
        was, became = getattr(expected, each.name), getattr(found, each.name)
        assert type(became) is type(was), each.name
    assert found.counts.default_factory is list
    assert found.union is True
    assert found.zoned.utcoffset() == timedelta(hours=5, minutes=45)
    assert list(found.by_number) == [1, -2]


@every_store
async def test_every_type_comes_back_equal(store: Store, run_id: str) -> None:
    await keep.initialize(Keep(), store.persistence(run_id), state=everything())
    async with keep.iter_from_persistence(store.persistence(run_id)) as run:
        same(run.state, everything())
        await run.next()

    persistence = store.persistence(run_id)
    result = await graphkeep.resume(keep, persistence)

    expected = everything()
    expected.recursive = everything()
    expected.messages += messages()
    same(result.output, everything())
    same(result.state, expected)
    history: Any = await persistence.load_all()
    same(history[1].node.also, everything())
    assert [each.event for each in await store.snapshots(run_id)] == ['start', 'step', 'end']


async def test_with_everything_loaded_back_at_every_step(store: Store, run_id: str) -> None:
    from graphkeep.classic import StatePersistence

    persistence = StatePersistence[Everything, Everything](store, run_id, verify='always')
    result = await keep.run(Keep(), state=everything(), persistence=persistence)

    same(result.output, everything())
    assert [each.event for each in await store.snapshots(run_id)] == ['start', 'step', 'end']


async def test_a_secret_is_no_state(store: Store, run_id: str) -> None:
    """It would be stored as stars."""

    @dataclass
    class Hidden:
        token: SecretStr

    @dataclass
    class Node(BaseNode[Hidden, None, int]):
        async def run(self, ctx: GraphRunContext[Hidden]) -> End[int]:
            return End(0)

    graph = Graph(nodes=(Node,))
    try:
        await graph.run(
            Node(), state=Hidden(SecretStr('hunter2')), persistence=store.persistence(run_id)
        )
    except graphkeep.CodecError as error:
        assert error.path == 'state.token'  # noqa: PT017
        assert 'hunter2' not in str(error)  # noqa: PT017
        assert await store.runs() == []
    else:
        found = await graphkeep.resume(graph, store.persistence(run_id))
        assert found.state.token.get_secret_value() == 'hunter2'


@dataclass
class Count(BaseNode[dict[str, int], None, Fraction]):
    async def run(self, ctx: GraphRunContext[dict[str, int]]) -> Count | End[Fraction]:
        ctx.state['n'] = ctx.state.get('n', 0) + 1
        ctx.state[f'key {ctx.state["n"]}'] = ctx.state['n']
        return Count() if ctx.state['n'] < 3 else End(Fraction(1, 3))


async def test_a_state_that_is_a_dict(store: Store, run_id: str) -> None:
    graph = Graph[dict[str, int], None, Fraction](nodes=(Count,))
    await graph.initialize(Count(), store.persistence(run_id), state={'z': 0})
    for _ in range(2):
        async with graph.iter_from_persistence(store.persistence(run_id)) as run:
            await run.next()

    result = await graphkeep.resume(graph, store.persistence(run_id))

    assert result.output == Fraction(1, 3)
    assert list(result.state.items()) == [
        ('z', 0),
        ('n', 3),
        ('key 1', 1),
        ('key 2', 2),
        ('key 3', 3),
    ]


async def test_sets_are_no_edit(store: Store, run_id: str) -> None:
    """Their order differs between processes; their stored form does not."""

    @dataclass
    class Sets(BaseNode[set[str], None, None]):
        words: frozenset[str] = frozenset()

        async def run(self, ctx: GraphRunContext[set[str]]) -> End[None]:
            return End(None)

    graph = Graph(nodes=(Sets,))
    words = {f'word {n}' for n in range(50)}
    await graph.initialize(Sets(frozenset(words)), store.persistence(run_id), state=words)
    await graphkeep.resume(graph, store.persistence(run_id))

    assert [each.event for each in await store.snapshots(run_id)] == ['start', 'end']


async def test_graphs_that_are_made_again_and_again_do_not_pile_up(
    store: Store, run_id: str
) -> None:

    async def make(n: int) -> weakref.ref[Any]:
        graph = Graph[dict[str, int], None, Fraction](nodes=(Count,))
        await graph.run(Count(), state={}, persistence=store.persistence(f'{run_id}/{n}'))
        return weakref.ref(graph)

    made = [await make(n) for n in range(3)]
    gc.collect()

    assert [each() for each in made] == [None] * 3
