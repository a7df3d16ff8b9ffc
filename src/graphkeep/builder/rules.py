"""The rules by which parallel changes are merged, and what is refused as one. Pure.

A rule that does not fit the values raises: what it would make of them is garbage, and nobody would
notice. `Merger` makes a `StateConflictError` of it.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Set, Sized
from decimal import Decimal
from enum import Enum
from types import FunctionType, UnionType
from typing import Any, Final, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_json
from typing_extensions import is_typeddict

from ..codec import AppendOnly

__all__ = (
    'MISSING',
    'Rule',
    'add',
    'advice',
    'append',
    'bare',
    'check_rules',
    'is_ours',
    'last',
    'maximum',
    'metadata',
    'minimum',
    'rule_in',
    'same',
    'union',
)

Rule = Callable[[Any, Any, Any], Any]
"""`(base, mine, committed) -> merged`: what a step started from, what it left, and what others have
committed meanwhile. `base` is `MISSING` for a key that is new."""


class _Missing(Enum):
    MISSING = 'missing'


MISSING: Final = _Missing.MISSING
"""Stands for a key that is not there."""


# --- the rules ------------------------------------------------------------------------------------


def add(base: Any, mine: Any, committed: Any) -> Any:
    """Numbers and durations: both differences are added. A base of `None` counts as nothing.

    Raises:
        TypeError: They are no numbers or durations; a bool is none, and neither is an enum.
        ValueError: The base is infinite or no number: there is no difference to it.
    """
    new = base is MISSING or base is None
    _check('add', 'numbers and durations', base, mine, committed, fits=_adds_up)
    if new:
        return mine + committed
    if isinstance(base, (float, Decimal)) and not math.isfinite(base):
        raise ValueError(f'merge.add: nothing can be subtracted from {base}, where both began')
    return committed + (mine - base)


def maximum(base: Any, mine: Any, committed: Any) -> Any:
    """The larger value.

    Raises:
        TypeError: They cannot be compared.
        ValueError: Neither is larger than the other, as of NaN, or of sets with other members.
    """
    return _ordered('maximum', committed, mine)[1]


def minimum(base: Any, mine: Any, committed: Any) -> Any:
    """The smaller value. Errors as of `maximum`."""
    return _ordered('minimum', mine, committed)[0]


def append(base: Any, mine: Any, committed: Any) -> Any:
    """Lists and strings: what each side put at the end, in commit order. A base of `None` counts as
    nothing.

    Raises:
        TypeError: They are no lists or strings.
        ValueError: One side changed more than its end.
    """
    _check('append', 'lists and strings', base, mine, committed, fits=_is_sequence)
    start = mine[:0] if base is MISSING or base is None else base
    size = len(start)
    encoded_start = _encoded(start)
    for head in (mine[:size], committed[:size]):
        if type(head) is not type(start) or _encoded(head) != encoded_start:
            raise ValueError('merge.append: one side changed more than the end')
    return committed + mine[size:]


def union(base: Any, mine: Any, committed: Any) -> Any:
    """Sets: all additions and all removals. Dicts: the keys of both; of a key that both set,
    `mine`, and one that a side removed stays if the other has set it. A base of `None` counts as
    nothing.

    Raises:
        TypeError: They are neither all sets nor all dicts.
    """
    kind = dict if isinstance(mine, dict) else Set
    _check('union', 'sets and dicts', base, mine, committed, fits=lambda v: isinstance(v, kind))
    new = base is MISSING or base is None
    if isinstance(mine, dict):
        held = cast('dict[Any, Any]', {} if new else base)
        return _union_of_dicts(held, cast('dict[Any, Any]', mine), committed)
    old = type(mine)() if new else base
    return (committed | (mine - old)) - (old - mine)


def last(base: Any, mine: Any, committed: Any) -> Any:
    """What was settled last: `mine`."""
    return mine


def _union_of_dicts(
    base: dict[Any, Any], mine: dict[Any, Any], committed: dict[Any, Any]
) -> dict[Any, Any]:
    merged = copy.copy(committed)
    for key, was in base.items():
        if key not in mine and key in merged and same(merged[key], was):
            del merged[key]
    for key, value in mine.items():
        if key not in base or not same(value, base[key]):
            merged[key] = value
    return merged


def _ordered(rule: str, one: Any, other: Any) -> tuple[Any, Any]:
    """Two values, the smaller first; of equal ones, as they were given."""
    if one > other:
        return other, one
    if other > one or one == other:
        return one, other
    raise ValueError(f'merge.{rule}: neither value is larger than the other')


def _check(
    rule: str, what: str, base: Any, mine: Any, committed: Any, *, fits: Callable[[Any], bool]
) -> None:
    given = [mine, committed] if base is MISSING or base is None else [base, mine, committed]
    if not all(fits(value) for value in given):
        names = ', '.join(type(value).__name__ for value in given)
        raise TypeError(f'merge.{rule} is for {what}, got {names}')


def _adds_up(value: object) -> bool:
    # What has a length can be added, but not both differences: 'ab' + 'ac', or a Counter.
    return value is not None and not isinstance(value, (bool, Enum, Sized))


def _is_sequence(value: object) -> bool:
    return isinstance(value, (list, str, tuple, bytes))


# --- what changed ---------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same class and encode to the same bytes."""
    if one is other:
        return True
    if type(one) is not type(other) or one is MISSING or other is MISSING:
        return False
    return _encoded(one) == _encoded(other)


def _encoded(value: Any) -> bytes | str:
    try:
        if isinstance(value, (set, frozenset)):
            members = cast('set[Any]', value)
            return b','.join(sorted(to_json(each, **_OPTIONS) for each in members))
        return to_json(value, **_OPTIONS)
    except Exception:  # noqa: BLE001 - lone surrogates, or a user's serializer
        return repr(cast('object', value))


_OPTIONS: dict[str, Any] = {
    'bytes_mode': 'base64',
    'inf_nan_mode': 'strings',
    'fallback': repr,
}


# --- where rules are named ------------------------------------------------------------------------


def bare(type_: Any) -> Any:
    """A type without its metadata."""
    while get_origin(type_) is typing.Annotated:
        type_ = get_args(type_)[0]
    return type_


def metadata(type_: Any) -> tuple[Any, ...]:
    """What a type is annotated with."""
    return get_args(type_)[1:] if get_origin(type_) is typing.Annotated else ()


def rule_in(annotations: tuple[Any, ...]) -> Rule | None:
    """The rule among what a field is annotated with: a function of three arguments."""
    for each in annotations:
        if each is AppendOnly or isinstance(each, AppendOnly):
            return append
        if isinstance(each, FunctionType) and len(inspect.signature(each).parameters) == 3:
            return cast('Rule', each)
    return None


def check_rules(rules: Mapping[type, Rule], type_: Any) -> None:
    """Refuse rules by class that would never be asked, or could not answer.

    Args:
        rules: What `persist(merge=…)` was given.
        type_: The declared type of the state.

    Raises:
        TypeError: Says what to do instead.
    """
    if not isinstance(rules, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f'persist(merge=…) must be a mapping of types to rules, {{int: merge.add}}, got '
            f'{rules!r}'
        )
    root = bare(type_)
    if _has_fields(root) and rule_in(metadata(type_)) is not None:
        raise TypeError(_root(root))
    for key, rule in rules.items():
        _check_key(key, rule)
        if key is root and _has_fields(root):
            raise TypeError(f'persist(merge={{{_shown(key)}: …}}): {_root(root)}')
        _check_rule(key, rule)


def _check_key(key: Any, rule: Any) -> None:
    where = f'persist(merge={{{_shown(key)}: …}}): keys are the classes of values'
    if isinstance(key, str):
        field = key.rpartition('.')[2]
        raise TypeError(
            f'persist(merge={{{key!r}: …}}): keys are types, as in {{int: merge.add}}, and not '
            f'names of fields. A rule for one field is an annotation where it is declared: '
            f'`{field}: Annotated[…, {_named(rule)}]`.'
        )
    origin: Any = get_origin(key)
    if isinstance(origin, type) and origin is not UnionType:
        raise TypeError(f'{where}, without arguments: give {{{_shown(origin)}: …}}.')
    if not isinstance(key, type):
        raise TypeError(f'{where}, as in {{int: merge.add}}; of a union, name its members.')
    if is_typeddict(key):
        raise TypeError(
            f'{where}, and those of a TypedDict are plain dicts. Annotate the field that holds it: '
            f'`Annotated[{_shown(key)}, {_named(rule)}]`.'
        )


def _check_rule(key: type, rule: Any) -> None:
    where = f'persist(merge={{{_shown(key)}: …}})'
    says = 'a rule is a function (base, mine, committed) -> merged, such as merge.add'
    if not callable(rule):
        raise TypeError(f'{where}: a rule must be callable, got {rule!r}; {says}.')
    if inspect.iscoroutinefunction(rule):
        raise TypeError(f'{where}: {_named(rule)} is async; {says}, and is not awaited.')
    try:
        inspect.signature(rule).bind(MISSING, None, None)
    except ValueError:  # some builtins have none
        fits = not isinstance(rule, type)
    except TypeError:
        fits = False
    else:
        fits = True
    if not fits:
        raise TypeError(f'{where}: {_named(rule)} cannot be called with three values; {says}.')


def _has_fields(type_: Any) -> bool:
    """Whether values of a type are merged field by field, and not as a whole."""
    cls: Any = get_origin(type_) or type_
    if not isinstance(cls, type):
        return False
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, BaseModel)
        or is_typeddict(cast('type[Any]', cls))
    )


def _root(type_: Any) -> str:
    return (
        f'{_shown(type_)} is the state itself, which is merged field by field: a rule for the '
        'whole of it is never asked. Annotate its fields, `Annotated[int, merge.add]`, or give '
        'rules for their types.'
    )


# --- what to do about a conflict ------------------------------------------------------------------


def advice(declared: Any, base: Any, mine: Any, committed: Any, *, failed: Rule | None) -> str:
    """Which annotation, and which rule by class, would have merged two values.

    Args:
        declared: The declared type, as far as it is known.
        base: What both began with.
        mine: One value.
        committed: The other.
        failed: The rule that was asked, if one was.
    """
    rule, beside = last, ''
    for candidate in (add, append, union):
        if candidate is not failed and _answers(candidate, base, mine, committed):
            rule = candidate
            break
    if rule is append and isinstance(mine, (str, bytes)):
        # Two titles that both began with '' would become one.
        rule, beside = last, ' (merge.append where both only add to the end)'
    name = f'merge.{rule.__name__}'
    type_: Any = bare(declared) if _says_something(declared) else cast('Any', type(mine))
    annotation = f'annotate it, `Annotated[{_shown(type_)}, {name}]`{beside}'
    if type(mine) is not type(committed) or _has_fields(type(mine)):
        return annotation
    return (
        f'{annotation}, or give a rule for all values of a type, '
        f'persist(merge={{{type(mine).__name__}: {name}}})'
    )


def is_ours(rule: Any) -> bool:
    """Whether a rule is one of this module."""
    return any(rule is each for each in _OURS)


def _answers(rule: Rule, base: Any, mine: Any, committed: Any) -> bool:
    try:
        rule(base, mine, committed)
    except Exception:  # noqa: BLE001 - it does not fit
        return False
    return True


def _says_something(declared: Any) -> bool:
    type_ = bare(declared)
    return type_ is not Any and type_ is not object and not isinstance(type_, typing.TypeVar)


def _named(value: Any) -> str:
    name = str(getattr(value, '__name__', None) or repr(value))
    return f'merge.{name}' if is_ours(value) else name


_OURS: tuple[Any, ...] = (add, append, last, maximum, minimum, union)


def _shown(type_: Any) -> str:
    """A type as one would write it."""
    if isinstance(type_, type) and get_origin(type_) is None:
        return type_.__name__
    return str(type_).replace('typing.', '')
