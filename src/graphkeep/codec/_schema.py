"""The pydantic core schema of a declared type: made, walked, and blamed when it cannot be made."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import typing_extensions
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)

from ..errors import UnstorableTypeError

__all__ = (
    'OPAQUE',
    'Schema',
    'children',
    'core_schema',
    'definitions_of',
    'fields_of',
    'put_it_in_deps',
    'references',
    'resolve',
    'without_functions',
)

Schema = dict[str, Any]
"""A pydantic core schema, or a part of one."""

OPAQUE = frozenset({'cls', 'config', 'default', 'expected', 'function', 'members', 'metadata'})
"""Keys of a core schema whose values hold no schemas."""


def core_schema(type_: Any, *, path: str, namespace: Mapping[str, Any] | None) -> Schema:
    """The core schema pydantic makes for a type.

    Args:
        type_: Any type annotation.
        path: The name of the value, for errors.
        namespace: Names that forward references may use. For a class that is defined in a function
            they win over those of its module.

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
        raise UnstorableTypeError(put_it_in_deps(at, culprit), path=at) from error
    except (PydanticUserError, TypeError) as error:
        at, culprit = _blame(type_, path, namespace)
        reason = error.message if isinstance(error, PydanticUserError) else error
        raise UnstorableTypeError(
            f'`{at}` is declared as {_shown(culprit)}, which pydantic does not take: {reason}',
            path=at,
        ) from error


def put_it_in_deps(path: str, what: Any) -> str:
    """The message for a field that cannot be stored.

    Args:
        path: The field.
        what: Its type, or a description.
    """
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
    globals_ = _module_of(type_)
    names = dict(namespace or {})
    if not _is_local(type_):
        names = {name: value for name, value in names.items() if name not in globals_}
    frame = {**names, '__graphkeep_make': TypeAdapter, '__graphkeep_type': type_}
    code = compile('__graphkeep_make(__graphkeep_type)', '<graphkeep>', 'eval')
    with _shadowing(names):
        adapter = cast('TypeAdapter[Any]', eval(code, globals_, frame))  # noqa: S307 a constant
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True, _types_namespace=names)
    return adapter


def _is_local(type_: Any) -> bool:
    return '<locals>' in getattr(type_, '__qualname__', '')


def _module_of(type_: Any) -> dict[str, Any]:
    module = sys.modules.get(str(getattr(type_, '__module__', '')))
    return {} if module is None else vars(module)


@contextmanager
def _shadowing(namespace: Mapping[str, Any]) -> Generator[None]:
    """Let local names win over those of the module in dataclasses that are defined in a function.

    pydantic looks into the module first, so the annotations for which that matters are replaced by
    what they mean, as long as a schema is made.
    """
    replaced: list[tuple[dataclasses.Field[Any], Any]] = []
    for cls in namespace.values():
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and _is_local(cls)):
            continue
        module = _module_of(cls)
        for each in dataclasses.fields(cls):
            if not isinstance(each.type, str):
                continue
            words = set(_WORD.findall(each.type)) & namespace.keys() & module.keys()
            if any(namespace[word] is not module[word] for word in words):
                replaced.append((each, each.type))
                each.type = resolve(cls, namespace).get(each.name, each.type)
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
    if not isinstance(type_, type) or not _has_fields(cast('type[Any]', type_)):
        return
    for name, hint in resolve(type_, namespace).items():
        if typing.get_origin(hint) is not typing.ClassVar and hint is not typing.ClassVar:
            yield f'{path}.{name}', hint


def _has_fields(cls: type[Any]) -> bool:
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, BaseModel)
        or typing_extensions.is_typeddict(cls)
        or hasattr(cls, '_fields')
    )


def resolve(class_: Any, namespace: Mapping[str, Any] | None) -> dict[str, Any]:
    """The annotations of a class by name, `Annotated` kept; empty when one cannot be resolved."""
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
        if key in OPAQUE or key == 'serialization':
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


def references(schema: Schema) -> set[str]:
    """The definitions that a schema refers to, in its serialization too."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            held = cast('Schema', node)
            if held.get('type') == 'definition-ref':
                found.add(cast('str', held['schema_ref']))
            waiting.extend(value for key, value in held.items() if key not in OPAQUE)
        elif isinstance(node, (list, tuple)):
            waiting.extend(cast('list[Any]', node))
    return found


_AROUND = frozenset({'function-after', 'function-before', 'function-wrap'})


def without_functions(schema: Schema) -> Schema:
    """A copy of a schema that loads what is inside the functions which classes and annotations have
    put around it.
    """
    return cast('Schema', _without_functions(schema))


def _without_functions(node: Any) -> Any:
    if isinstance(node, (list, tuple)):
        held = cast('list[Any]', node)
        return type(held)(_without_functions(each) for each in held)
    if not isinstance(node, dict):
        return node
    given = cast('Schema', node)
    if not isinstance(given.get('type'), str):
        return {key: _without_functions(value) for key, value in given.items()}  # e.g. fields
    while given['type'] in _AROUND:
        inner = cast('Schema', given['schema'])
        given = {**inner, 'ref': given['ref']} if 'ref' in given else inner
    apart = OPAQUE | {'serialization'}
    return {
        key: value if key in apart else _without_functions(value) for key, value in given.items()
    }
