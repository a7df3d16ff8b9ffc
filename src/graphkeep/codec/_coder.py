"""One core schema put to work: dump, load, and prove that a dump loads back as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import (
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
)

from ..errors import CodecError, LossyStateError
from ._exact import Difference, Nothing, difference
from ._schema import Schema, children, fields_of, references
from ._surrogates import escaped_schema, from_marked, has_lone, to_marked

__all__ = ('Coder', 'follow', 'misfit', 'undumpable')

_REPLACED = '\ufffd'.encode() * 3
"""What pydantic makes of a lone surrogate in a dictionary key, without a word."""

_BATCH = 1 << 20
"""Elements are loaded back in batches of about this many bytes, to keep the peak of memory low."""

_MAX_LOCATED = 12
"""Errors name places down to this depth."""


class Coder:
    """Dumps and loads values of one schema.

    Args:
        schema: A canonical core schema, without its definitions.
        definitions: What it refers to, canonical too.
    """

    def __init__(self, schema: Schema, definitions: Mapping[str, Schema]) -> None:
        self.schema = schema
        self._definitions = definitions

    def of(self, schema: Schema) -> Coder:
        """A coder for a part of the schema."""
        return Coder(schema, self._definitions)

    @cached_property
    def resolved(self) -> Schema:
        """The schema behind references and defaults."""
        schema = self.schema
        while 'serialization' not in schema:
            if schema.get('type') == 'definition-ref':
                schema = self._definitions[cast('str', schema['schema_ref'])]
            elif schema.get('type') == 'default':
                schema = cast('Schema', schema['schema'])
            else:
                break
        return schema

    @cached_property
    def items(self) -> Coder | None:
        """The coder of the elements, when the schema is a plain list."""
        schema = self.resolved
        if schema.get('type') != 'list' or 'serialization' in schema:
            return None
        return self.of(schema.get('items_schema', {'type': 'any'}))

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(cast('Any', self._closed(self.schema)), _CORE_CONFIG, False)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(cast('Any', self._closed(self.schema)), _CORE_CONFIG, False)

    @cached_property
    def _deep_validator(self) -> SchemaValidator:
        """Loads `[[…]]`: as deep as the value lies in a document, where depth is limited."""
        nested = {'type': 'list', 'items_schema': {'type': 'list', 'items_schema': self.schema}}
        return SchemaValidator(cast('Any', self._closed(nested)), _CORE_CONFIG, False)

    @cached_property
    def _escaped(self) -> Coder:
        """The slow path for lone surrogates."""
        return Coder(
            escaped_schema(self.schema),
            {ref: escaped_schema(each) for ref, each in self._definitions.items()},
        )

    def _closed(self, schema: Schema) -> Schema:
        """The schema with those definitions that it needs."""
        needed: dict[str, Schema] = {}
        waiting = [schema]
        while waiting:
            for ref in references(waiting.pop()):
                if ref not in needed and ref in self._definitions:
                    needed[ref] = self._definitions[ref]
                    waiting.append(needed[ref])
        if not needed:
            return schema
        return {'type': 'definitions', 'schema': schema, 'definitions': list(needed.values())}

    def dump(self, value: Any) -> bytes:
        """Canonical JSON of a value.

        Raises:
            Exception: Whatever pydantic or the user's serializers raise.
        """
        try:
            data = self._serializer.to_json(value, by_alias=False, warnings='error')
        except PydanticSerializationError as error:
            if 'surrogates not allowed' not in str(error):
                raise
        else:
            if _REPLACED not in data:
                return data
        escaped = self._escaped._serializer
        return from_marked(escaped.to_json(value, by_alias=False, warnings='error'))

    def load(self, data: bytes | bytearray) -> Any:
        """The value of a JSON text.

        Raises:
            ValidationError: It does not fit the type.
        """
        if has_lone(data):
            return self._escaped._validator.validate_json(
                to_marked(data), by_alias=True, by_name=True
            )
        return self._validator.validate_json(data, by_alias=True, by_name=True)

    def _load_deep(self, data: bytes) -> list[Any]:
        """The values of comma-joined JSON texts."""
        nested = b''.join((b'[[', data, b']]'))
        if has_lone(nested):
            validator, nested = self._escaped._deep_validator, to_marked(nested)
        else:
            validator = self._deep_validator
        return validator.validate_json(nested, by_alias=True, by_name=True)[0]

    def prove(self, value: Any, data: bytes, path: str) -> None:
        """Load a dump back and compare.

        Raises:
            LossyStateError: What comes back is not the value.
        """
        if found := self._loss([value], [data], path, None):
            raise _lossy(found)

    def prove_items(
        self, values: Sequence[Any], pieces: Sequence[bytes], path: str, start: int
    ) -> None:
        """`prove` for elements `start`, `start + 1`, … of the list at `path`.

        Raises:
            LossyStateError: What comes back is not the value.
        """
        first = 0
        while first < len(values):
            last, size = first, 0
            while last < len(values) and size < _BATCH:
                size += len(pieces[last])
                last += 1
            if found := self._loss(values[first:last], pieces[first:last], path, start + first):
                raise _lossy(found)
            first = last

    def _loss(
        self, values: Sequence[Any], pieces: Sequence[bytes], path: str, start: int | None
    ) -> Difference | None:
        try:
            loaded = self._load_deep(b','.join(pieces))
        except ValidationError as error:
            detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
            loc = detail['loc'][1:]
            index = loc[0] if loc and isinstance(loc[0], int) else 0
            at = path if start is None else f'{path}[{start + index}]'
            at, value = follow(values[index], loc[1:], at)
            if detail['type'] == 'missing':
                at += f'.{loc[-1]}'
            raise LossyStateError(
                f'`{at}` holds {_short(value)}, which would not load again: {detail["msg"]}. '
                'Nothing was written. Change the value, or the type that is declared for it.',
                path=at,
            ) from error
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            raise LossyStateError(
                f'`{path}` would not load again: {error}. Nothing was written.', path=path
            ) from error
        for index, (value, piece, back) in enumerate(zip(values, pieces, loaded, strict=True)):
            at = path if start is None else f'{path}[{start + index}]'
            if found := difference(value, back, at):
                return found
            if self.dump(back) != piece:
                return Difference(at, value, back, 'It is dumped in another way after loading.')
        return None


_CORE_CONFIG: Any = {
    'ser_json_bytes': 'base64',
    'val_json_bytes': 'base64',
    'ser_json_inf_nan': 'strings',
}


def follow(value: Any, loc: Sequence[int | str], path: str) -> tuple[str, Any]:
    """Walk a pydantic error location along a value, past the names of union choices in it."""
    for step in loc:
        if isinstance(step, int):
            if isinstance(value, (list, tuple)) and step < len(cast('list[Any]', value)):
                value, path = value[step], f'{path}[{step}]'
        elif isinstance(value, Mapping):
            if step in value:
                value, path = value[step], f'{path}[{step!r}]'
        elif hasattr(value, step):
            value, path = getattr(value, step), f'{path}.{step}'
    return path, cast('Any', value)


def undumpable(coder: Coder, value: Any, path: str, error: Exception) -> LossyStateError:
    """The error for a value that cannot be dumped, naming the innermost place."""
    at, held, cause = path, value, error
    if not any(text in str(error) for text in _WHOLE):
        at, held, cause = _locate(coder, value, path, error, 0)
    return LossyStateError(
        f'`{at}` holds {_short(held)}, which cannot be stored: {_reason(cause)}. Nothing was '
        'written. Change the value or its declared type, or keep it in `deps`.',
        path=at,
    )


def _locate(
    coder: Coder, value: Any, path: str, error: Exception, depth: int
) -> tuple[str, Any, Exception]:
    if depth < _MAX_LOCATED:
        for at, schema, inner in _parts(coder, value, path):
            child = coder.of(schema)
            try:
                child.dump(inner)
            except Exception as cause:  # whatever a user's serializer raises
                return _locate(child, inner, at, cause, depth + 1)
    return path, value, error


def _parts(coder: Coder, value: Any, path: str) -> list[tuple[str, Schema, Any]]:
    schema = coder.resolved
    if schema.get('type') == 'nullable':
        return [] if value is None else [(path, schema['schema'], value)]
    if 'serialization' in schema:
        return []
    if isinstance(value, list) and schema.get('type') in ('list', 'any'):
        items = schema.get('items_schema', {'type': 'any'})
        held = cast('list[Any]', value)
        return [(f'{path}[{index}]', items, item) for index, item in enumerate(held)]
    if isinstance(value, dict) and schema.get('type') in ('dict', 'any'):
        items = schema.get('values_schema', {'type': 'any'})
        entries = cast('dict[Any, Any]', value)
        return [(f'{path}[{key!r}]', items, item) for key, item in entries.items()]
    while schema.get('type', '').startswith('function-') and 'serialization' not in schema:
        inner = list(children(schema))
        if len(inner) != 1:
            return []
        schema = coder.of(inner[0]).resolved
    return [
        (f'{path}.{name}', field['schema'], getattr(value, name))
        for name, field in fields_of(schema)
        if hasattr(value, name)
    ]


_WHOLE = {
    'depth exceeded': 'it is nested too deeply',
    'Circular reference': 'it contains itself (a circular reference)',
}
"""Errors that no single element is to blame for."""
_EXPECTED = re.compile(r'PydanticSerializationUnexpectedValue\(Expected `(.+?)`( - |\)|, got)')


def _reason(error: Exception) -> str:
    text = str(error)
    for known, reason in _WHOLE.items():
        if known in text:
            return reason
    if 'PairedSurrogatesError' in text:
        return 'JSON would make one character of a high and a low surrogate'
    if expected := list(dict.fromkeys(match[1] for match in _EXPECTED.finditer(text))):
        return f'the declared type is `{" | ".join(expected)}`'
    text = text.removeprefix('Error serializing to JSON: ')
    return ' '.join(text.split()).rstrip('.')


def _lossy(found: Difference) -> LossyStateError:
    was, became = found.was, found.became
    note = found.note
    change = f'holds {_short(was)}'
    if isinstance(became, Nothing):
        change += ', which would be lost'
    elif type(was) is not type(became):
        change += f' ({_class(was)}), which would come back as {_short(became)} ({_class(became)})'
        note = note or 'Declare the type that it has, or convert it before the step ends.'
    else:
        change += f', which would come back as {_short(became)}'
    note = note or 'Declare a type that JSON keeps, or keep the value in `deps`.'
    return LossyStateError(f'`{found.path}` {change}. Nothing was written. {note}', path=found.path)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # a user's own __repr__; the class is enough then
        text = f'an instance of {_class(value)}'
    return text if len(text) <= 80 else f'{text[:77]}…'


def _class(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == 'builtins' else f'{cls.__module__}.{cls.__qualname__}'


def misfit(error: Exception, path: str) -> CodecError:
    """The error for stored JSON that does not load as the declared type."""
    if isinstance(error, ValidationError):
        detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
        for step in detail['loc']:
            path += f'[{step}]' if isinstance(step, int) else f'.{step}'
        more = error.error_count() - 1
        reason = detail['msg'] + (f' (and {more} more)' if more else '')
    else:
        reason = str(error)
    return CodecError(
        f'What is stored as `{path}` does not fit the declared type: {reason}.', path=path
    )
