"""The schema by which values are stored: pydantic's, made canonical."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from ._files import dump_any, dump_file, dump_items, is_binary_content, with_hint
from ._schema import OPAQUE, Schema, children, definitions_of, fields_of
from ._sorting import order_keys, sort_items

__all__ = ('SETTINGS', 'canonical')

SETTINGS = {
    'ser_json_bytes': 'base64',
    'val_json_bytes': 'base64',
    'ser_json_inf_nan': 'strings',
    'ser_json_temporal': 'iso8601',
    'ser_json_timedelta': 'iso8601',
}
"""Set on every class: the forms in which JSON keeps all bytes, NaN, infinities and microseconds."""

_CONFIGURED = frozenset({'dataclass', 'model', 'typed-dict'})


def canonical(schema: Schema) -> Schema:
    """A copy of a core schema by which values are stored.

    It differs from pydantic's own in these points:

    - bytes are base64, NaN and infinities strings, whatever a class is configured to;
    - sets are sorted by their encoded items, typed dicts have their keys in the declared order;
    - an `int` held where `float` is declared stays an `int` (PEP 484 allows it; `1` is not `1.0`);
    - names are stored, not aliases, and both are accepted when loading;
    - `init=False` fields are restored; computed fields are left out unless a field loads them;
    - `Json[T]` is stored as `T`; pydantic-ai's files keep their class.
    """
    _, definitions = definitions_of(schema)
    return cast('Schema', _canonical(schema, definitions))


def _canonical(node: Any, definitions: Mapping[str, Schema], *, key: bool = False) -> Any:
    if isinstance(node, list):
        return [_canonical(item, definitions) for item in cast('list[Any]', node)]
    if isinstance(node, tuple):
        return tuple(_canonical(item, definitions) for item in cast('tuple[Any, ...]', node))
    if not isinstance(node, dict):
        return node
    given = cast('Schema', node)
    copy: Schema = {}
    for name, value in given.items():
        is_key = name == 'keys_schema'
        copy[name] = value if name in OPAQUE else _canonical(value, definitions, key=is_key)
    kind = copy.get('type')
    if not isinstance(kind, str):
        return copy
    if kind in _CONFIGURED or 'config' in copy:
        copy['config'] = {**copy.get('config', {}), **SETTINGS}
    if kind in ('dataclass-args', 'model-fields', 'typed-dict'):
        _by_name(copy)
        _keep_loadable_computed_fields(copy)
    elif kind == 'dataclass-field':
        copy.pop('init', None)
    elif kind == 'tagged-union':
        _discriminate_by_name(copy, definitions)
    if is_binary_content(_behind_functions(given, definitions)):
        return with_hint(copy)
    if 'serialization' in copy:
        return copy
    match kind:
        case 'set' | 'frozenset':
            copy['serialization'] = _serialized_by(sort_items, copy)
        case 'typed-dict':
            declared = tuple(copy['fields'])
            copy['serialization'] = _serialized_by(partial(order_keys, declared), copy)
        case 'float' if not key and not copy.get('strict'):
            union = {
                'type': 'union',
                'choices': [{'type': 'int', 'strict': True}, _anonymous(copy)],
            }
            return _in_place_of(copy, union)
        case 'union' if _holds_any_file(given, definitions):
            choices = [_guarded(each) for each in cast('list[Schema]', copy['choices'])]
            copy['serialization'] = _serialized_by(dump_any, copy | {'choices': choices})
        case 'json' if 'schema' in copy:
            return _in_place_of(copy, copy['schema'])
        case 'json-or-python':
            # As a choice of a union it would take any value for its own when it is dumped.
            return _in_place_of(copy, copy['json_schema'])
        case _:
            pass
    return copy


def _holds_any_file(schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    """Whether a union is pydantic-ai's for tool results: files of every kind, or anything else."""
    choices = list(children(schema))
    kinds = [each['choices'] for each in choices if each['type'] == 'tagged-union']
    files = [cast('Schema', each.get('binary', {})) for each in kinds]
    return any(each['type'] == 'any' for each in choices) and any(
        is_binary_content(_behind_functions(each, definitions)) for each in files
    )


def _guarded(choice: Schema) -> Schema:
    """A choice of that union, for dumping: by itself it takes any value for its own."""
    if choice['type'] == 'tagged-union':
        guard = dump_file
    elif 'serialization' in choice:
        guard = dump_items
    else:
        return choice
    return {'type': 'any', 'serialization': _serialized_by(guard, choice)}


def _anonymous(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != 'ref'}


def _in_place_of(schema: Schema, other: Schema) -> Schema:
    return other | {'ref': schema['ref']} if 'ref' in schema else other


def _behind_functions(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """What validator functions are put around; the schema itself when there are none."""
    while str(schema.get('type')).startswith('function-') and 'schema' in schema:
        schema = cast('Schema', schema['schema'])
        if schema.get('type') == 'definition-ref':
            schema = definitions.get(cast('str', schema['schema_ref']), {})
    return schema


def _own_fields(schema: Schema) -> list[tuple[str, Schema]]:
    return fields_of(schema if schema['type'] == 'typed-dict' else {'schema': schema})


def _by_name(schema: Schema) -> None:
    """Drop aliases that are also the name of another field: both are accepted when loading."""
    fields = _own_fields(schema)
    names = {name for name, _ in fields}
    for name, field in fields:
        if _aliases(field) & (names - {name}):
            del field['validation_alias']


def _aliases(field: Schema) -> set[Any]:
    """The top-level keys under which a field is looked for beside its name."""
    alias: Any = field.get('validation_alias')
    if isinstance(alias, str):
        return {alias}
    if not isinstance(alias, list) or not alias:
        return set()
    given = cast('list[Any]', alias)
    paths = cast('list[list[Any]]', given if isinstance(given[0], list) else [given])
    return {path[0] for path in paths if path}


def _discriminate_by_name(schema: Schema, definitions: Mapping[str, Schema]) -> None:
    """Look for a discriminator under the name of its field too: pydantic looks for the alias."""
    alias = schema.get('discriminator')
    if not isinstance(alias, str):
        return
    paths = [[alias]]
    for each in schema['choices'].values():
        choice: Any = each
        while isinstance(choice, dict) and not fields_of(cast('Schema', choice)):
            held = cast('Schema', choice)
            choice = definitions.get(held.get('schema_ref', '')) or held.get('schema')
        for name, field in fields_of(cast('Schema', choice or {})):
            if field.get('validation_alias') == alias and [name] not in paths:
                paths.append([name])
    if len(paths) > 1:
        schema['discriminator'] = paths


def _keep_loadable_computed_fields(schema: Schema) -> None:
    """Dump a computed field only if a field of the class takes its value when it is loaded."""
    computed = cast('list[Schema]', schema.get('computed_fields', []))
    if computed:
        taken = {alias for _, field in _own_fields(schema) for alias in _aliases(field)}
        schema['computed_fields'] = [each for each in computed if each['property_name'] in taken]


def _serialized_by(function: Callable[..., Any], schema: Schema) -> Schema:
    return {
        'type': 'function-wrap',
        'function': function,
        'schema': {key: value for key, value in schema.items() if key not in ('ref', 'metadata')},
        'is_field_serializer': False,
        'info_arg': True,
        'return_schema': {'type': 'any'},
    }
