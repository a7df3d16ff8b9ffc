"""Classes that a state may hold."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from dataclasses import InitVar, dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from zoneinfo import ZoneInfo

import typing_extensions as te
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    computed_field,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import core_schema

T = TypeVar('T')


class Color(enum.Enum):
    RED = 'r'
    BLUE = 'b'


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Word(enum.StrEnum):
    YES = 'yes'


class Level(enum.IntEnum):
    LOW = 1


class Outer:
    class Inner(enum.Enum):
        ONE = 1
        TWO = '2'


class Point(NamedTuple):
    x: int
    label: str = ''


class Draft(te.TypedDict, total=False):
    title: str
    pages: int


class Item(BaseModel):
    price: int
    tags: list[str] = []


class SpecialItem(Item):
    extra: int = 0


class Aliased(BaseModel):
    from_name: str = Field(alias='fromName')
    other: int = Field(validation_alias='o', serialization_alias='p')


class Crossed(BaseModel):
    a: int = Field(alias='b')
    b: int = Field(alias='a')


class Strange(BaseModel):
    model_config = ConfigDict(extra='forbid')
    a: int

    @computed_field
    @property
    def double(self) -> int:
        return self.a * 2


class Open(BaseModel):
    model_config = ConfigDict(extra='allow')
    a: int


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    a: int


class Root(RootModel[list[int]]):
    pass


class Cat(BaseModel):
    kind: Literal['cat'] = 'cat'
    n: int = 0


class Dog(BaseModel):
    kind: Literal['dog'] = 'dog'
    n: int = 0


class AliasedCat(BaseModel):
    kind: Literal['cat'] = Field('cat', alias='petType')


class AliasedDog(BaseModel):
    kind: Literal['dog'] = Field('dog', alias='petType')


class Box(BaseModel, Generic[T]):
    held: T


@dataclass
class Holder(Generic[T]):
    held: T


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class Counted:
    a: int
    count: int = field(init=False, default=3)


@dataclass
class Derived:
    a: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.a * 2


@dataclass(slots=True)
class Slotted:
    a: int
    b: str | None = None


@dataclass(frozen=True, kw_only=True)
class FrozenPoint:
    a: int


@pydantic_dataclass
class Checked:
    a: int = Field(ge=0)
    b: list[int] = Field(default_factory=list)


@dataclass
class Cached:
    a: int

    def __post_init__(self) -> None:
        self._cache = self.a * 2


@dataclass
class Growing:
    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclass
class WithInitVar:
    a: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self._product = self.a * factor


class Private(BaseModel):
    a: int
    _p: int = PrivateAttr(0)


class Serialized(BaseModel):
    a: int

    @model_serializer
    def dump(self) -> dict[str, int]:
        return {'a': self.a}


class FieldSerialized(BaseModel):
    a: int
    b: int = 1

    @field_serializer('a')
    def dump_a(self, value: int) -> str:
        return str(value + self.b - self.b)


class Validated(BaseModel):
    a: int

    @model_validator(mode='after')
    def check(self) -> Validated:
        return self


class Excluding(BaseModel):
    a: int
    hidden: int = Field(default=0, exclude=True)


class Configured(BaseModel):
    model_config = ConfigDict(
        ser_json_bytes='utf8', ser_json_inf_nan='null', ser_json_timedelta='float'
    )
    b: bytes
    f: float
    t: timedelta


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    d: datetime
    f: float
    b: bytes
    s: set[int]


class Stripping(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    text: str
    texts: list[str] = []


class Own:
    """Has a schema of its own, and an `==`."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.int_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda own: own.value),
        )


class Probe:
    """A field type that counts how often it is dumped and loaded."""

    dumped = loaded = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        def dump(value: int) -> int:
            cls.dumped += 1
            return value

        def load(value: int) -> int:
            cls.loaded += 1
            return value

        return core_schema.no_info_after_validator_function(
            load,
            core_schema.int_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(dump),
        )


UserId = NewType('UserId', int)
Numbers = te.TypeAliasType('Numbers', list[int])
JsonValue = te.TypeAliasType(
    'JsonValue', 'dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None'
)
Pet = Annotated[Cat | Dog, Field(discriminator='kind')]
AliasedPet = Annotated[AliasedCat | AliasedDog, Field(discriminator='kind')]
NOON = datetime(2025, 1, 1, 12)  # noqa: DTZ001
PARIS = ZoneInfo('Europe/Paris')


def same(a: Any, b: Any) -> bool:
    """Equal, of the same class all the way down."""
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        names = [each.name for each in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, BaseModel):
        return a == b and same(vars(a), vars(b))
    if isinstance(a, dict):
        return (
            a == b and all(same(a[k], b[k]) for k in a) and set(map(type, a)) == set(map(type, b))
        )
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        return a == b and sorted(map(repr, map(type, a))) == sorted(map(repr, map(type, b)))
    return bool(a == b) or repr(a) == repr(b)
