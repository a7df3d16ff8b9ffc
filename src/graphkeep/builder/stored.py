"""Join buffers as they stand in the document. Pure.

A buffer, under `join/run`: `{"forks":…,"print":…,"items":[…]}`, or for a reducer that takes a
context `{"forks":…,"print":…,"accumulator":…,"cancelled":…}`. `print` is the join's fingerprint.
"""

from __future__ import annotations

from pydantic_core import from_json, to_json

from ..document import Document, Tail
from ..parts import elements, split
from ..tasks import read_forks
from .frontier import Buffer, JoinKey

__all__ = ('encode_buffer', 'join_name', 'new_items', 'read_buffers')

_ITEMS_END = b']}'
"""What follows the last item of a stored buffer."""


def encode_buffer(buffer: Buffer, fingerprint: str) -> bytes:
    """The JSON of a buffer, whole."""
    head = b'{"forks":%b,"print":%b,' % (to_json(buffer.forks), to_json(fingerprint))
    if buffer.accumulator is not None:
        cancelled = b'true' if buffer.cancelled else b'false'
        return b'%b"accumulator":%b,"cancelled":%b}' % (head, buffer.accumulator, cancelled)
    return b'%b"items":[%b%b' % (head, b','.join(buffer.items), _ITEMS_END)


def new_items(buffer: Buffer) -> Tail:
    """What a buffer has got since it was stored last."""
    since = buffer.stored or 0
    new = buffer.items[since:]
    return Tail(since, b','.join(new), len(new), _ITEMS_END)


def join_name(key: JoinKey) -> str:
    """The name of a buffer in the document."""
    return f'{key[0]}/{key[1]}'


def read_buffers(document: Document) -> list[tuple[Buffer, str]]:
    """The join buffers and their fingerprints.

    Raises:
        ValueError: The document is damaged.
    """
    buffers: list[tuple[Buffer, str]] = []
    for name, data in document.joins.items():
        join, slash, run = name.rpartition('/')
        parts = split(bytes(data))
        if not slash or not isinstance(parts, dict) or not {'forks', 'print'} <= parts.keys():
            raise ValueError(f'its join buffer {name!r} cannot be read')
        buffer = Buffer(join, run, read_forks(parts['forks']), loaded=False)
        if 'accumulator' in parts:
            buffer.accumulator = bytes(parts['accumulator'])
            buffer.cancelled = from_json(parts.get('cancelled', b'false')) is True
        else:
            buffer.items = elements(bytes(parts.get('items', b'[]')))
            buffer.stored = len(buffer.items)
        buffers.append((buffer, str(from_json(parts['print']))))
    return buffers
