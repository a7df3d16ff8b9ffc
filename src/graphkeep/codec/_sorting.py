"""Sets and typed dicts in one order, whatever the hash seed and whoever filled them."""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import PydanticSerializationUnexpectedValue, to_json

__all__ = ('order_keys', 'sort_items')


def sort_items(value: Any, handler: Any, info: Any) -> Any:
    """Serializer of a set: its items sorted by their encoded bytes.

    Args:
        value: The set. Anything else is refused, as pydantic's own serializer does.
        handler: pydantic's serializer of the set.
        info: What is being made: Python values, or JSON.

    Returns:
        A list of the items as JSON values; in Python mode what pydantic makes.
    """
    if not isinstance(value, (set, frozenset)):
        raise PydanticSerializationUnexpectedValue(f'Expected `set`, got {type(value).__name__}')
    items = handler(value)
    if info.mode != 'json':
        return items
    return sorted(items, key=_encoded)


def order_keys(declared: tuple[str, ...], value: Any, handler: Any, info: Any) -> Any:
    """Serializer of a typed dict: its keys in the declared order, in which they are loaded back.

    Args:
        declared: The names of its fields, in order.
        value: The dict. Anything else is refused, as pydantic's own serializer does.
        handler: pydantic's serializer of the dict.
        info: Unused.
    """
    if not isinstance(value, dict):
        raise PydanticSerializationUnexpectedValue(f'Expected `dict`, got {type(value).__name__}')
    held = cast('dict[Any, Any]', value)
    ordered = {name: held[name] for name in declared if name in held}
    return handler(ordered | held)


def _encoded(item: Any) -> bytes:
    return to_json(item, inf_nan_mode='strings')
