"""The JSON text of a document's parts: splitting, rendering, measuring and growing it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

__all__ = (
    'FORMAT',
    'NewerFormatError',
    'Part',
    'Tail',
    'added',
    'after',
    'check_utf8',
    'element',
    'elements',
    'grown',
    'members',
    'name_of',
    'no_parts',
    'render',
    'rendered_size',
    'split',
    'text_of',
    'wrong_start',
)

FORMAT = 1
"""The version of the stored form that this package writes, and the newest that it reads."""

Part = bytes | bytearray
"""The JSON text of one part of a document, UTF-8. Only `Document` may change a `bytearray`."""

_end_of_value = json.JSONDecoder(object_hook=len, parse_float=len, parse_int=len).raw_decode
"""Finds where a JSON value ends. Drops objects and numbers at once, so it needs little memory."""


class NewerFormatError(ValueError):
    """A document or a delta was written in a newer format than `FORMAT`."""

    def __init__(self, found: int) -> None:
        self.found = found
        """The format that was found."""
        super().__init__(f'format {found} is newer than {FORMAT}')


@dataclass(frozen=True, slots=True)
class Tail:
    """Says of a part that it is, or ends with, a JSON array, and that this only grew."""

    start: int
    """Number of elements before it, which have not changed."""
    data: bytes
    """The new elements as JSON text, comma-joined, without brackets; empty when `count` is 0."""
    count: int
    """Number of new elements."""
    end: bytes = b']'
    """What closes the part: `]`, or `]}` where the array is the last member of an object."""


_OPENING = {b']': b'[', b']}': b'{'}


def no_parts() -> dict[str, Any]:
    """An empty dict, for a record. To call an alias, `dict[str, bytes]`, takes longer."""
    return {}


@lru_cache(4_096)
def name_of(key: str) -> bytes:
    """A key as JSON. Lone surrogates, which UTF-8 does not have, become escapes."""
    return encode_basestring(key).encode('utf-8', 'backslashreplace')


def added(part: Part | None, tail: Tail) -> bytes:
    """What `tail` puts before the end of `part`; a missing part counts as an empty array.

    Raises:
        ValueError: The part is not an array, or is empty where the tail says it is not (or the
            other way round). More of `start` is not checked: it would take counting.
    """
    if part is None:
        part = b'[]'
    if not part.startswith(_OPENING[tail.end]) or part.endswith(b'[' + tail.end) != (
        tail.start == 0
    ):
        raise ValueError(f'a tail from element {tail.start} on does not fit its part')
    if not tail.count:
        return b''
    return b',' + tail.data if tail.start else tail.data


def grown(part: Part | None, new: bytes | Tail) -> Part:
    """The new text of a part. A tail makes the part a `bytearray`, once, and grows it in place."""
    if not isinstance(new, Tail):
        return new
    text = added(part, new)
    if part is None:
        return b'[%b]' % text
    if text:
        part = part if isinstance(part, bytearray) else bytearray(part)
        part[-len(new.end) :] = text + new.end
    return part


def render(
    value: Part | Mapping[str, Part | Tail],
    pieces: list[Part | memoryview],
    old: Part | Mapping[str, Part] = b'',
) -> None:
    """Add the JSON text of a value, or of an object of parts, to `pieces`.

    Args:
        value: What to render.
        pieces: Pieces of JSON text, for `b''.join`.
        old: The object whose parts the tails in `value` continue.
    """
    if isinstance(value, (bytes, bytearray)):
        pieces.append(value)
        return
    before = b'{'
    for key, part in value.items():
        pieces += (before, name_of(key), b':')
        before = b','
        if isinstance(part, Tail):
            was = b'[]' if isinstance(old, (bytes, bytearray)) else old.get(key, b'[]')
            pieces += (memoryview(was)[: -len(part.end)], added(was, part), part.end)
        else:
            pieces.append(part)
    pieces.append(b'}' if value else b'{}')


def text_of(parts: Part | Mapping[str, Part | Tail]) -> bytes:
    """Parts as one JSON text; a tail counts as the whole array."""
    if isinstance(parts, (bytes, bytearray)):
        return bytes(parts)
    pieces: list[Part | memoryview] = []
    render(parts, pieces)
    return b''.join(pieces)


def rendered_size(
    value: Part | Mapping[str, Part | Tail], old: Part | Mapping[str, Part] = b''
) -> int:
    """Bytes that `render` adds."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    size = 1 if value else 2
    for key, part in value.items():
        if isinstance(part, Tail):
            was = b'[]' if isinstance(old, (bytes, bytearray)) else old.get(key, b'[]')
            size += len(was) + len(added(was, part))
        else:
            size += len(part)
        size += len(name_of(key)) + 2
    return size


def split(text: bytes) -> bytes | dict[str, bytes]:
    """The members of a JSON object; other JSON text as it is.

    Raises:
        ValueError: It starts as an object, but is none.
    """
    if not text.startswith(b'{'):
        return text
    parts, end = members(text, text.decode('latin-1'), 0)
    if end != len(text):
        raise ValueError(f'unexpected text after an object, at byte {end}')
    return parts


def members(data: bytes, text: str, at: int) -> tuple[dict[str, bytes], int]:
    """The members of the object at `at`, and where it ends.

    Args:
        data: UTF-8.
        text: `data` as Latin-1: one byte a character, so that positions are those of bytes.
        at: Where the object starts.

    Raises:
        ValueError: There is no object, it is spaced, or it has a key twice.
    """
    parts: dict[str, bytes] = {}
    if text.startswith('{}', at):
        return parts, at + 2
    at = after(text, '{', at)
    while True:
        start = at
        if not text.startswith('"', at):
            raise ValueError(f'no key at byte {at}')
        key, at = _decode(text, at)
        if not key.isascii():
            key = json.loads(data[start:at].decode())
        if key in parts:
            raise ValueError(f'the key {key!r} is there twice')
        parts[key], at = element(data, text, after(text, ':', at))
        if text.startswith('}', at):
            return parts, at + 1
        at = after(text, ',', at)


def elements(data: bytes) -> list[bytes]:
    """The elements of a JSON array, byte for byte. Errors as `members`."""
    text = data.decode('latin-1')
    found: list[bytes] = []
    if text == '[]':
        return found
    at = after(text, '[', 0)
    while True:
        piece, at = element(data, text, at)
        found.append(piece)
        if text.startswith(']', at):
            break
        at = after(text, ',', at)
    if at + 1 != len(text):
        raise ValueError(f'unexpected text after an array, at byte {at + 1}')
    return found


def element(data: bytes, text: str, at: int) -> tuple[bytes, int]:
    """The bytes of the JSON value at `at`, and where it ends. Arguments and errors as `members`."""
    end = _decode(text, at)[1]
    return data[at:end], end


def after(text: str, expected: str, at: int) -> int:
    """The position after `expected`; raises `ValueError` when that is not at `at`."""
    if not text.startswith(expected, at):
        raise ValueError(f'no {expected} at byte {at}')
    return at + len(expected)


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _end_of_value(text, at)
    except json.JSONDecodeError as error:
        raise ValueError(f'not JSON at byte {error.pos}: {error.msg}') from None
    except RecursionError:
        raise ValueError('nested too deeply') from None


def check_utf8(data: bytes) -> None:
    """Raise `ValueError` unless `data` is UTF-8. In pieces: a `str` may take 4 times the bytes."""
    if data.isascii():
        return
    decoder = codecs.getincrementaldecoder('utf-8')()
    view = memoryview(data)
    for at in range(0, len(view), 1 << 16):
        decoder.decode(view[at : at + (1 << 16)])
    decoder.decode(b'', final=True)


def wrong_start(data: bytes) -> ValueError:
    """Why a document or a delta does not start as it should."""
    match = re.match(rb'\s*\{\s*"format"\s*:\s*(\d{1,18})\s*[,}]', data)
    if match is None:
        return ValueError('not JSON that starts with a format number')
    found = int(match[1])
    if found > FORMAT:
        return NewerFormatError(found)
    return ValueError('not in the stored form: keys are missing, or in another order, or spaced')
