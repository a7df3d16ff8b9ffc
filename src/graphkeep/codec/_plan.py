"""How the values of a type are cut into parts, and how each part is checked. Made once a type."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import UnstorableTypeError
from ._canonical import canonical
from ._certain import Certain, compile_certain, hooks_of, never
from ._coder import Coder
from ._fields import Field
from ._markers import APPEND_ONLY
from ._schema import Schema, core_schema, definitions_of, fields_of
from ._storable import hidden_fields, hides, refuse_unstorable

__all__ = ('Plan', 'plan_for')


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How the values of one type are stored."""

    coder: Coder
    """For whole values."""
    certain: Certain
    """Whether a whole value needs no loading back."""
    hides: bool
    """Something in it is never dumped: its loss shows in no byte."""
    cls: type | None = None
    """The exact class of the values, when the type is one class (`dict` for a typed dict)."""
    fields: tuple[Field, ...] | None = None
    """The parts; `None` when values are dumped as a whole."""
    hooked: bool = False
    """Code of the class runs when it is loaded: parts alone cannot tell what comes back."""
    declared: frozenset[str] = frozenset()
    """The names of all fields."""
    proven: set[type] = field(default_factory=set[type])
    """Classes of values of which every part was loaded back once."""


_CACHE_SIZE = 64
_cache: OrderedDict[tuple[int, str, tuple[Any, ...]], tuple[Any, Plan]] = OrderedDict()


def plan_for(type_: Any, *, path: str, namespace: Mapping[str, Any] | None) -> Plan:
    """The plan of a type, from a small cache when it is a class (making one costs milliseconds).

    Raises:
        UnstorableTypeError: Values of the type cannot be stored.
    """
    if not isinstance(type_, type):
        return _make(type_, path, namespace)
    names = namespace or {}
    key = (id(type_), path, tuple((name, id(value)) for name, value in names.items()))
    if (found := _cache.get(key)) is not None:
        _cache.move_to_end(key)
        return found[1]
    plan = _make(type_, path, namespace)
    # The objects whose ids make the key are kept with the plan: an id is not used twice.
    _cache[key] = ((type_, dict(names)), plan)
    if len(_cache) > _CACHE_SIZE:
        _cache.popitem(last=False)
    return plan


def _make(type_: Any, path: str, namespace: Mapping[str, Any] | None) -> Plan:
    generated = core_schema(type_, path=path, namespace=namespace)
    refuse_unstorable(generated, path)
    raw, raw_definitions = definitions_of(generated)
    schema, definitions = definitions_of(canonical(generated))
    coder = Coder(schema, definitions)
    hidden = hides(generated)
    certain, _ = compile_certain(generated)
    cut = _Cut.of(Coder(raw, raw_definitions))
    if cut is None:
        return Plan(coder=coder, certain=certain, hides=hidden)
    stored = dict(fields_of(_behind(coder)))
    declared = dict(fields_of(cut.schema))
    config = cast('dict[str, Any]', cut.schema.get('config', {}))
    total = bool(cut.schema.get('total', True))
    return Plan(
        coder=coder,
        certain=certain,
        hides=bool(hidden_fields(cut.schema)),
        cls=dict if cut.schema['type'] == 'typed-dict' else cast('type', cut.schema['cls']),
        fields=tuple(
            _field(
                name,
                coder.of(cast('Schema', stored[name]['schema']), config),
                Coder(cast('Schema', each['schema']), raw_definitions),
                definitions=raw_definitions,
                config=config,
                path=path,
                required=bool(each.get('required', total)),
            )
            for name, each in declared.items()
            if not each.get('init_only') and not each.get('serialization_exclude')
        ),
        hooked=cut.hooked or any(each.get('init_only') for each in declared.values()),
        declared=frozenset(declared) | frozenset(hidden_fields(cut.schema)),
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """A class whose fields become the parts."""

    schema: Schema
    hooked: bool
    """Whether code of its own runs when it is loaded."""

    @classmethod
    def of(cls, coder: Coder) -> _Cut | None:
        """`None` when the fields cannot be dumped one by one: a serializer of the class sees all of
        them, extra keys are allowed, or it is no class with fields.
        """
        outer, schema = coder.resolved, _behind(coder)
        hooked = outer is not schema
        if 'serialization' in outer or 'serialization' in schema or schema.get('root_model'):
            return None
        if schema.get('type') not in ('dataclass', 'model', 'typed-dict'):
            return None
        hooked = hooked or hooks_of(schema)
        inner = schema
        if schema['type'] != 'typed-dict':
            inner = cast('Schema', schema['schema'])
            while inner.get('type') not in ('dataclass-args', 'model-fields'):
                if 'serialization' in inner or 'schema' not in inner:
                    return None
                hooked, inner = True, cast('Schema', inner['schema'])
        if 'serialization' in inner or _allows_extra(schema, inner):
            return None
        for _, each in fields_of(schema):
            serialization = cast('Schema', each['schema']).get('serialization', {})
            if serialization.get('is_field_serializer') or each.get('serialization_exclude_if'):
                return None
        return cls(schema, hooked)


def _behind(coder: Coder) -> Schema:
    """The schema that validator functions of a class are put around."""
    schema = coder.resolved
    while schema.get('type') in ('function-before', 'function-after', 'function-wrap'):
        schema = coder.of(cast('Schema', schema['schema'])).resolved
    return schema


def _allows_extra(schema: Schema, inner: Schema) -> bool:
    config = cast('dict[str, Any]', schema.get('config', {}))
    return 'allow' in (
        inner.get('extra_behavior'),
        schema.get('extra_behavior'),
        config.get('extra_fields_behavior'),
    )


def _field(
    name: str,
    coder: Coder,
    raw: Coder,
    *,
    definitions: Mapping[str, Schema],
    config: Mapping[str, Any],
    path: str,
    required: bool,
) -> Field:
    at = f'{path}.{name}'
    items = coder.items
    append_only = APPEND_ONLY in raw.resolved.get('metadata', {})
    if append_only and items is None:
        raise UnstorableTypeError(
            f'`{at}` is AppendOnly, but is not declared as a plain list. Say '
            '`Annotated[list[X], AppendOnly]`.',
            path=at,
        )

    def closed(schema: Schema) -> Schema:
        each = list(definitions.values())
        return {'type': 'definitions', 'schema': schema, 'definitions': each}

    certain, _ = compile_certain(closed(raw.schema), config)
    certain_item, complete = never, True
    if items is not None:
        of_items = cast('Schema', raw.resolved.get('items_schema', {'type': 'any'}))
        certain_item, complete = compile_certain(closed(of_items), config)
    return Field(
        name=name,
        path=at,
        coder=coder,
        certain=certain,
        certain_item=certain_item,
        append_only=append_only,
        by_element=items is not None and not append_only and not complete,
        always=raw.resolved['type'] in _CHEAP or hides(closed(raw.schema)),
        required=required,
    )


_CHEAP = frozenset({'bool', 'enum', 'float', 'int', 'literal', 'none', 'str'})
"""Types whose values are looked at at every encode: `1` and `True` may have the same bytes."""
