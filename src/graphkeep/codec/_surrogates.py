r"""Lone surrogates in strings: a slower path, since pydantic can neither dump nor load them.

Inside Python strings a lone surrogate is written as a marker character and four hexadecimal digits
while pydantic works on it; in the stored text it is the JSON escape of RFC 8259, `\ud83d`. A
marker that was in the text itself is escaped in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from pydantic_core import PydanticSerializationUnexpectedValue

from ._files import dump_any

__all__ = ('PairedSurrogatesError', 'escaped_schema', 'from_marked', 'has_lone', 'to_marked')

_MARKER = '\U0010ffff'
_MARKER_BYTES = _MARKER.encode()
_ITSELF = 'ffff'

_TO_ESCAPE = re.compile(f'[\ud800-\udfff{_MARKER}]')
_PAIR = re.compile('[\ud800-\udbff][\udc00-\udfff]')
_MARKED = re.compile(f'{_MARKER}([0-9a-f]{{4}})')
_MARKED_BYTES = re.compile(_MARKER_BYTES + b'([0-9a-f]{4})')
_BACKSLASH = ord('\\')
_SURROGATE = re.compile(rb'\\u[dD](?:(?P<high>[89abAB])|[c-fC-F])[0-9a-fA-F]{2}')
"""What may be the escape of a surrogate, or text behind an escaped backslash."""
_LOW = re.compile(rb'\\u[dD][c-fC-F][0-9a-fA-F]{2}')
_TOKEN = re.compile(
    rb'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'  # a pair: one character
    rb'|\\u(?P<lone>[dD][89a-fA-F][0-9a-fA-F]{2})'
    rb'|\\.'
    rb'|' + _MARKER_BYTES
)


class PairedSurrogatesError(ValueError):
    """A high surrogate is followed by a low one: JSON would make one character of them."""


def has_lone(text: bytes | bytearray) -> bool:
    """Whether JSON text holds the escape of a lone surrogate."""
    after_high = 0
    for match in _SURROGATE.finditer(text):
        at = match.start()
        if _is_escaped(text, at):
            continue
        if match['high']:
            after_high = match.end()
            if not _LOW.match(text, after_high):
                return True
        elif at != after_high:
            return True
    return False


def _is_escaped(text: bytes | bytearray, at: int) -> bool:
    """Whether the backslash at `at` is itself escaped: an odd number of them stands before it."""
    first = at
    while first and text[first - 1] == _BACKSLASH:
        first -= 1
    return (at - first) % 2 == 1


def to_marked(text: bytes | bytearray) -> bytes:
    """Stored JSON text as pydantic can read it."""

    def mark(match: re.Match[bytes]) -> bytes:
        if lone := match['lone']:
            return _MARKER_BYTES + lone.lower()
        return match[0] + _ITSELF.encode() if match[0] == _MARKER_BYTES else match[0]

    return _TOKEN.sub(mark, text)


def from_marked(text: bytes) -> bytes:
    """JSON text with markers as it is stored."""

    def unmark(match: re.Match[bytes]) -> bytes:
        return _MARKER_BYTES if match[1] == _ITSELF.encode() else b'\\u' + match[1]

    return _MARKED_BYTES.sub(unmark, text)


def escaped_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of a core schema whose strings carry markers in JSON and none in Python."""
    return cast('dict[str, Any]', _escape_schema(schema))


def _escape_schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_escape_schema(item) for item in cast('list[Any]', node)]
    if not isinstance(node, dict):
        return node
    given = cast('dict[str, Any]', node)
    kind = given.get('type')
    kept = _OPAQUE
    if kind == 'function-wrap' and callable(given.get('function')):
        # A serializer around another one, which has escaped what it returned.
        kept = _OPAQUE | {'return_schema'}
    schema = {key: value if key in kept else _escape_schema(value) for key, value in given.items()}
    if schema.get('function') is dump_any:
        schema['function'] = _dump_any_escaped
    if kind == 'str' and 'serialization' not in schema:
        return _escaping({'type': 'str'}, schema.get('ref'), _escape_text, _unescape_text)
    if kind == 'any' and 'serialization' not in schema and not _is_serialization(schema):
        return _escaping({'type': 'any'}, schema.get('ref'), _escape_deep, _unescape_deep)
    return schema


def _dump_any_escaped(value: Any, handler: Any, info: Any) -> Any:
    return handler(value)


_OPAQUE = frozenset({'cls', 'config', 'default', 'expected', 'function', 'members', 'metadata'})


def _is_serialization(schema: dict[str, Any]) -> bool:
    return 'when_used' in schema


def _escaping(
    inner: dict[str, Any], ref: Any, dump: Callable[[Any], Any], load: Callable[[Any], Any]
) -> dict[str, Any]:
    schema = {
        'type': 'function-after',
        'function': {'type': 'no-info', 'function': load},
        'schema': inner,
        'serialization': {
            'type': 'function-plain',
            'function': dump,
            'return_schema': {'type': inner['type']},
        },
    }
    return schema if ref is None else schema | {'ref': ref}


def _escape_text(value: Any) -> str:
    if not isinstance(value, str):
        raise PydanticSerializationUnexpectedValue(f'Expected `str`, got {type(value).__name__}')
    if _PAIR.search(value):
        raise PairedSurrogatesError(value)

    def mark(match: re.Match[str]) -> str:
        return _MARKER + (_ITSELF if match[0] == _MARKER else f'{ord(match[0]):04x}')

    return _TO_ESCAPE.sub(mark, value)


def _unescape_text(value: Any) -> Any:
    def unmark(match: re.Match[str]) -> str:
        return _MARKER if match[1] == _ITSELF else chr(int(match[1], 16))

    return _MARKED.sub(unmark, value)


def _deep(value: Any, text: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return text(value)
    if type(value) is list:
        return [_deep(item, text) for item in cast('list[Any]', value)]
    if type(value) is dict:
        items = cast('dict[Any, Any]', value).items()
        return {_deep(key, text): _deep(item, text) for key, item in items}
    return value


def _escape_deep(value: Any) -> Any:
    return _deep(value, _escape_text)


def _unescape_deep(value: Any) -> Any:
    return _deep(value, _unescape_text)
