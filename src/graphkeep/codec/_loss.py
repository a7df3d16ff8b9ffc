"""Errors that say where a value would be lost, what came back, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..errors import CodecError, LossyStateError
from ._exact import Difference, Nothing
from ._schema import Schema, children, fields_of

if TYPE_CHECKING:
    from ._coder import Coder

__all__ = ('lossy', 'misfit', 'short', 'undumpable', 'unloadable')

_MAX_DEPTH = 12
"""Errors name places down to this depth."""

_SELF_EVIDENT = {
    'depth exceeded': 'it is nested too deeply',
    'Circular reference': 'it contains itself (a circular reference)',
}
"""What no single element is to blame for."""


def lossy(found: Difference) -> LossyStateError:
    """The error for a value that comes back changed."""
    was, became = found.was, found.became
    note = found.note
    change = f'holds {short(was)}'
    if isinstance(became, Nothing):
        change += ', which would be lost'
    elif type(was) is not type(became):
        change += f' ({_class(was)}), which would come back as {short(became)} ({_class(became)})'
        note = note or (
            'Let the tool return a dict, a list or a string: a message keeps what a tool returned '
            'as plain JSON.'
            if _is_tool_return(found.path)
            else 'Declare the type that it has, or convert it before the step ends.'
        )
    else:
        change += f', which would come back as {short(became)}'
    note = note or 'Declare a type that JSON keeps, or keep the value in `deps`.'
    return LossyStateError(f'`{found.path}` {change}. Nothing was written. {note}', path=found.path)


def _is_tool_return(path: str) -> bool:
    """Whether a place is what a tool returned, in a pydantic-ai message: its type is not
    declared.
    """
    return re.search(r'\.parts\[\d+\]\.content', path) is not None


def unloadable(values: Sequence[Any], paths: Sequence[str], error: Exception) -> LossyStateError:
    """The error for dumps that would not load again.

    Args:
        values: What was dumped, and loaded as `[[value, …]]`.
        paths: Where each of them is.
        error: What loading raised.
    """
    path, value, reason = paths[0], values[0], str(error)
    if isinstance(error, ValidationError):
        detail = _first(error)
        reason = str(detail['msg'])
        loc = cast('tuple[int | str, ...]', detail['loc'])[1:]
        if loc and isinstance(loc[0], int):
            path, value = _follow(values[loc[0]], loc[1:], paths[loc[0]])
            if detail['type'] == 'missing':
                path += _step(loc[-1])
        elif len(values) > 1:
            path, value = path[: path.rindex('[')], values
    return LossyStateError(
        f'`{path}` holds {short(value)}, which would not load again: {reason.rstrip(".")}. Nothing '
        'was written. Change the value, or the type that is declared for it.',
        path=path,
    )


def _step(step: int | str) -> str:
    return f'[{step}]' if isinstance(step, int) else f'.{step}'


def _first(error: ValidationError) -> dict[str, Any]:
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return cast('dict[str, Any]', found)


def _follow(held: Any, loc: Sequence[int | str], path: str) -> tuple[str, Any]:
    """Walk a pydantic error location along a value, past the names of union choices in it."""
    for step in loc:
        if isinstance(step, str) and hasattr(held, step):
            held, path = getattr(held, step), f'{path}.{step}'
            continue
        if isinstance(held, (str, bytes)):
            break
        try:
            held, path = held[step], f'{path}[{step!r}]'
        except (LookupError, TypeError):
            continue
    return path, held


def undumpable(coder: Coder, value: Any, path: str, error: Exception) -> LossyStateError:
    """The error for a value that cannot be dumped, naming the innermost place.

    Args:
        coder: Of the value.
        value: The value.
        path: Where it is.
        error: What dumping it raised.
    """
    if not any(text in str(error) for text in _SELF_EVIDENT):
        path, value, error = _locate(coder, value, path, error, 0)
    return LossyStateError(
        f'`{path}` holds {short(value)}, which cannot be stored: {_reason(error)}. Nothing was '
        'written. Change the value or its declared type, or keep it in `deps`.',
        path=path,
    )


def _locate(
    coder: Coder, value: Any, path: str, error: Exception, depth: int
) -> tuple[str, Any, Exception]:
    if depth < _MAX_DEPTH:
        for at, schema, inner in _parts(coder, value, path):
            child = coder.of(schema)
            try:
                child.dump(inner)
            except Exception as cause:  # noqa: BLE001 whatever a user's serializer raises
                return _locate(child, inner, at, cause, depth + 1)
    return path, value, error


def _parts(coder: Coder, value: Any, path: str) -> list[tuple[str, Schema, Any]]:
    """The parts of a value: path, schema, and the part."""
    schema = coder.resolved
    if schema.get('type') == 'nullable' and value is not None:
        return [(path, schema['schema'], value)]
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
    owner = cast('Any', value)
    return [
        (f'{path}.{name}', field['schema'], getattr(owner, name))
        for name, field in fields_of(schema)
        if hasattr(owner, name)
    ]


def _reason(error: Exception) -> str:
    text = str(error)
    for known, reason in _SELF_EVIDENT.items():
        if known in text:
            return reason
    if 'PairedSurrogatesError' in text:
        return 'JSON would make one character of a high and a low surrogate'
    text = text.removeprefix('Error serializing to JSON: ')
    return ' '.join(text.split()).rstrip('.')


def short(value: object) -> str:
    """A value as an error shows it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 a user's own __repr__; the class is enough then
        text = f'an instance of {_class(value)}'
    return text if len(text) <= 80 else f'{text[:77]}…'


def _class(value: object) -> str:
    cls = type(value)
    module = '' if cls.__module__ == 'builtins' else f'{cls.__module__}.'
    return module + cls.__qualname__


def misfit(error: Exception, path: str) -> CodecError:
    """The error for stored JSON that does not load as the declared type."""
    reason = str(error)
    if isinstance(error, ValidationError):
        detail = _first(error)
        for step in detail['loc']:
            path += _step(step)
        more = error.error_count() - 1
        reason = str(detail['msg']) + (f' (and {more} more)' if more else '')
    return CodecError(
        f'What is stored as `{path}` does not fit the declared type: {reason}.', path=path
    )
