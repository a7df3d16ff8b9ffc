"""One core schema put to work: dump, load, and prove that a dump loads back as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import (
    PydanticSerializationError,
    SchemaError,
    SchemaSerializer,
    SchemaValidator,
)

from ..errors import LossyStateError
from ._canonical import SETTINGS
from ._exact import Difference, difference
from ._loss import lossy, unloadable
from ._schema import Schema, references, without_functions
from ._surrogates import escaped_schema, from_marked, has_lone, to_marked

__all__ = ('UNLOADABLE', 'Coder')

UNLOADABLE = (ValidationError, ValueError, TypeError, AttributeError, RecursionError)
"""What loading raises where a text does not fit."""

_REPLACED = '\ufffd'.encode() * 3
"""What pydantic makes of a lone surrogate in a dictionary key, without a word."""
_RARE = _REPLACED[0]
"""One byte is looked for many times faster than nine."""

_BATCH = 1 << 20
"""Elements are loaded back in batches of about this many bytes, to keep the peak of memory low."""


@contextmanager
def _no_collection() -> Generator[None]:
    """Around what makes a hundred thousand objects of which none is garbage: the collector would
    walk them again and again, which takes as long as making them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Coder:
    """Dumps and loads values of one schema.

    Validators and serializers are built when they are first needed: one costs up to 20 ms.

    Args:
        schema: A canonical core schema, without its definitions.
        definitions: What it refers to, canonical too.
        config: The settings of the class that the schema is a part of.
    """

    def __init__(
        self, schema: Schema, definitions: Mapping[str, Schema], config: Mapping[str, Any] = {}
    ) -> None:
        self.schema = schema
        self._definitions = definitions
        self._config = config

    def of(self, schema: Schema, config: Mapping[str, Any] | None = None) -> Coder:
        """A coder for a part of the schema; `config` when that belongs to a class of its own."""
        return Coder(schema, self._definitions, self._config if config is None else config)

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

    def dump(self, value: Any) -> bytes:
        """Canonical JSON of a value.

        A value of another type than the declared one is dumped as pydantic sees fit: `prove` tells.

        Raises:
            Exception: Whatever pydantic or a user's serializer raises.
        """
        try:
            # `warnings='error'` would cost twenty times as much.
            data = self._to_json(value, by_alias=False, warnings=False)
        except PydanticSerializationError as error:
            if 'surrogates not allowed' not in str(error):
                raise
        else:
            if _RARE not in data or _REPLACED not in data:
                return data
        return from_marked(self._escaped._to_json(value, by_alias=False, warnings=False))

    def load(self, data: bytes | bytearray) -> Any:
        """The value of a JSON text.

        Raises:
            ValidationError: It does not fit the type.
        """
        try:
            return self._load_json(data, by_alias=True, by_name=True)
        except ValidationError:
            # pydantic refuses every lone surrogate: no other text has to be looked through.
            if not has_lone(data):
                raise
        return self._escaped._load_json(to_marked(data), by_alias=True, by_name=True)

    def load_all(self, pieces: Sequence[bytes]) -> list[Any]:
        """The values of JSON texts, in one go: a third faster than one by one.

        Raises:
            ValidationError: One of them does not fit the type.
            ValueError: One of them is no JSON text.
        """
        with _no_collection():
            outer = self._nested.load(b''.join((b'[[', b','.join(pieces), b']]')))
        if len(outer) != 1 or len(outer[0]) != len(pieces):
            raise ValueError('the texts are no JSON one by one')
        return outer[0]

    @cached_property
    def plain(self) -> Coder | None:
        """Loads without the functions that classes put around it, which takes up to a quarter of
        the time. Whether that gives the same, `is_plain` tells. `None` if it cannot be done.
        """
        definitions = {ref: without_functions(each) for ref, each in self._definitions.items()}
        plain = Coder(without_functions(self.schema), definitions, self._config)
        try:
            assert plain._nested._load_json
        except SchemaError:
            return None
        return plain

    def is_plain(self, value: Any, data: bytes) -> bool:
        """Whether the dump of a value gives the very same value by `plain`."""
        if self.plain is None:
            return False
        try:
            return self._loss([value], [data], [''], by=self.plain) is None
        except LossyStateError:
            return False

    def prove(self, value: Any, data: bytes, path: str) -> None:
        """Load a dump back and compare.

        Raises:
            LossyStateError: What comes back is not the value.
        """
        if found := self._loss([value], [data], [path], by=self):
            raise lossy(found)

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
            paths = [f'{path}[{start + index}]' for index in range(first, last)]
            if found := self._loss(values[first:last], pieces[first:last], paths, by=self):
                raise lossy(found)
            first = last

    def _loss(
        self, values: Sequence[Any], pieces: Sequence[bytes], paths: Sequence[str], *, by: Coder
    ) -> Difference | None:
        """What differs when dumps are loaded `by` a coder. Raises as `unloadable` says."""
        nested = b''.join((b'[[', b','.join(pieces), b']]'))
        try:
            loaded: list[Any] = by._nested.load(nested)[0]
        except UNLOADABLE as error:
            raise unloadable(values, paths, error) from error
        for value, piece, path, back in zip(values, pieces, paths, loaded, strict=True):
            if found := difference(value, back, path):
                return found
            if self.dump(back) != piece:
                return Difference(path, value, back, 'It is dumped in another way after loading.')
        return None

    @cached_property
    def _to_json(self) -> Callable[..., bytes]:
        schema, config = self._closed(self.schema), {**self._config, **SETTINGS}
        return SchemaSerializer(cast('Any', schema), cast('Any', config), False).to_json

    @cached_property
    def _load_json(self) -> Callable[..., Any]:
        schema, config = self._closed(self.schema), {**self._config, **SETTINGS}
        # Not the validators that classes bring along: they are of the schema as it was. Since
        # pydantic 2.13 one can say so.
        return SchemaValidator(cast('Any', schema), cast('Any', config), False).validate_json

    @cached_property
    def _nested(self) -> Coder:
        """Of `[[…]]`: as deep as a value lies in a state, since pydantic limits the depth."""
        inner = {'type': 'list', 'items_schema': self.schema}
        return self.of({'type': 'list', 'items_schema': inner})

    @cached_property
    def _escaped(self) -> Coder:
        """The slow path for lone surrogates."""
        definitions = {ref: escaped_schema(each) for ref, each in self._definitions.items()}
        return Coder(escaped_schema(self.schema), definitions, self._config)

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
