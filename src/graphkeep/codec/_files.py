"""pydantic-ai's `BinaryContent`, `BinaryImage` and `BinaryAudio`, which its own JSON does not tell
apart.

pydantic-ai stores all of them as `{"kind": "binary", …}` and chooses a class when it loads an
image: in some places the base class, in others the subclass, which are not equal. So the stored
form of an image says which one it was: `"narrow": true` for `BinaryImage`, and for any
`BinaryAudio`. pydantic-ai ignores the key.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import PydanticSerializationUnexpectedValue

__all__ = ('dump_any', 'dump_file', 'dump_items', 'is_binary_content', 'with_hint')

_HINT = 'narrow'


def is_binary_content(schema: dict[str, Any]) -> bool:
    """Whether a core schema is that of pydantic-ai's `BinaryContent`."""
    cls = schema.get('cls')
    return (
        schema.get('type') == 'dataclass'
        and getattr(cls, '__qualname__', '') == 'BinaryContent'
        and getattr(cls, '__module__', '') == 'pydantic_ai.messages'
    )


def with_hint(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with the hint written and read.

    Args:
        schema: The canonical schema of the class, or a validator around it.
    """
    inner = {key: value for key, value in schema.items() if key not in ('ref', 'serialization')}
    wrapped: dict[str, Any] = {
        'type': 'function-wrap',
        'function': {'type': 'no-info', 'function': _load},
        'schema': inner,
    }
    if is_binary_content(schema):
        wrapped['serialization'] = {
            'type': 'function-wrap',
            'function': _dump,
            'schema': inner,
            'is_field_serializer': False,
            'info_arg': False,
            'return_schema': {'type': 'any'},
        }
    elif 'serialization' in schema:
        wrapped['serialization'] = schema['serialization']
    if 'ref' in schema:
        wrapped['ref'] = schema['ref']
    return wrapped


def dump_any(value: Any, handler: Any, info: Any) -> Any:
    """Serializer of a tool result, which is a file, holds some, or is anything else.

    By pydantic's own, a list or dict with files in it is dumped as whatever it holds.

    Args:
        value: The result.
        handler: pydantic's serializer, for results with files.
        info: Unused.
    """
    return handler(value) if _has_file(value) else value


def dump_file(value: Any, handler: Any, info: Any) -> Any:
    """Serializer of a file in a tool result; anything else is refused."""
    if isinstance(value, dict) or not isinstance(getattr(value, 'kind', None), str):
        raise PydanticSerializationUnexpectedValue('not a file')
    return handler(value)


def dump_items(value: Any, handler: Any, info: Any) -> Any:
    """Serializer of a list in a tool result; anything else is refused."""
    if not isinstance(value, (list, tuple)):
        raise PydanticSerializationUnexpectedValue('not a list')
    return handler(cast('Any', value))


def _has_file(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_file, cast('list[Any]', value)))
    if isinstance(value, dict):
        return any(map(_has_file, cast('dict[Any, Any]', value).values()))
    return type(value) not in _SCALARS and _base(value.__class__) is not None


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _base(cls: type) -> type | None:
    for each in cls.__mro__:
        if is_binary_content({'type': 'dataclass', 'cls': each}):
            return each
    return None


def _dump(value: Any, handler: Any) -> Any:
    cls = cast('type[Any]', type(value))
    base = _base(cls)
    if base is None:
        raise PydanticSerializationUnexpectedValue(f'Expected `BinaryContent`, got {cls.__name__}')
    # In a union pydantic dumps an instance of the very class only.
    data = handler(_as(base, value))
    if isinstance(data, dict) and (value.is_image or cls is not base):
        cast('dict[str, Any]', data)[_HINT] = cls is not base
    return cast('Any', data)


def _load(value: Any, handler: Any) -> Any:
    if not isinstance(value, dict) or _HINT not in value:
        return handler(value)
    rest = cast('dict[str, Any]', value).copy()
    narrow = rest.pop(_HINT)
    loaded = handler(rest)
    base = _base(loaded.__class__)
    if base is None:
        return loaded
    return _as(_narrow_class(base, loaded) if narrow else base, loaded)


def _as(cls: type[Any], value: Any) -> Any:
    """The same file in the other class; both have the same fields."""
    if type(value) is cls:
        return value
    made: Any = object.__new__(cls)
    made.__dict__.update(value.__dict__)
    return made


def _narrow_class(base: type, loaded: Any) -> type:
    """What upstream has for files of this kind; the base where it has nothing."""
    name = 'BinaryImage' if loaded.is_image else 'BinaryAudio'
    return next((each for each in base.__subclasses__() if each.__qualname__ == name), base)
