"""Types of which no useful value can be stored: found when the graph is bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from ..errors import UnstorableTypeError
from ._schema import Schema, children, definitions_of, fields_of, put_it_in_deps

__all__ = ('hidden_fields', 'hides', 'refuse_unstorable')

_UNSTORABLE = {
    'arguments': 'call arguments',
    'arguments-v3': 'call arguments',
    'call': 'a call',
    'callable': 'a callable',
    'generator': 'a lazy iterable (say `list[…]`)',
    'is-instance': 'an arbitrary class',
    'is-subclass': 'a class',
}
_CONTAINERS = frozenset(
    {'counter', 'defaultdict', 'deque', 'dict', 'frozenset', 'list', 'set', 'tuple'}
)


def refuse_unstorable(schema: Schema, path: str) -> None:
    """Raise when no useful value of a schema can be dumped and loaded.

    Args:
        schema: As pydantic generated it.
        path: The name of the value.

    Raises:
        UnstorableTypeError: With the path of the field.
    """
    inner, definitions = definitions_of(schema)
    if found := _Search(definitions).search(inner, path):
        at, message = found
        raise UnstorableTypeError(message, path=at)


class _Search:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._seen: set[str] = set()

    def search(self, schema: Schema, path: str) -> tuple[str, str] | None:
        """The path and the message of the first schema that cannot be stored."""
        kind = cast('str', schema['type'])
        if 'serialization' in schema and kind != 'dataclass':
            return None
        if kind == 'call' and hasattr(schema['function'], '_fields'):
            return None  # a named tuple, before pydantic 2.14
        if kind in _UNSTORABLE:
            return path, put_it_in_deps(path, schema.get('cls', _UNSTORABLE[kind]))
        match kind:
            case 'definition-ref':
                ref = cast('str', schema['schema_ref'])
                if ref in self._seen or ref not in self._definitions:
                    return None
                self._seen.add(ref)
                return self.search(self._definitions[ref], path)
            case 'json-or-python':
                return self.search(schema['json_schema'], path)
            case 'lax-or-strict':
                return self.search(schema['lax_schema'], path)
            case 'chain':
                return None
            case 'union' | 'tagged-union':
                found = [self.search(choice, path) for choice in children(schema)]
                return found[0] if found and all(found) else None
            case _:
                pass
        if fields := fields_of(schema):
            return self._search_fields(fields, path)
        if kind in _CONTAINERS:
            path = f'{path}[…]'
        for child in children(schema):
            if found := self.search(child, path):
                return found
        return None

    def _search_fields(self, fields: list[tuple[str, Schema]], path: str) -> tuple[str, str] | None:
        for name, field in fields:
            at = f'{path}.{name}'
            if field.get('init_only') and field['schema'].get('type') != 'default':
                return at, (
                    f'`{at}` is an `InitVar` without a default. It is not kept on the object, so a '
                    'stored value cannot be loaded again. Give it a default or make it a field.'
                )
            if field.get('serialization_exclude'):
                continue
            if found := self.search(field['schema'], at):
                return found
        return None


def hidden_fields(schema: Schema) -> list[str]:
    """The fields of a class that are never dumped: excluded ones, and those of a dataclass that
    have `init=False` and no default, which pydantic passes over.

    Private names are left out: pydantic-ai's files keep caches in such fields.
    """
    fields = dict(fields_of(schema))
    hidden = [name for name, field in fields.items() if field.get('serialization_exclude')]
    if schema.get('type') == 'dataclass':
        declared = dataclasses.fields(schema['cls'])
        hidden += [each.name for each in declared if each.name not in fields]
    return [name for name in hidden if not name.startswith('_')]


def hides(schema: Schema) -> bool:
    """Whether a schema has a field that is never dumped, so that its loss would show in no byte.

    Private names are passed over: pydantic-ai's files keep caches in such fields.
    """
    inner, definitions = definitions_of(schema)
    waiting, seen = [inner], set[str]()
    while waiting:
        each = waiting.pop()
        if each.get('type') == 'definition-ref':
            ref = cast('str', each['schema_ref'])
            if ref in seen or ref not in definitions:
                continue
            seen.add(ref)
            each = definitions[ref]
        if hidden_fields(each):
            return True
        waiting.extend(children(each))
    return False
