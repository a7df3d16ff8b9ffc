"""Three-way merge of the state that parallel steps have changed, and the rules for it. Pure.

Field by field, in this order: changed on one side only, take it; a rule for the field or its type;
models, dataclasses and dicts, go into them; lists that both extended, both extensions; sets, all
additions and removals; the same bool, `None` or enum, keep it; anything else is a conflict.
*Changed* means that the encoded bytes differ: `==` says `1 == True`, and skips `compare=False`
fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel

from ..errors import StateConflictError
from .rules import (
    MISSING,
    Rule,
    add,
    advice,
    append,
    bare,
    check_rules,
    is_ours,
    last,
    maximum,
    metadata,
    minimum,
    rule_in,
    same,
    union,
)

__all__ = (
    'MISSING',
    'Merger',
    'Rule',
    'add',
    'append',
    'last',
    'maximum',
    'minimum',
    'union',
)


class Merger:
    """Merges values of one declared type."""

    def __init__(
        self,
        type_: Any,
        *,
        rules: Mapping[type, Rule],
        path: str,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a merger.

        Args:
            type_: The declared type; its fields' annotations may name rules.
            rules: Rules by the exact class of the values.
            path: What the value is called in errors.
            namespace: Local names that annotations may use.

        Raises:
            TypeError: A rule would never be asked, or could not answer.
        """
        check_rules(rules, type_)
        self._type = type_
        self._rules = dict(rules)
        self._path = path
        self._namespace = dict(namespace or {})
        self._fields: dict[type[Any], dict[str, Any]] = {}

    def merge(self, base: Any, mine: Any, committed: Any, *, steps: tuple[str, str]) -> Any:
        """Merge two versions of the whole value.

        Args:
            base: What the step started from.
            mine: What it left.
            committed: What others have made of it meanwhile; may be changed in place.
            steps: The step, and the other one, for naming them in a conflict.

        Raises:
            StateConflictError: Both changed the same thing and nothing says what to do.
        """
        return self._value(base, mine, committed, self._type, self._path, steps)

    def merge_field(
        self, name: str, base: Any, mine: Any, committed: Any, *, steps: tuple[str, str]
    ) -> Any:
        """Merge two versions of one field of the value, which both sides have changed: the encoded
        bytes say so. As `merge`.
        """
        declared = self._declared(_class_of(self._type)).get(name, Any)
        return self._changed(base, mine, committed, declared, f'{self._path}.{name}', steps)

    def _value(
        self,
        base: Any,
        mine: Any,
        theirs: Any,
        declared: Any,
        path: str,
        steps: tuple[str, str],
    ) -> Any:
        if same(mine, base):
            return theirs
        if same(theirs, base):
            return mine
        return self._changed(base, mine, theirs, declared, path, steps)

    def _changed(
        self,
        base: Any,
        mine: Any,
        theirs: Any,
        declared: Any,
        path: str,
        steps: tuple[str, str],
    ) -> Any:
        """Merge what both sides have changed."""
        if mine is MISSING and theirs is MISSING:
            return MISSING
        if mine is MISSING or theirs is MISSING:
            raise _conflict(path, steps, base, mine, theirs, declared)
        cls = _exact_class(mine)
        rule = rule_in(metadata(declared)) or self._rules.get(cls)
        if rule is not None:
            return self._ruled(rule, base, mine, theirs, declared, path, steps)
        if cls is type(theirs):
            if isinstance(mine, dict):
                return self._dict(base, mine, theirs, declared, path, steps)
            if isinstance(mine, BaseModel) or dataclasses.is_dataclass(mine):
                if type(base) is cls:
                    return self._object(base, mine, theirs, path, steps)
            elif cls is list and (isinstance(base, list) or base is MISSING):
                merged = _extended(base, mine, theirs)
                if merged is not None:
                    return merged
            elif isinstance(mine, (set, frozenset)) and (type(base) is cls or base is MISSING):
                return union(base, mine, theirs)
            elif (mine is None or isinstance(mine, (bool, Enum))) and same(mine, theirs):
                return mine
        raise _conflict(path, steps, base, mine, theirs, declared)

    def _ruled(
        self,
        rule: Rule,
        base: Any,
        mine: Any,
        theirs: Any,
        declared: Any,
        path: str,
        steps: tuple[str, str],
    ) -> Any:
        try:
            merged = rule(base, mine, theirs)
            if inspect.iscoroutine(merged):
                merged.close()
                raise TypeError('a rule must not be async')
        except StateConflictError:
            raise
        except Exception as e:
            name = getattr(rule, '__name__', repr(rule))
            do = 'Use another rule' if is_ours(rule) else 'Mend the rule, or use another'
            what = advice(declared, base, mine, theirs, failed=rule)
            raise StateConflictError(
                f'The merge rule {name} for `{path}` raised {type(e).__name__}: {e}. Steps '
                f'{steps[0]!r} and {steps[1]!r} had both changed it: {_shown(base)} became '
                f'{_shown(mine)} and {_shown(theirs)}. {do}: {what}; or let only one '
                'of them change it.',
                path=path,
                steps=steps,
                values=(mine, theirs),
            ) from e
        return merged

    def _dict(
        self, base: Any, mine: Any, theirs: Any, declared: Any, path: str, steps: tuple[str, str]
    ) -> dict[Any, Any]:
        typed = self._declared(_class_of(declared))
        arguments = get_args(bare(declared))
        of_values = arguments[1] if len(arguments) == 2 else Any
        old = cast('dict[Any, Any]', base) if isinstance(base, dict) else {}
        merged = cast('dict[Any, Any]', theirs)
        ours = cast('dict[Any, Any]', mine)
        for key in [*(k for k in old if k not in ours), *ours]:
            value = self._value(
                old.get(key, MISSING),
                ours.get(key, MISSING),
                merged.get(key, MISSING),
                typed.get(key, of_values),
                f'{path}[{key!r}]',
                steps,
            )
            if value is MISSING:
                merged.pop(key, None)
            else:
                merged[key] = value
        return merged

    def _object(self, base: Any, mine: Any, theirs: Any, path: str, steps: tuple[str, str]) -> Any:
        declared = self._declared(_exact_class(mine))
        for name in _names(mine, theirs):
            value = self._value(
                _get(base, name),
                _get(mine, name),
                _get(theirs, name),
                declared.get(name, Any),
                f'{path}.{name}',
                steps,
            )
            put(theirs, name, value)
        return theirs

    def _declared(self, cls: type[Any] | None) -> dict[str, Any]:
        """The annotations of the fields of a class."""
        if cls is None or cls in (dict, list, set):
            return {}
        known = self._fields.get(cls)
        if known is None:
            known = self._fields[cls] = _annotations(cls, self._namespace)
        return known


def put(value: Any, name: str, field: Any) -> None:
    """Set a field of a model, dataclass or dict, past its `__setattr__`: it may be frozen."""
    if isinstance(value, dict):
        held = cast('dict[str, Any]', value)
        if field is MISSING:
            held.pop(name, None)
        else:
            held[name] = field
    elif isinstance(value, BaseModel):
        extra = value.__pydantic_extra__
        fields = cast('dict[str, Any]', value.__dict__)
        target = fields if name in type(value).model_fields or extra is None else extra
        if field is MISSING:
            target.pop(name, None)
        else:
            target[name] = field
    elif field is not MISSING:
        object.__setattr__(value, name, field)


def _names(mine: Any, theirs: Any) -> list[str]:
    if isinstance(mine, BaseModel):
        extra = [*(mine.__pydantic_extra__ or ()), *(theirs.__pydantic_extra__ or ())]
        return [*type(mine).model_fields, *dict.fromkeys(extra)]
    return [each.name for each in dataclasses.fields(mine)]


def _get(value: Any, name: str) -> Any:
    return getattr(value, name, MISSING)


def _exact_class(value: object) -> type[Any]:
    return type(value)


def _extended(base: Any, mine: Any, theirs: Any) -> list[Any] | None:
    """Both extensions of a list, in commit order, or `None` if one side did more than extend it."""
    try:
        return append(base, mine, theirs)
    except ValueError:
        return None


def _class_of(type_: Any) -> type[Any] | None:
    origin = get_origin(bare(type_)) or bare(type_)
    return origin if isinstance(origin, type) else None


def _annotations(cls: type[Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """The annotations of the fields of a class, with their metadata."""
    if issubclass(cls, BaseModel):
        return {
            name: typing.Annotated[field.annotation, *field.metadata]
            if field.metadata
            else field.annotation
            for name, field in cls.model_fields.items()
        }
    try:
        return typing.get_type_hints(cls, localns=namespace, include_extras=True)
    except Exception:  # noqa: BLE001 - names that do not resolve: one by one then
        return _resolvable(cls, namespace)


def _resolvable(cls: type[Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a class that can be evaluated."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        module = inspect.getmodule(base)
        scope: dict[str, Any] = {} if module is None else vars(module)
        hints = cast('dict[str, Any]', vars(base).get('__annotations__', {}))
        for name, hint in hints.items():
            with suppress(Exception):
                found[name] = eval(hint, scope, namespace) if isinstance(hint, str) else hint  # noqa: S307
    return found


def _conflict(
    path: str, steps: tuple[str, str], base: Any, mine: Any, theirs: Any, declared: Any
) -> StateConflictError:
    if mine is MISSING or theirs is MISSING:
        # No rule is asked about a value that one side has removed.
        what = (
            'give the dict that holds it a rule, as `Annotated[dict[…], merge.union]`, with which '
            'a value stays that the other side has set'
        )
    else:
        what = advice(declared, base, mine, theirs, failed=None)
    return StateConflictError(
        f'Steps {steps[0]!r} and {steps[1]!r} ran in parallel and both changed `{path}`: '
        f'{_shown(base)} became {_shown(mine)} in {steps[0]!r} and {_shown(theirs)} in '
        f'{steps[1]!r}. Say how to merge it: {what}; or let only one of them change it.',
        path=path,
        steps=steps,
        values=(mine, theirs),
    )


def _shown(value: Any) -> str:
    return 'nothing' if value is MISSING else f'{value!r:.80}'
