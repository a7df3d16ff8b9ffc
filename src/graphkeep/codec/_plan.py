"""How the values of a type are cut into parts, and how each part is checked. Made once a type."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import UnstorableTypeError
from ._certain import Certain, compile_certain, hooks_of, never
from ._coder import Coder
from ._markers import APPEND_ONLY
from ._canonical import canonical
from ._schema import Schema, core_schema, definitions_of, fields_of
from ._storable import refuse_unstorable

__all__ = ('FieldPlan', 'Plan', 'plan_for')


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One top-level key of the stored form."""

    name: str
    coder: Coder
    certain: Certain
    """Whether a value needs no loading back."""
    certain_item: Certain
    """The same for the elements, when it is a list."""
    append_only: bool
    """A list that only grows."""
    by_element: bool
    """A list whose elements may need loading back: only those that changed are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the values of one type are stored."""

    coder: Coder
    """For whole values."""
    certain: Certain
    """Whether a whole value needs no loading back."""
    cls: type | None
    """The exact class of the values, when the type is one class (`dict` for a typed dict)."""
    fields: tuple[FieldPlan, ...] | None
    """The parts; `None` when values are dumped as a whole."""
    hooked: bool
    """Code of the class runs when it is loaded: parts alone cannot tell what comes back."""
    opaque: bool
    """The class has fields that are never dumped: their loss shows in no byte."""
    declared: frozenset[str] = frozenset()
    """The names of all fields."""
    proven: set[type] = field(default_factory=set[type])
    """Classes of values that were loaded back as a whole once."""


_CACHE_SIZE = 256
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
    declared, hooked = _class_schema(Coder(raw, raw_definitions))
    stored, _ = _class_schema(coder)
    certain, _ = compile_certain(generated)
    if declared is None or stored is None:
        return Plan(coder, certain, None, None, hooked=False, opaque=False)
    cls = dict if declared['type'] == 'typed-dict' else cast('type', declared['cls'])
    own_fields = dict(fields_of(declared))
    fields: list[FieldPlan] = []
    opaque = False
    for name, each in fields_of(stored):
        if each.get('init_only'):
            hooked = True
        elif each.get('serialization_exclude'):
            opaque = True
        else:
            fields.append(_field(name, each, own_fields[name], coder, raw_definitions, path))
    return Plan(coder, certain, cls, tuple(fields), hooked, opaque, frozenset(own_fields))


def _class_schema(coder: Coder) -> tuple[Schema | None, bool]:
    """The schema of the class whose fields become the parts, and whether its own code runs on loading.

    `None` when the fields cannot be dumped one by one: a serializer of the class sees all of them,
    extra keys are allowed, or it is no class with fields.
    """
    schema, hooked = coder.resolved, False
    while schema.get('type') in ('function-before', 'function-after', 'function-wrap'):
        if 'serialization' in schema:
            return None, True
        hooked = True
        schema = coder.of(cast('Schema', schema['schema'])).resolved
    kind = schema.get('type')
    if kind not in ('dataclass', 'model', 'typed-dict') or 'serialization' in schema:
        return None, hooked
    if schema.get('root_model') or hooks_of(schema):
        if schema.get('root_model'):
            return None, hooked
        hooked = True
    inner = schema
    while kind != 'typed-dict' and inner.get('type') not in ('dataclass-args', 'model-fields'):
        inner = cast('Schema', inner['schema'])
        if 'serialization' in inner:
            return None, True
        hooked = hooked or inner.get('type') not in ('dataclass-args', 'model-fields')
    if _allows_extra(schema, inner):
        return None, hooked
    for _, each in fields_of(schema):
        serialization = cast('Schema', each['schema']).get('serialization', {})
        if serialization.get('is_field_serializer') or each.get('serialization_exclude_if'):
            return None, hooked
    return schema, hooked


def _allows_extra(schema: Schema, inner: Schema) -> bool:
    config = cast('dict[str, Any]', schema.get('config', {}))
    behaviors = (
        inner.get('extra_behavior'),
        schema.get('extra_behavior'),
        config.get('extra_fields_behavior'),
    )
    return 'allow' in behaviors


def _field(
    name: str,
    stored: Schema,
    declared: Schema,
    whole: Coder,
    definitions: Mapping[str, Schema],
    path: str,
) -> FieldPlan:
    coder = whole.of(cast('Schema', stored['schema']))
    raw = Coder(cast('Schema', declared['schema']), definitions)
    append_only = APPEND_ONLY in raw.resolved.get('metadata', {})
    if append_only and coder.items is None:
        raise UnstorableTypeError(
            f'`{path}.{name}` is AppendOnly, but is not declared as a plain list. Say '
            '`Annotated[list[X], AppendOnly]`.',
            path=f'{path}.{name}',
        )
    defined = list(definitions.values())
    certain, _ = compile_certain(_with(cast('Schema', declared['schema']), defined))
    certain_item, known = never, True
    if coder.items is not None:
        items = raw.resolved.get('items_schema', {'type': 'any'})
        certain_item, known = compile_certain(_with(items, defined))
    return FieldPlan(
        name=name,
        coder=coder,
        certain=certain,
        certain_item=certain_item,
        append_only=append_only,
        by_element=coder.items is not None and not append_only and not known,
    )


def _with(schema: Schema, definitions: list[Schema]) -> Schema:
    return {'type': 'definitions', 'schema': schema, 'definitions': definitions}
