"""How conversations lie in Redis: records to fields and back. Pure.

```
{graphkeep:0}:talk:rows      hash  conversation id -> the row
{graphkeep:0}:talk:entries   hash  entry id -> position, parent, blobs, and the message
{graphkeep:0}:talk:long      hash  entry id -> the message, where it is long
{graphkeep:0}:talk:refs      hash  entry id -> how many entries and tips name it, if not one
{graphkeep:0}:talk:blobs     hash  SHA-256 in hex -> bytes
{graphkeep:0}:talk:uses      hash  SHA-256 in hex -> how many entries need it, if not one
{graphkeep:0}:talk:written   zset  <time><conversation id>
{graphkeep:0}:talk:scoped    zset  <scope> NUL <time><conversation id>
{graphkeep:0}:talk:expiring  zset  <when><conversation id>
```

A conversation may share entries with any other, and a save is one script all of whose keys are
declared: so all of them are in the one slot of bucket 0, whatever the number of buckets. Who needs
more than one node of a cluster for conversations opens stores of different prefixes.

`lua/talk.lua` has what a row and an entry look like; ids of entries are packed. The time of a row
is the writer's, as ISO 8601 in UTC with microseconds, that of its expiry the server's, as
microseconds since 1970 in 18 digits: both sort as text. Lua's numbers would not hold every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ..conversations import (
    BlobPlace,
    ConversationWrite,
    Line,
    StoredConversation,
    StoredEntry,
    packed_id,
    places_json,
    places_of,
    unpacked_id,
)
from ..errors import DamagedConversationError
from .redis_keys import whole_micros

__all__ = (
    'EXPIRY_SIZE',
    'Columns',
    'Row',
    'bound_of',
    'cut',
    'line_from',
    'name_of',
    'row_from',
    'write_args',
)

TIME_SIZE = 26
EXPIRY_SIZE = 18
"""Bytes of the times in an index."""
_INLINE = 4_000
"""Most bytes of a message beside its link: whoever walks along a history reads both."""


class Row(NamedTuple):
    """A row as it is stored."""

    conversation: StoredConversation
    expires_at: int | None
    """In microseconds since 1970, by the server's clock."""


def time_text(time: datetime) -> bytes:
    """A time as it stands in a row and sorts in an index."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds').encode()


# --- what is written -----------------------------------------------------------------------------


def write_args(write: ConversationWrite) -> Iterator[bytes | str | int]:
    """A write as `talk_write.lua` takes it."""
    row = write.conversation
    yield row.conversation_id.encode()
    yield (write.expected_revision or '').encode()
    yield time_text(row.updated_at)
    yield '' if write.ttl is None else whole_micros(write.ttl)
    revision = row.revision.encode()
    scope = None if row.scope is None else row.scope.encode()
    tips = [packed_id(tip) for tip in row.tips]
    sizes = ','.join(str(len(tip)) for tip in tips) or '-'
    yield f'{len(revision)} {"-" if scope is None else len(scope)} {sizes}'
    yield b''.join((revision, scope or b'', *tips, row.data))
    yield len(write.entries)
    for entry in write.entries:
        yield packed_id(entry.entry_id)
        yield from _entry_args(entry)
    for name in sorted({name for entry in write.entries for name in entry.hashes}):
        yield name
        yield write.blobs[name]


def _entry_args(entry: StoredEntry) -> Iterator[bytes | str]:
    parent = b'' if entry.parent_id is None else packed_id(entry.parent_id)
    library = entry.library.encode()
    hashes = ' '.join(entry.hashes).encode()
    places = (places_json(entry.places) or '').encode()
    apart = len(entry.data) > _INLINE
    sizes = f'{len(parent)} {len(library)} {len(hashes)} {len(places)}'
    yield f'{"+" if apart else "-"} {sizes}'
    yield b''.join((parent, library, hashes, places, b'' if apart else entry.data))
    yield entry.data if apart else b''


def bound_of(scope: str | None, after: tuple[datetime, str] | None) -> tuple[bytes, bytes, int]:
    """Where to begin and to end in `written` or `scoped`, newest first, and how many bytes of a
    member there stand before the id.
    """
    prefix = b'' if scope is None else scope.encode() + b'\0'
    if after is not None:
        begin = b'(' + prefix + time_text(after[0]) + after[1].encode()
    else:
        begin = b'+' if scope is None else b'(' + prefix[:-1] + b'\x01'
    return begin, b'[' + prefix if prefix else b'-', len(prefix) + TIME_SIZE


# --- what is read --------------------------------------------------------------------------------


def name_of(packed: bytes) -> str:
    """The id of an entry, to be named: also of one that is damaged."""
    try:
        return unpacked_id(packed)
    except ValueError:
        return packed.decode(errors='backslashreplace')


def row_from(conversation_id: bytes, text: bytes) -> Row:
    """The row that `talk_write.lua` put together.

    Raises:
        ValueError: It is not one.
    """
    head, _, body = text.partition(b'\n')
    time, expires, revision_size, scope_size, tip_sizes = head.decode().split(' ')
    parts = _Parts(body)
    revision = parts.take(revision_size).decode()
    scope = None if scope_size == '-' else parts.take(scope_size).decode()
    tips = () if tip_sizes == '-' else tuple(map(parts.take, tip_sizes.split(',')))
    if len(time) != TIME_SIZE:
        raise ValueError(f'{time!r:.80} for a time')
    conversation = StoredConversation(
        conversation_id=conversation_id.decode(),
        revision=revision,
        scope=scope,
        updated_at=datetime.fromisoformat(time).replace(tzinfo=UTC),
        tips=tuple(map(unpacked_id, tips)),
        data=parts.rest,
    )
    return Row(conversation, None if expires == '-' else int(expires))


class Columns(NamedTuple):
    """What `talk_entries.lua` gives of a history: sizes of parts, and these in one piece."""

    id_sizes: bytes
    ids: bytes
    message_sizes: bytes
    messages: bytes
    library_sizes: bytes
    libraries: bytes
    place_sizes: bytes
    places: bytes
    blob_sizes: bytes
    blobs: bytes

    @property
    def found_blobs(self) -> Iterator[tuple[str, bytes]]:
        """Blobs, by hash."""
        words = self.blob_sizes.split()
        for name, blob in zip(words[::2], cut(self.blobs, words[1::2]), strict=True):
            yield name.decode(), blob


def line_from(columns: Columns, position: int) -> Line:
    """The entries of a reply, the first of which has this position.

    Raises:
        DamagedConversationError: One of them is not as it was written; names it.
    """
    # In the reply the last one is first.
    messages = [*cut(columns.messages, columns.message_sizes.split())]
    packed = [*cut(columns.ids, columns.id_sizes.split())]
    last = len(messages) - 1
    ids: list[str] = []
    libraries: list[str] = []
    places: dict[int, tuple[BlobPlace, ...]] = {}
    at = 0
    try:
        for one in packed:
            ids.append(unpacked_id(one))
            at += 1
        at = 0
        words = columns.library_sizes.split()
        names = cut(columns.libraries, words[1::2])
        for name, times in zip(names, map(int, words[::2]), strict=True):
            libraries += [name.decode()] * times
            at += times
        words = columns.place_sizes.split()
        texts = cut(columns.places, words[2::3])
        for text, index, size in zip(texts, words[::3], words[1::3], strict=True):
            at = int(index)
            places[last - at] = _places(text[: int(size)], text[int(size) :])
    except ValueError as e:
        raise DamagedConversationError(
            entry_id=name_of(packed[at]), reason=f'it is not as graphkeep writes it ({e})'
        ) from e
    parent_id = ids.pop() if len(packed) > len(messages) else None
    return Line(ids[::-1], messages[::-1], libraries[::-1], places, parent_id, position)


def _places(hashes: bytes, text: bytes) -> tuple[BlobPlace, ...]:
    found = places_of(text or None)
    # `talk.lua` takes the blobs to remove from there.
    if ' '.join(sorted({place.hash for place in found})).encode() != hashes:
        raise ValueError('its blobs are others than those of its places')
    return found


class _Parts:
    """Bytes that are taken apart from their beginning on."""

    __slots__ = ('_at', '_data')

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: str) -> bytes:
        """The next part."""
        begin, self._at = self._at, self._at + int(size)
        if not begin <= self._at <= len(self._data):
            raise ValueError('a part of it is missing')
        return self._data[begin : self._at]

    @property
    def rest(self) -> bytes:
        """What has not been taken."""
        return self._data[self._at :]


def cut(data: bytes, sizes: Sequence[bytes]) -> Iterator[bytes]:
    """Parts of a reply, which stand one after the other."""
    at = 0
    for size in map(int, sizes):
        yield data[at : at + size]
        at += size
