"""From a declared type to the pydantic core schema that its values are stored by."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import typing_extensions
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)

from ..errors import UnstorableTypeError
from ._files import is_binary_content, with_hint
from ._sorting import order_keys, sort_items

__all__ = ('Schema', 'canonical', 'core_schema', 'definitions_of', 'refuse_unstorable', 'resolve')

Schema = dict[str, Any]
"""A pydantic core schema, or a part of one."""

_OPAQUE = frozenset({'cls', 'config', 'default', 'expected', 'function', 'members', 'metadata'})
"""Keys of a core schema whose values hold no schemas."""

_CONFIG = {
    'ser_json_bytes': 'base64',
    'val_json_bytes': 'base64',
    'ser_json_inf_nan': 'strings',
    'ser_json_temporal': 'iso8601',
    'ser_json_timedelta': 'iso8601',
}
"""Set on every class: the forms in which JSON keeps all bytes, NaN, infinities and microseconds."""

_CONFIGURED = frozenset({'dataclass', 'model', 'typed-dict'})
_UNSTORABLE = {
    'arguments': 'call arguments',
    'arguments-v3': 'call arguments',
    'call': 'a call',
    'callable': 'a callable',
    'generator': 'a lazy iterable (say `list[…]`)',
    'is-instance': 'an arbitrary class',
    'is-subclass': 'a class',
}


def core_schema(type_: Any, *, path: str, namespace: Mapping[str, Any] | None) -> Schema:
    """The core schema pydantic makes for a type.

    Args:
        type_: Any type annotation.
        path: The name of the value, for errors.
        namespace: Local names that forward references may use; they win over the module's.

    Raises:
        UnstorableTypeError: pydantic can make no schema for it, or a name cannot be resolved.
    """
    try:
        return cast('Schema', _adapter(type_, namespace).core_schema)
    except PydanticUndefinedAnnotation as error:
        raise UnstorableTypeError(
            f'`{path}`: the name {error.name!r} in the annotations of {_shown(type_)} cannot be '
            'resolved. Define it before the graph is bound, or pass it with `namespace=`.',
            path=path,
        ) from error
    except PydanticSchemaGenerationError as error:
        at, culprit = _blame(type_, path, namespace)
        raise UnstorableTypeError(_put_it_in_deps(at, culprit), path=at) from error
    except (PydanticUserError, TypeError) as error:
        at, culprit = _blame(type_, path, namespace)
        reason = error.message if isinstance(error, PydanticUserError) else error
        raise UnstorableTypeError(
            f'`{at}` is declared as {_shown(culprit)}, which pydantic does not take: {reason}', path=at
        ) from error


def _put_it_in_deps(path: str, what: Any) -> str:
    return (
        f'`{path}` is declared as {_shown(what)}, which cannot be stored as JSON. Put it in `deps` '
        '(they are never stored), or declare a type that pydantic can dump and load.'
    )


def _shown(type_: Any) -> str:
    if isinstance(type_, str):
        return type_
    name = getattr(type_, '__qualname__', None)
    if name is not None and not typing.get_args(type_):
        return f'`{type_.__module__}.{name}`'
    return f'`{type_}`'


def _adapter(type_: Any, namespace: Mapping[str, Any] | None) -> TypeAdapter[Any]:
    """A `TypeAdapter` that resolves names as if it were made in `namespace`, in the type's module.

    pydantic takes both from the frame that makes the adapter, so one is made for it.
    """
    module = sys.modules.get(str(getattr(type_, '__module__', '')))
    names = {**(namespace or {}), '__graphkeep_make': TypeAdapter, '__graphkeep_type': type_}
    code = compile('__graphkeep_make(__graphkeep_type)', '<graphkeep>', 'eval')
    with _shadowing(namespace or {}):
        # A constant expression of ours: evaluated for its frame.
        adapter = cast('TypeAdapter[Any]', eval(code, vars(module) if module else {}, names))  # noqa: S307
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True, _types_namespace=dict(namespace or {}))
    return adapter


@contextmanager
def _shadowing(namespace: Mapping[str, Any]) -> Generator[None]:
    """Let local names win over those of the module in the dataclasses of a namespace.

    pydantic looks into the module first, so the annotations for which that matters are replaced by
    what they mean, as long as a schema is made.
    """
    replaced: list[tuple[dataclasses.Field[Any], Any]] = []
    classes = [each for each in namespace.values() if isinstance(each, type)]
    for cls in filter(dataclasses.is_dataclass, classes):
        module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
        for each in dataclasses.fields(cls):
            if not isinstance(each.type, str):
                continue
            words = set(_WORD.findall(each.type)) & namespace.keys() & module.keys()
            if any(namespace[word] is not module[word] for word in words):
                hint = resolve(cls, namespace).get(each.name, each.type)
                replaced.append((each, each.type))
                each.type = hint
    try:
        yield
    finally:
        for each, written in replaced:
            each.type = written


_WORD = re.compile(r'\w+')


def _blame(
    type_: Any, path: str, namespace: Mapping[str, Any] | None, depth: int = 0
) -> tuple[str, Any]:
    """The innermost field or element for which there is no schema."""
    if depth > 20:
        return path, type_
    for at, inner in _inner_types(type_, path, namespace):
        try:
            _adapter(inner, namespace)
        except PydanticUndefinedAnnotation:
            return at, inner
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
            return _blame(inner, at, namespace, depth + 1)
    return path, type_


def _inner_types(
    type_: Any, path: str, namespace: Mapping[str, Any] | None
) -> Iterator[tuple[str, Any]]:
    origin = typing.get_origin(type_)
    if origin is not None and origin is not typing.Annotated:
        for inner in typing.get_args(type_):
            if inner is not type(None) and inner is not Ellipsis:
                union = origin in (typing.Union, types.UnionType)
                yield (path if union else f'{path}[…]'), inner
        type_ = origin
    if origin is typing.Annotated:
        yield path, typing.get_args(type_)[0]
        return
    if not isinstance(type_, type):
        return
    structured = (
        dataclasses.is_dataclass(type_)
        or issubclass(type_, BaseModel)
        or typing_extensions.is_typeddict(type_)
        or hasattr(type_, '_fields')
    )
    if not structured:
        return
    for name, hint in resolve(type_, namespace).items():
        if typing.get_origin(hint) is not typing.ClassVar and hint is not typing.ClassVar:
            yield f'{path}.{name}', hint


def resolve(class_: Any, namespace: Mapping[str, Any] | None) -> dict[str, Any]:
    """The annotations of a class by name, `Annotated` kept; one that cannot be resolved is left out."""
    try:
        return typing_extensions.get_type_hints(
            class_, localns=dict(namespace or {}), include_extras=True
        )
    except (NameError, TypeError):
        return {}


def definitions_of(schema: Schema) -> tuple[Schema, dict[str, Schema]]:
    """A schema without its `definitions` wrapper, and what the wrapper defines by reference."""
    if schema.get('type') != 'definitions':
        return schema, {}
    inner = cast('Schema', schema['schema'])
    return inner, {each['ref']: each for each in cast('list[Schema]', schema['definitions'])}


def children(schema: Schema) -> Iterator[Schema]:
    """The schemas directly inside a schema, serialization left out."""
    for key, value in schema.items():
        if key in _OPAQUE or key == 'serialization':
            continue
        yield from _schemas_in(value)


def _schemas_in(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        held = cast('Schema', value)
        if isinstance(held.get('type'), str):
            yield held
        else:
            for each in held.values():
                yield from _schemas_in(each)
    elif isinstance(value, (list, tuple)):
        for each in cast('list[Any]', value):
            yield from _schemas_in(each)


def refuse_unstorable(schema: Schema, path: str) -> None:
    """Raise when a schema can be dumped or loaded for no useful value.

    Raises:
        UnstorableTypeError: With the path of the field.
    """
    inner, definitions = definitions_of(schema)
    found = _unstorable(inner, definitions, path, set())
    if found is not None:
        raise UnstorableTypeError(found[1], path=found[0])


def _unstorable(
    schema: Schema, definitions: Mapping[str, Schema], path: str, seen: set[str]
) -> tuple[str, str] | None:
    kind = schema.get('type')
    if 'serialization' in schema and kind != 'dataclass':
        return None
    match kind:
        case 'definition-ref':
            ref = cast('str', schema['schema_ref'])
            if ref in seen or ref not in definitions:
                return None
            return _unstorable(definitions[ref], definitions, path, seen | {ref})
        case 'is-instance' | 'is-subclass' | 'callable' | 'generator' | 'arguments' | 'call':
            what = schema.get('cls') if kind == 'is-instance' else None
            return path, _put_it_in_deps(path, what or _UNSTORABLE[kind])
        case 'json-or-python':
            return _unstorable(schema['json_schema'], definitions, path, seen)
        case 'lax-or-strict':
            return _unstorable(schema['lax_schema'], definitions, path, seen)
        case 'chain':
            return None
        case 'union' | 'tagged-union':
            choices = [
                choice[0] if isinstance(choice, tuple) else choice
                for choice in _choices(schema)
            ]
            found = [_unstorable(each, definitions, path, seen) for each in choices]
            return found[0] if found and all(found) else None
        case 'dataclass' | 'model' | 'typed-dict':
            return _unstorable_field(schema, definitions, path, seen)
        case 'list' | 'set' | 'frozenset' | 'deque' | 'tuple' | 'dict' | 'defaultdict' | 'counter':
            path = f'{path}[…]'
        case _:
            pass
    for child in children(schema):
        if found := _unstorable(child, definitions, path, seen):
            return found
    return None


def _choices(schema: Schema) -> list[Any]:
    choices = schema['choices']
    return list(choices.values()) if isinstance(choices, dict) else list(choices)


def _unstorable_field(
    schema: Schema, definitions: Mapping[str, Schema], path: str, seen: set[str]
) -> tuple[str, str] | None:
    for name, field in fields_of(schema):
        at = f'{path}.{name}'
        if field.get('init_only') and field['schema'].get('type') != 'default':
            return at, (
                f'`{at}` is an `InitVar` without a default. It is not kept on the object, so a '
                'stored value cannot be loaded again. Give it a default or make it a field.'
            )
        if field.get('serialization_exclude'):
            continue
        if found := _unstorable(field['schema'], definitions, at, seen):
            return found
    if not fields_of(schema):
        for child in children(schema):
            if found := _unstorable(child, definitions, path, seen):
                return found
    return None


def fields_of(schema: Schema) -> list[tuple[str, Schema]]:
    """Name and field schema of what a dataclass, model or typed dict declares; empty otherwise."""
    inner: Any = schema if schema.get('type') == 'typed-dict' else schema.get('schema')
    while isinstance(inner, dict):
        held = cast('Schema', inner)
        fields = held.get('fields')
        if held.get('type') in ('dataclass-args', 'model-fields', 'typed-dict'):
            if isinstance(fields, dict):
                return list(cast('dict[str, Schema]', fields).items())
            return [(field['name'], field) for field in cast('list[Schema]', fields)]
        inner = held.get('schema')
    return []


def canonical(schema: Schema) -> Schema:
    """A copy of a core schema by which values are stored.

    It differs from pydantic's own in these points: bytes are base64, NaN and infinities strings,
    whatever a class is configured to; sets are sorted; an `int` held where `float` is declared stays
    an `int` (PEP 484 allows it, and `1` is not `1.0`); names are stored, not aliases; `init=False`
    fields are restored.
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
    copy: Schema = {
        name: value
        if name in _OPAQUE
        else _canonical(value, definitions, key=name == 'keys_schema')
        for name, value in cast('Schema', node).items()
    }
    kind = copy.get('type')
    if not isinstance(kind, str):
        return copy
    if kind == 'json' and 'schema' in copy and 'serialization' not in copy:
        # `Json[T]` holds a `T`; that is what is stored, not a JSON text in a JSON string.
        inner = cast('Schema', copy['schema'])
        return inner | {'ref': copy['ref']} if 'ref' in copy else inner
    if kind == 'json-or-python' and 'serialization' not in copy:
        # In a union it would take any value for its own when it is dumped.
        inner = cast('Schema', copy['json_schema'])
        return inner | {'ref': copy['ref']} if 'ref' in copy else inner
    if kind in _CONFIGURED or 'config' in copy:
        copy['config'] = {**copy.get('config', {}), **_CONFIG}
    if kind in ('dataclass-args', 'model-fields', 'typed-dict'):
        _by_name(copy)
        _keep_loadable_computed_fields(copy)
    elif kind == 'dataclass-field':
        copy.pop('init', None)
    elif kind == 'tagged-union':
        _discriminate_by_name(copy, definitions)
    if kind in ('set', 'frozenset') and 'serialization' not in copy:
        copy['serialization'] = _wrapped(copy, sort_items)
    elif kind == 'typed-dict' and 'serialization' not in copy:
        copy['serialization'] = _wrapped(copy, partial(order_keys, tuple(copy['fields'])))
    elif kind == 'float' and not key and 'serialization' not in copy and not copy.get('strict'):
        return _int_or_float(copy)
    elif is_binary_content(_behind_functions(cast('Schema', node), definitions)):
        return with_hint(copy)
    return copy


def _behind_functions(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """What validator functions are put around."""
    wrapped = schema.get('type', '').startswith('function-')
    while wrapped and (schema.get('schema') or 'schema_ref' in schema):
        ref = schema.get('schema_ref')
        inner = definitions.get(cast('str', ref), {}) if ref else schema['schema']
        wrapped = inner.get('type') == 'definition-ref' or str(inner.get('type')).startswith('function-')
        schema = cast('Schema', inner)
    return schema


def _by_name(schema: Schema) -> None:
    """Drop aliases that are also the name of another field: both are accepted when loading."""
    fields = fields_of(schema if schema['type'] == 'typed-dict' else {'schema': schema})
    names = {name for name, _ in fields}
    for name, field in fields:
        alias = field.get('validation_alias')
        spoken = {alias} if isinstance(alias, str) else _first_keys(alias)
        if spoken & (names - {name}):
            del field['validation_alias']


def _first_keys(alias: Any) -> set[Any]:
    if not isinstance(alias, list) or not alias:
        return set()
    paths = cast('list[Any]', alias if isinstance(alias[0], list) else [alias])
    return {path[0] for path in paths if path}


def _discriminate_by_name(schema: Schema, definitions: Mapping[str, Schema]) -> None:
    """Look for the discriminator under the names of its fields too; pydantic looks for the alias."""
    alias = schema.get('discriminator')
    if not isinstance(alias, str):
        return
    paths = [[alias]]
    for choice in schema['choices'].values():
        while isinstance(choice, dict) and not fields_of(cast('Schema', choice)):
            held = cast('Schema', choice)
            ref = held.get('schema_ref')
            choice = definitions.get(ref) if ref is not None else held.get('schema')
        for name, field in fields_of(cast('Schema', choice or {})):
            if field.get('validation_alias') == alias and [name] not in paths:
                paths.append([name])
    if len(paths) > 1:
        schema['discriminator'] = paths


def _keep_loadable_computed_fields(schema: Schema) -> None:
    """Dump a computed field only if a field of the class takes its value when it is loaded."""
    computed = cast('list[Schema]', schema.get('computed_fields', []))
    if not computed:
        return
    taken: set[Any] = set()
    for _, field in fields_of(schema if schema['type'] == 'typed-dict' else {'schema': schema}):
        alias = field.get('validation_alias')
        taken |= {alias} if isinstance(alias, str) else _first_keys(alias)
    schema['computed_fields'] = [each for each in computed if each['property_name'] in taken]


def _wrapped(schema: Schema, serializer: Callable[..., Any]) -> Schema:
    return {
        'type': 'function-wrap',
        'function': serializer,
        'schema': {k: v for k, v in schema.items() if k not in ('ref', 'metadata')},
        'is_field_serializer': False,
        'info_arg': True,
        'return_schema': {'type': 'any'},
    }


def _int_or_float(schema: Schema) -> Schema:
    union: Schema = {
        'type': 'union',
        'choices': [
            {'type': 'int', 'strict': True},
            {k: v for k, v in schema.items() if k != 'ref'},
        ],
    }
    return union | {'ref': schema['ref']} if 'ref' in schema else union
