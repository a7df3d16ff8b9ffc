"""Which values need no loading back: their class alone says that JSON keeps them.

`compile_certain(schema)` makes a predicate that is true only for values that are certain to come
back with the same classes and contents. False means: load it and look.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, cast

from pydantic_core import TzInfo

from ._schema import Schema, definitions_of, fields_of
from ._storable import hidden_fields

__all__ = ('Certain', 'compile_certain', 'hooks_of', 'never')

Certain = Callable[[Any], bool]
"""Whether a value is certain to come back as it is."""

_MAX_DEPTH = 60
"""Deeper values are loaded back: pydantic's limits, about 200, lie beyond."""
_MAX_BITS = 14_000
"""Longer integers may not fit into the 4,300 digits Python converts."""
_NATURAL_SCALARS = frozenset({str, bool, type(None)})
_TEXT_SETTINGS = frozenset(
    {
        'str_max_length',
        'str_min_length',
        'str_strip_whitespace',
        'str_to_lower',
        'str_to_upper',
    }
)
_NO_CONSTRAINT = frozenset({'type', 'metadata', 'ref', 'strict', 'cls'})
_ZONES = frozenset({TzInfo, timezone})


def never(_: Any) -> bool:
    """The predicate for what only loading back can tell."""
    return False


def compile_certain(schema: Schema, config: Mapping[str, Any] = {}) -> tuple[Certain, bool]:
    """Make the predicate of a schema as pydantic generated it.

    Args:
        schema: The schema.
        config: The settings of the class that the schema is a part of.

    Returns:
        The predicate, and whether it knows every part of the type: when it says no, something is
        wrong with the value.
    """
    inner, definitions = definitions_of(schema)
    compiler = _Compiler(definitions)
    predicate = compiler.compile(inner, config)
    return predicate, not compiler.doubtful


def hooks_of(schema: Schema) -> bool:
    """Whether loading an instance of a dataclass or model runs code of the class itself."""
    if schema.get('custom_init') or schema.get('root_model'):
        return True
    name = schema.get('post_init')
    if not name:
        return False
    # pydantic's own hook sets up private attributes.
    hook = getattr(schema['cls'], name if isinstance(name, str) else '__post_init__', None)
    return not getattr(hook, '__module__', '').startswith('pydantic.')


class _Compiler:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._named: dict[str, list[Certain]] = {}
        self._depth = 0
        self.doubtful = False

    def compile(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        kind = cast('str', schema['type'])
        make = getattr(self, '_' + kind.replace('-', '_'), None)
        if make is None or 'serialization' in schema:
            predicate = never
        else:
            predicate = make(schema, config)
        self.doubtful = self.doubtful or predicate is never
        return predicate

    # Scalars

    def _none(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return lambda value: value is None

    def _bool(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(bool) if _free(schema) else never

    def _int(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _is_int if _free(schema) else never

    def _float(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not _free(schema) or schema.get('strict') or config.get('strict'):
            return never
        return _is_number if config.get('allow_inf_nan', True) else _is_finite_number

    def _str(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(str) if _free(schema) and not _TEXT_SETTINGS & config.keys() else never

    def _bytes(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(bytes) if _free(schema) else never

    def _date(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(date) if _free(schema) else never

    def _datetime(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        free = _free(schema, 'microseconds_precision') and 'val_temporal_unit' not in config
        return _is_datetime if free else never

    def _timedelta(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(timedelta) if _free(schema, 'microseconds_precision') else never

    def _uuid(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _OfClass(uuid.UUID) if _free(schema) else never

    def _decimal(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _is_finite_decimal if _free(schema) else never

    def _any(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return _is_natural

    def _literal(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        expected = cast('list[Any]', schema['expected'])
        cls = _only_class(expected)
        if cls not in (str, int, bool):
            return never
        values = frozenset(expected)
        return lambda value: type(value) is cls and value in values

    def _enum(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        cls = cast('type[Enum]', schema['cls'])
        values: list[Any] = [member.value for member in cast('list[Enum]', schema['members'])]
        if _only_class(values) not in (str, int) or 'missing' in schema:
            return never
        return _OfClass(cls)

    # Wrappers

    def _nullable(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        inner = self.compile(schema['schema'], config)
        return lambda value: value is None or inner(value)

    def _default(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        return self.compile(schema['schema'], config)

    def _definition_ref(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        ref = cast('str', schema['schema_ref'])
        if ref not in self._definitions:
            return never
        if ref not in self._named:
            self._named[ref] = []
            self._named[ref].append(self.compile(self._definitions[ref], config))
        named = self._named[ref]

        def certain(value: Any) -> bool:
            if self._depth > _MAX_DEPTH:
                return False
            self._depth += 1
            try:
                return named[0](value)
            finally:
                self._depth -= 1

        return certain

    # Containers

    def _list(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not _free(schema, 'items_schema'):
            return never
        return _every(list, self.compile(schema.get('items_schema', {'type': 'any'}), config))

    def _set(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not _free(schema, 'items_schema'):
            return never
        return _every(set, self.compile(schema.get('items_schema', {'type': 'any'}), config))

    def _frozenset(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not _free(schema, 'items_schema'):
            return never
        return _every(frozenset, self.compile(schema.get('items_schema', {'type': 'any'}), config))

    def _tuple(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not _free(schema, 'items_schema', 'variadic_item_index'):
            return never
        items = [
            self.compile(item, config) for item in cast('list[Schema]', schema['items_schema'])
        ]
        if 'variadic_item_index' in schema:
            return _every(tuple, items[0]) if len(items) == 1 else never

        def certain(value: Any) -> bool:
            return (
                type(value) is tuple
                and len(held := cast('tuple[Any, ...]', value)) == len(items)
                and all(check(item) for check, item in zip(items, held, strict=True))
            )

        return certain

    def _dict(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        keys = schema.get('keys_schema', {'type': 'any'})
        if not _free(schema, 'keys_schema', 'values_schema') or keys['type'] not in ('str', 'int'):
            return never
        every_key = _all(self.compile(keys, config))
        every_item = _all(self.compile(schema.get('values_schema', {'type': 'any'}), config))

        def certain(value: Any) -> bool:
            if type(value) is not dict:
                return False
            held = cast('dict[Any, Any]', value)
            return every_key(held) and every_item(held.values())

        return certain

    # Classes

    def _dataclass(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if hooks_of(schema) or schema['schema'].get('type') != 'dataclass-args':
            return never
        return self._attributes(schema, schema.get('config', config))

    def _model(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if hooks_of(schema) or schema['schema'].get('type') != 'model-fields':
            return never
        return self._attributes(schema, schema.get('config', config))

    def _attributes(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        fields = fields_of(schema)
        if hidden_fields(schema) or any(field.get('init_only') for _, field in fields):
            return never
        cls = cast('type', schema['cls'])
        checks = [(name, self.compile(field['schema'], config)) for name, field in fields]
        declared = frozenset(name for name, _ in fields)
        is_model = schema['type'] == 'model'

        def certain(value: Any) -> bool:
            if type(value) is not cls or (is_model and value.__pydantic_extra__):
                return False
            attributes = getattr(value, '__dict__', None)
            if attributes is not None and not attributes.keys() <= declared:
                return False
            try:
                return all(check(getattr(value, name)) for name, check in checks)
            except AttributeError:
                return False

        return certain

    def _typed_dict(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        inner = schema.get('config', config)
        fields = fields_of(schema)
        checks = {name: self.compile(field['schema'], inner) for name, field in fields}
        # A key that is missing comes back when it has a default.
        needed = {
            name for name, field in fields if self._resolved(field['schema'])['type'] == 'default'
        }

        def certain(value: Any) -> bool:
            if type(value) is not dict:
                return False
            held = cast('dict[Any, Any]', value)
            return needed <= held.keys() and all(
                name in checks and checks[name](item) for name, item in held.items()
            )

        return certain

    def _named_tuple(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        cls = cast('type', schema['cls'])
        items = [self.compile(field['schema'], config) for field in schema['fields']]

        def certain(value: Any) -> bool:
            return type(value) is cls and all(
                check(item) for check, item in zip(items, value, strict=True)
            )

        return certain

    def _tagged_union(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if not isinstance(schema.get('discriminator'), str):
            return never
        by_class: dict[type, Certain] = {}
        for tag, choice in cast('dict[Any, Any]', schema['choices']).items():
            if not isinstance(choice, dict):
                return never
            held = self._resolved(cast('Schema', choice))
            if held.get('type') not in ('model', 'dataclass'):
                return never
            cls = cast('type', held['cls'])
            if cls in by_class:
                return never
            by_class[cls] = _tagged(
                self.compile(cast('Schema', choice), config), schema['discriminator'], tag, held
            )
        return lambda value: by_class.get(value.__class__, never)(value)

    def _union(self, schema: Schema, config: Mapping[str, Any]) -> Certain:
        if schema.get('mode', 'smart') != 'smart':
            return never
        kinds: set[str] = set()
        checks: list[Certain] = []
        for each in cast('list[Any]', schema['choices']):
            choice = cast('Schema', each[0] if isinstance(each, tuple) else each)
            kind = _JSON_KINDS.get(self._resolved(choice).get('type', ''))
            if kind is None or kind in kinds:
                return never
            kinds.add(kind)
            checks.append(self.compile(choice, config))
        return lambda value: any(check(value) for check in checks)

    def _resolved(self, schema: Schema) -> Schema:
        while schema.get('type') == 'definition-ref':
            schema = self._definitions.get(cast('str', schema['schema_ref']), {})
        return schema


_JSON_KINDS = {
    'none': 'null',
    'bool': 'bool',
    'int': 'int',
    'str': 'string',
    'list': 'array',
    'dict': 'object',
    'model': 'object',
    'dataclass': 'object',
}
"""JSON forms that a smart union tells apart by themselves. No float: NaN is stored as a string."""


def _free(schema: Schema, *allowed: str) -> bool:
    """Whether a schema carries no constraint, which could refuse or change a value on loading."""
    return schema.keys() <= _NO_CONSTRAINT | set(allowed)


def _only_class(values: list[Any]) -> type[Any] | None:
    classes: set[type[Any]] = {type(value) for value in values}
    return classes.pop() if len(classes) == 1 else None


class _OfClass:
    """Whether a value is of exactly one class."""

    __slots__ = ('only',)

    def __init__(self, cls: type) -> None:
        self.only = frozenset((cls,))

    def __call__(self, value: Any) -> bool:
        return type(value) in self.only


def _is_int(value: Any) -> bool:
    return type(value) is int and value.bit_length() < _MAX_BITS


def _is_number(value: Any) -> bool:
    return type(value) is float or _is_int(value)


def _is_finite_number(value: Any) -> bool:
    return (type(value) is float and value - value == 0) or _is_int(value)


def _is_finite_decimal(value: Any) -> bool:
    return type(value) is Decimal and value.is_finite()


def _is_datetime(value: Any) -> bool:
    if type(value) is not datetime:
        return False
    zone = value.tzinfo
    if zone is None or zone is UTC:
        return True
    return type(zone) in _ZONES and _whole_minutes(value.utcoffset())


def _whole_minutes(offset: timedelta | None) -> bool:
    return offset is not None and offset % timedelta(minutes=1) == timedelta(0)


def _is_natural(value: Any, depth: int = 0) -> bool:
    """Whether an undeclared value is what JSON gives: exact classes, finite floats, string keys."""
    cls = cast('type[Any]', type(value))
    if cls in _NATURAL_SCALARS:
        return True
    if cls is int:
        return value.bit_length() < _MAX_BITS
    if cls is float:
        return value - value == 0
    if depth > _MAX_DEPTH:
        return False
    if cls is list:
        return all(_is_natural(item, depth + 1) for item in value)
    if cls is dict:
        return all(type(key) is str and _is_natural(item, depth + 1) for key, item in value.items())
    return False


def _every(cls: type, item: Certain) -> Certain:
    every = _all(item)
    return lambda value: type(value) is cls and every(value)


def _all(item: Certain) -> Callable[[Iterable[Any]], bool]:
    """The predicate of many values; of one class, at the speed of C."""
    if isinstance(item, _OfClass):
        only = item.only
        return lambda values: only.issuperset(map(type, values))
    return lambda values: all(map(item, values))


def _tagged(inner: Certain, discriminator: str, tag: Any, schema: Schema) -> Certain:
    """The instance must carry the tag of its choice: else another class would be loaded."""
    for name, field in fields_of(schema):
        if discriminator in (name, field.get('validation_alias')):
            return lambda value: getattr(value, name, None) == tag and inner(value)
    return never
