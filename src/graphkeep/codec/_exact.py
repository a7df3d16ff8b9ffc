"""Whether a value that was loaded back is the one that was dumped: its classes, its contents."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Set
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

__all__ = ('Difference', 'Nothing', 'difference', 'undeclared')

_MISSING = object()
_PLAIN: frozenset[type] = frozenset({str, int, bool, bytes, type(None)})


class Difference(NamedTuple):
    """The first place where two values differ."""

    path: str
    """Where, e.g. `state.items[3].price`."""
    was: object
    """What was held."""
    became: object
    """What came back."""
    note: str = ''
    """What to do about it, where that is known."""


def difference(was: Any, became: Any, path: str) -> Difference | None:
    """Compare by exact class and contents. `==` alone says `1 == True == 1.0`.

    Not compared: the class of a datetime's `tzinfo` (only wall clock and offset count; a `ZoneInfo`
    comes back as its offset), private attributes and `model_fields_set` of pydantic models,
    attributes that start with an underscore and are no fields, and cached properties.

    Args:
        was: The value that was dumped.
        became: What loading the dump gave.
        path: The name of the value, for the answer.

    Returns:
        The first difference in depth-first order, or `None`.
    """
    cls = cast('type[Any]', type(was))
    if cls is not type(became):
        return Difference(path, was, became)
    if cls in _PLAIN:
        return None if was == became else Difference(path, was, became)
    if cls is float:
        same = was == became or (math.isnan(was) and math.isnan(became))
        return None if same else Difference(path, was, became)
    if cls is list or cls is tuple:
        return _in_order(was, became, path)
    if cls is dict:
        return _mapping(was, became, path)
    if isinstance(was, Enum):
        return None if was is became else Difference(path, was, became)
    if isinstance(was, (datetime, time)):
        same = was.replace(tzinfo=None) == became.replace(tzinfo=None)
        same = same and was.utcoffset() == became.utcoffset()
        return None if same else Difference(path, was, became)
    if isinstance(was, BaseModel):
        return _model(was, became, path)
    if dataclasses.is_dataclass(was):
        return _dataclass(was, became, path)
    return _other(was, became, path)


def _in_order(was: Iterable[Any], became: Iterable[Any], path: str) -> Difference | None:
    mine, theirs = list(was), list(became)
    if len(mine) != len(theirs):
        return Difference(path, was, became)
    for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.__class__ in _PLAIN and a.__class__ is b.__class__ and a == b:
            continue
        if found := difference(a, b, f'{path}[{index}]'):
            return found
    return None


def _mapping(was: dict[Any, Any], became: dict[Any, Any], path: str) -> Difference | None:
    keys = {key: key for key in became}
    for key, a in was.items():
        if key not in keys:
            return Difference(f'{path}[{key!r}]', a, Nothing())
        other, b = keys[key], became[key]
        if found := difference(key, other, f'{path} (key {key!r})'):
            return found
        if a.__class__ in _PLAIN and a.__class__ is b.__class__ and a == b:
            continue
        if found := difference(a, b, f'{path}[{key!r}]'):
            return found
    for key in became:
        if key not in was:
            return Difference(path, was, became)
    return None


def _unordered(was: Iterable[Any], became: Iterable[Any], path: str) -> Difference | None:
    theirs = {item: item for item in became}
    mine = list(was)
    if len(mine) != len(theirs):
        return Difference(path, was, became)
    for item in mine:
        other = theirs.get(item, _MISSING)
        if other is _MISSING:
            return Difference(path, was, became)
        if found := difference(item, other, f'{path}{{{item!r}}}'):
            return found
    return None


def _attributes(was: object, became: object, names: Iterable[str], path: str) -> Difference | None:
    for name in names:
        a, b = getattr(was, name, _MISSING), getattr(became, name, _MISSING)
        if a is b or (a.__class__ in _PLAIN and a.__class__ is b.__class__ and a == b):
            continue
        if b is _MISSING or a is _MISSING:
            return Difference(f'{path}.{name}', _shown(a), _shown(b))
        if found := difference(a, b, f'{path}.{name}'):
            return found
    return None


@lru_cache(maxsize=1024)
def _fields(cls: type) -> tuple[tuple[str, ...], frozenset[str]]:
    """The fields of a dataclass that are compared, and all of them."""
    fields = dataclasses.fields(cast('Any', cls))
    # A field that is private by its name and left out of `==` is a cache (pydantic-ai's files have
    # such): its encoded form was compared, that is enough.
    compared = tuple(f.name for f in fields if f.compare or not f.name.startswith('_'))
    return compared, frozenset(f.name for f in fields)


def _dataclass(was: Any, became: Any, path: str) -> Difference | None:
    compared, declared = _fields(was.__class__)
    if found := _attributes(was, became, compared, path):
        return found
    return _undeclared(was, became, declared, path)


def _model(was: BaseModel, became: BaseModel, path: str) -> Difference | None:
    declared = type(was).__pydantic_fields__.keys()
    if found := _attributes(was, became, declared, path):
        return found
    if found := difference(was.__pydantic_extra__, became.__pydantic_extra__, path):
        return found
    return _undeclared(was, became, declared, path)


def _undeclared(was: object, became: object, declared: Set[str], path: str) -> Difference | None:
    attributes = getattr(was, '__dict__', None)
    if attributes is None or attributes.keys() <= declared:
        return None
    for name, value in undeclared(was, declared):
        other = getattr(became, '__dict__', {}).get(name, _MISSING)
        if other is _MISSING:
            note = 'It is not a declared field: declare it, or start its name with an underscore.'
            return Difference(f'{path}.{name}', value, _shown(other), note)
        if found := difference(value, other, f'{path}.{name}'):
            return found
    return None


def undeclared(value: object, declared: Container[str]) -> Iterator[tuple[str, Any]]:
    """Public attributes of an instance that are no fields, and no cached properties."""
    attributes = cast('dict[str, Any]', getattr(value, '__dict__', {}))
    for name, held in attributes.items():
        if name in declared or name.startswith('_'):
            continue
        if isinstance(getattr(type(value), name, None), cached_property):
            continue
        yield name, held


def _other(was: Any, became: Any, path: str) -> Difference | None:
    if isinstance(was, deque):
        held, back = cast('deque[Any]', was), cast('deque[Any]', became)
        if held.maxlen != back.maxlen:
            note = 'Its maxlen is not stored: cut it in your steps instead.'
            return Difference(path, held, back, note)
        return _in_order(held, back, path)
    if isinstance(was, defaultdict):
        factory = cast('defaultdict[Any, Any]', was).default_factory
        if factory is not became.default_factory:
            return Difference(path, was, became, 'Its default_factory is not stored.')
    if isinstance(was, dict):
        return _mapping(cast('dict[Any, Any]', was), became, path)
    if isinstance(was, (list, tuple)):
        return _in_order(cast('list[Any]', was), became, path)
    if isinstance(was, (set, frozenset)):
        return _unordered(cast('set[Any]', was), became, path)
    if isinstance(was, (float, complex, Decimal)):
        same = was == became or repr(was) == repr(became)
        return None if same else Difference(path, was, became)
    if was == became:
        return None
    if type(was).__eq__ is object.__eq__ and (held := _state(was)) is not None:
        return difference(held, _state(became), path)
    return Difference(path, was, became)


def _state(value: object) -> dict[str, Any] | None:
    """What an object without `__eq__` holds."""
    if hasattr(value, '__dict__'):
        return {k: v for k, v in vars(value).items() if not k.startswith('_')}
    return None


def _shown(value: object) -> object:
    return Nothing() if value is _MISSING else value


class Nothing:
    """What came back where nothing did."""

    def __repr__(self) -> str:
        return 'nothing'
