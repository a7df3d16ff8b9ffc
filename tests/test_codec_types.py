"""Two tables: values that come back as they were, and values that are refused with their path."""

from __future__ import annotations

import fractions
import ipaddress
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AwareDatetime,
    ByteSize,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    SecretStr,
    StringConstraints,
)

from graphkeep.codec import AppendOnly, Codec
from graphkeep.errors import LossyStateError
from tests.codec_classes import (
    NOON,
    PARIS,
    Aliased,
    AliasedDog,
    AliasedPet,
    Box,
    Cached,
    Cat,
    Checked,
    Color,
    Configured,
    Counted,
    Crossed,
    Derived,
    Dog,
    Draft,
    Excluding,
    FieldSerialized,
    Frozen,
    FrozenPoint,
    Growing,
    Holder,
    Item,
    JsonValue,
    Level,
    Numbers,
    Open,
    Outer,
    Own,
    Permission,
    Pet,
    Point,
    Private,
    Root,
    Serialized,
    Slotted,
    SpecialItem,
    Strange,
    Strict,
    Stripping,
    Tree,
    UserId,
    Validated,
    WithInitVar,
    Word,
    same,
)


def named(value: Any) -> str:
    try:
        return ascii(value)[:40]
    except ValueError:  # an integer too long to print
        return type(value).__name__


KEPT: list[tuple[Any, Any]] = [
    (int, -5),
    (int, 10**50),
    (float, 1.5),
    (float, 1),
    (float, 10**25),
    (float, float('inf')),
    (float, -0.0),
    (list[float], [1, 1.0, 1e300, float('-inf')]),
    (Annotated[float, Field(ge=0)], 0),
    (bool, True),
    (type(None), None),
    (str, 'a\x00b\u2028\U0010ffff\ufffd\ufffd\ufffd'),
    (str, 'lone \ud800'),
    (str, '\udc00\ud800 \U0010ffffd800 \\ud800'),
    (dict[str, int], {'\ud800': 1, 'b': 2}),
    (dict[str, Any], {'\ud800': ['\udfff', {'\udfff': 1}]}),
    (set[str], {'\ud800', 'a'}),
    (Draft, {'title': '\ud800'}),
    (bytes, b'\xff\x00'),
    (dict[bytes, int], {b'a': 1}),
    (Any, {'a': [1, 2.5, None, True, '\ud800', 10**40]}),
    (object, [1]),
    (list, [1, 'a']),
    (dict, {'a': 1}),
    (date, date(2025, 1, 1)),
    (datetime, datetime(2025, 1, 1, 1, 2, 3, 4)),  # noqa: DTZ001
    (datetime, datetime(2025, 1, 1, tzinfo=UTC)),
    (datetime, datetime(2025, 7, 1, tzinfo=PARIS)),
    (datetime, datetime.min),  # noqa: DTZ901
    (datetime, datetime.max),  # noqa: DTZ901
    (AwareDatetime, datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=-7)))),
    (time, time(1, 2, 3, 4)),
    (time, time(1, 2, tzinfo=UTC)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (timedelta, timedelta.max),
    (timedelta, timedelta.min),
    (Decimal, Decimal('1.00')),
    (Decimal, Decimal('1E+30')),
    (Decimal, Decimal('-0')),
    (uuid.UUID, uuid.UUID(int=5)),
    (Path, Path('/a/b')),
    (PurePosixPath, PurePosixPath('x')),
    (ipaddress.IPv4Address, ipaddress.IPv4Address('1.2.3.4')),
    (re.Pattern[str], re.compile('a+')),
    (complex, 1 + 2j),
    (fractions.Fraction, fractions.Fraction(1, 3)),
    (HttpUrl, HttpUrl('https://example.org/x')),
    (ByteSize, ByteSize(5)),
    (Json[list[int]], [1]),
    (Color, Color.RED),
    (Word, Word.YES),
    (Level, Level.LOW),
    (Permission, Permission.READ | Permission.WRITE),
    (Outer.Inner, Outer.Inner.ONE),
    (Outer.Inner, Outer.Inner.TWO),
    (dict[Color, int], {Color.RED: 1}),
    (set[int], {3, 1, 2}),
    (frozenset[Color], frozenset({Color.RED, Color.BLUE})),
    (set[frozenset[int]], {frozenset({2, 1}), frozenset({3})}),
    (set[tuple[int, str]], {(1, 'a'), (0, 'b')}),
    (set[bytes], {b'\xff', b'\x00'}),
    (AbstractSet[int], frozenset({1})),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str], (1, 'a')),
    (tuple[()], ()),
    (Point, Point(1, 'q')),
    (deque[int], deque([1, 2])),
    (defaultdict[str, list[int]], defaultdict(list, {'a': [1]})),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (Counter[str], Counter('aab')),
    (Sequence[int], [1]),
    (Mapping[str, int], {'a': 1}),
    (dict[int, str], {1: 'a'}),
    (dict[bool, int], {True: 1}),
    (dict[float, int], {1.5: 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=3): 1}),
    (dict[date, int], {date(2025, 1, 1): 1}),
    (Draft, {'pages': 1, 'title': 'x'}),
    (Draft, {}),
    (list[Draft], [{'pages': 1, 'title': 'x'}]),
    (Item, Item(price=1)),
    (Aliased, Aliased(fromName='x', o=3)),  # pyright: ignore[reportCallIssue]
    (Crossed, Crossed(a=1, b=2)),
    (Strange, Strange(a=1)),
    (Open, Open(a=1, b=[1], c='x')),  # pyright: ignore[reportCallIssue]
    (Frozen, Frozen(a=1)),
    (Root, Root([1])),
    (Pet, Dog(n=1)),
    (list[Pet], [Dog(n=1), Cat()]),
    (AliasedPet, AliasedDog(petType='dog')),
    (Cat | Dog, Dog()),
    (Box[int], Box[int](held=1)),
    (Holder[int], Holder(1)),
    (Holder, Holder('x')),
    (Tree, Tree(1, [Tree(2)])),
    (Counted, Counted(1)),
    (Derived, Derived(2)),
    (Slotted, Slotted(1)),
    (FrozenPoint, FrozenPoint(a=1)),
    (Checked, Checked(1)),
    (Cached, Cached(1)),
    (WithInitVar, WithInitVar(1)),
    (Private, Private(a=1)),
    (Serialized, Serialized(a=1)),
    (FieldSerialized, FieldSerialized(a=1)),
    (Validated, Validated(a=1)),
    (Excluding, Excluding(a=1)),
    (Configured, Configured(b=b'\xff', f=float('inf'), t=timedelta(microseconds=3))),
    (Strict, Strict(d=datetime(2025, 1, 1), f=1.5, b=b'\xff', s={1})),  # noqa: DTZ001
    (Own, Own(3)),
    (UserId, UserId(3)),
    (Numbers, [1]),
    (JsonValue, {'a': [1, 1.5, None, True, 'x']}),
    (int | str, '1'),
    (int | str, 1),
    (int | float, 1.0),
    (float | int, 1),
    (float | str, 1.5),
    (bool | int, True),
    (bool | int, 1),
    (datetime | str, 'hello'),
    (datetime | str, datetime(2025, 1, 1)),  # noqa: DTZ001
    (int | None, None),
    (Literal['a', 1, True], 1),
    (Literal['a', 'b'], 'a'),
    (Annotated[int, Field(ge=0)], 3),
    (Annotated[str, StringConstraints(strip_whitespace=True)], 'x'),
    (Annotated[list[int], AppendOnly], [1]),
]


def shapes(type_: Any, value: Any) -> list[tuple[str, Any, Any]]:
    holder: Any = make_dataclass('State', [('n', int), ('it', type_)])
    return [
        ('alone', type_, value),
        ('field', holder, holder(1, value)),
        ('list', list[type_], [value]),
        ('dict', dict[str, type_], {'k': value}),
    ]


@pytest.mark.parametrize(('type_', 'value'), KEPT, ids=named)
def test_comes_back_with_equal_contents_and_exact_classes(type_: Any, value: Any) -> None:
    for shape, declared, held in shapes(type_, value):
        codec = Codec[Any](declared, path='state')
        first = codec.encode(held)
        back = codec.decode(first.parts)  # pyright: ignore[reportArgumentType]
        assert same(held, back), (shape, back)
        # Once a class has been seen, only what its class leaves open is loaded back.
        assert codec.encode(held).parts == first.parts, shape
        assert codec.encode(back).parts == first.parts, shape
        strict = Codec[Any](declared, path='state', verify='always')
        assert strict.encode(held).parts == first.parts, shape


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def with_attribute(value: Any, **attributes: Any) -> Any:
    for name, held in attributes.items():
        object.__setattr__(value, name, held)
    return value


REFUSED: list[tuple[Any, Any, str]] = [
    (float, True, ''),
    (float, Decimal(1), ''),
    (int, True, ''),
    (int, Level.LOW, ''),
    (int, '1', ''),
    (int, 10**5000, ''),
    (str, Word.YES, ''),
    (str, 1, ''),
    (bool, 1, ''),
    (str, '\ud83d\ude00', ''),
    (dict[str, int], {'\ud83d\ude00': 1}, ''),
    (list[int], (1,), ''),
    (list[int], [1, True], '[1]'),
    (list[str], ['a', None], '[1]'),
    (set[int], [1], ''),
    (frozenset[int], {1}, ''),
    (tuple[int, str], (1,), '[1]'),
    (Sequence[int], (1,), ''),
    (Any, (1,), ''),
    (Any, {1: 2}, '[1]'),
    (Any, {'a': {'b': (1,)}}, "['a']['b']"),
    (Any, datetime(2025, 1, 1), ''),  # noqa: DTZ001
    (Any, float('nan'), ''),
    (Any, b'x', ''),
    (Any, {1}, ''),
    (Any, Item(price=1), ''),
    (Any, nested(400), ''),
    (Any, circle(), ''),
    (object, [(1,)], '[0]'),
    (Item, SpecialItem(price=1), ''),
    (list[Item], [SpecialItem(price=1)], '[0]'),
    (Item, Item.model_construct(price='x'), '.price'),
    (Item, Item.model_construct(), '.price'),
    (Item, Item.model_construct(price=True), '.price'),
    (deque[int], deque([1], maxlen=3), ''),
    (dict[str, int], OrderedDict(a=1), ''),
    (dict[str, list[int]], defaultdict(list, a=[1]), ''),
    (dict[tuple[int, str], int], {(1, 'a'): 2}, ''),
    (SecretStr, SecretStr('x'), ''),
    (Decimal, Decimal('NaN'), ''),
    (Decimal, 1, ''),
    (re.Pattern[str], re.compile('a', re.IGNORECASE), ''),
    (datetime, datetime(2025, 1, 1, tzinfo=timezone(timedelta(seconds=7))), ''),
    (datetime, date(2025, 1, 1), ''),
    (date, datetime(2025, 1, 1), ''),  # noqa: DTZ001
    (datetime | str, '2025-01-01T00:00:00' if False else 5, ''),
    (Annotated[int, Field(ge=0)], -1, ''),
    (Annotated[str, StringConstraints(strip_whitespace=True)], ' x', ''),
    (Annotated[int, PlainSerializer(lambda value: value // 2)], 3, ''),
    (Growing, Growing(1), '.a'),
    (Derived, with_attribute(Derived(1), twice=7), '.twice'),
    (Stripping, Stripping.model_construct(text=' x'), '.text'),
    (Stripping, Stripping.model_construct(text='x', texts=['y', ' z']), '.texts[1]'),
    (Strict, Strict.model_construct(d=NOON, f=float('nan'), b=b'', s=set()), '.f'),
    (Counted, with_attribute(Counted(1), undeclared=4), '.undeclared'),
    (Holder, Holder((1,)), '.held'),
    (Holder[int], with_attribute(Holder(1), undeclared=4), '.undeclared'),
    (Excluding, Excluding(a=1, hidden=5), '.hidden'),
    (Draft, {'pages': 1, 'zz': 1}, "['zz']"),
    (Cat | Dog, Cat.model_construct(kind='dog'), ''),
    (list[Pet], [Cat.model_construct(kind='dog')], '[0]'),
    (Color, 'r', ''),
    (Literal['a', 'b'], Word.YES, ''),
    (Point, Point('x'), '[0]'),  # pyright: ignore[reportArgumentType]
    (type(None), 1, ''),
]


@pytest.mark.parametrize(('type_', 'value', 'path'), REFUSED, ids=named)
def test_what_would_change_is_refused_with_its_path(type_: Any, value: Any, path: str) -> None:
    roots = {'alone': 'state', 'field': 'state.it', 'list': 'state[0]', 'dict': "state['k']"}
    for shape, declared, held in shapes(type_, value):
        for seen in (False, True):
            codec = Codec[Any](declared, path='state')
            if seen:
                codec._plan.proven.add(type(held))
            with pytest.raises(LossyStateError, match='Nothing was written') as caught:
                codec.encode(held)
            if re.search('nested too deeply|itself|Invalid JSON', str(caught.value)):
                assert caught.value.path in roots[shape]
            else:
                assert caught.value.path == roots[shape] + path, caught.value
