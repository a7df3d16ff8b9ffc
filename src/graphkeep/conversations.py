"""The records of conversations: what a store keeps of them, without knowing pydantic-ai.

A conversation is a row that is replaced, and the entries that it reaches: each holds one message
and names the one before it. Conversations may share entries. A *tip* of a conversation is an entry
that it reaches without another one in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Literal, NamedTuple, overload
from uuid import UUID

__all__ = (
    'BlobPlace',
    'ConversationQuery',
    'ConversationWrite',
    'EntriesQuery',
    'Line',
    'StoredConversation',
    'StoredEntries',
    'StoredEntry',
    'packed_id',
    'places_json',
    'places_of',
    'unpacked_id',
    'uuid_text',
)

_UUID_BYTES = 16
_MARK = b'\xff'
"""No UTF-8 begins with it."""


class BlobPlace(NamedTuple):
    """Where in the JSON of a message a text belongs that is stored elsewhere."""

    hash: str
    """SHA-256 of the bytes, 64 hex digits: the name of the blob."""
    form: Literal['base64', 'base64url']
    """How the text writes them."""
    at: int
    """Before which byte of the stored JSON it belongs."""


class StoredEntry(NamedTuple):
    """One message of a history. Never changed.

    A tuple, because a frozen dataclass takes three times as long to make: a history has thousands.
    """

    entry_id: str
    parent_id: str | None
    """The entry before this one."""
    data: bytes
    """The message as JSON, without what belongs to `places`."""
    library: str
    """The version of pydantic-ai that wrote it."""
    places: tuple[BlobPlace, ...] = ()
    position: int = -1
    """How many entries come before it: as it is read. Of what is written, nobody looks at it."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """The blobs it needs, each once, sorted."""
        return tuple(sorted({place.hash for place in self.places}))


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredConversation:
    """The row of a conversation."""

    conversation_id: str
    revision: str
    """Another one after every write."""
    scope: str | None = None
    updated_at: datetime
    """When it was written, by the clock of who wrote it (UTC)."""
    tips: tuple[str, ...] = ()
    """The entries from which it reaches all others, each once."""
    data: bytes
    """Everything else, as a JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationWrite:
    """One atomic write: a row, and the entries that come with it."""

    conversation: StoredConversation
    expected_revision: str | None
    """The revision of the row that is replaced; `None` if there must be none."""
    entries: Sequence[StoredEntry] = ()
    """In order: each after its parent."""
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """What the entries need, by hash."""
    ttl: float | None = None
    """Seconds from now after which the conversation is not there any more; `None` for never."""

    @property
    def size(self) -> int:
        """Bytes of the payloads."""
        entries = sum(len(entry.data) for entry in self.entries)
        return entries + sum(map(len, self.blobs.values())) + len(self.conversation.data)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationQuery:
    """Which conversations."""

    conversation_id: str | None = None
    scope: str | None = None
    expired: bool = False
    """Only those that have expired, the first of them first; otherwise only those that have not."""
    after: tuple[datetime, str] | None = None
    """`updated_at` and `conversation_id` of the last one of the page before."""
    limit: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EntriesQuery:
    """Which part of a history: by its end, and either the last few or a range of positions."""

    head_id: str
    limit: int | None = None
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Line(Sequence[StoredEntry]):
    """Entries of which each follows the one before it, in columns: a history has thousands, and who
    wants their messages needs no object for each.
    """

    ids: Sequence[str] = ()
    messages: Sequence[bytes] = ()
    """As `StoredEntry.data`."""
    libraries: Sequence[str] = ()
    places: Mapping[int, tuple[BlobPlace, ...]] = field(
        default_factory=dict[int, tuple[BlobPlace, ...]]
    )
    """Of those that have any, by index."""
    parent_id: str | None = None
    """The entry before the first."""
    position: int = 0
    """Of the first."""

    @classmethod
    def of(cls, entries: Sequence[StoredEntry]) -> Line:
        """These entries. The positions of all but the first follow from it."""
        if not entries:
            return cls()
        return cls(
            [entry.entry_id for entry in entries],
            [entry.data for entry in entries],
            [entry.library for entry in entries],
            {index: entry.places for index, entry in enumerate(entries) if entry.places},
            entries[0].parent_id,
            entries[0].position,
        )

    @classmethod
    def joined(cls, lines: Sequence[Line]) -> Line:
        """Lines of which each goes on where the one before ends."""
        if len(lines) == 1:
            return lines[0]
        places: dict[int, tuple[BlobPlace, ...]] = {}
        there = 0
        for line in lines:
            places.update({there + at: found for at, found in line.places.items()})
            there += len(line)
        return cls(
            [*chain.from_iterable(line.ids for line in lines)],
            [*chain.from_iterable(line.messages for line in lines)],
            [*chain.from_iterable(line.libraries for line in lines)],
            places,
            lines[0].parent_id if lines else None,
            lines[0].position if lines else 0,
        )

    @overload
    def __getitem__(self, index: int) -> StoredEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Line: ...
    def __getitem__(self, index: int | slice) -> StoredEntry | Line:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self.ids))
            if step != 1:
                raise ValueError('a part of a line has no gaps')
            return Line(
                self.ids[index],
                self.messages[index],
                self.libraries[index],
                {at - start: places for at, places in self.places.items() if start <= at < stop},
                self.ids[start - 1] if start else self.parent_id,
                self.position + start,
            )
        at = range(len(self.ids))[index]
        return StoredEntry(
            self.ids[at],
            self.ids[at - 1] if at else self.parent_id,
            self.messages[at],
            self.libraries[at],
            self.places.get(at, ()),
            self.position + at,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Line) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def parents(self) -> Sequence[str | None]:
        """Before each, the id of the one that it follows."""
        return [self.parent_id, *self.ids[:-1]] if self.ids else []

    @property
    def needs(self) -> dict[str, str]:
        """The blobs that they need, by hash: the id of the first entry that does."""
        found: dict[str, str] = {}
        for at, places in sorted(self.places.items()):
            for place in places:
                found.setdefault(place.hash, self.ids[at])
        return found


class StoredEntries(NamedTuple):
    """A part of a history."""

    entries: Line
    """Oldest first."""
    blobs: Mapping[str, bytes]
    """What they need, by hash; one that is missing is damage."""


def packed_id(entry_id: str) -> bytes:
    """The id of an entry in few bytes: 16 for a UUID as upstream makes them, else the text."""
    if len(entry_id) == 36:
        try:
            found = UUID(entry_id)
        except ValueError:
            pass
        else:
            if str(found) == entry_id:
                return found.bytes
    return _MARK + entry_id.encode() + (_MARK if len(entry_id.encode()) == _UUID_BYTES - 1 else b'')


def unpacked_id(data: bytes) -> str:
    """What `packed_id` made.

    Raises:
        ValueError: It has made nothing like this.
    """
    if len(data) == _UUID_BYTES:
        return uuid_text(data.hex())
    if not data.startswith(_MARK):
        raise ValueError(f'{data!r:.80} is no id of an entry')
    return data[1:].removesuffix(_MARK).decode()


def uuid_text(digits: str) -> str:
    """The usual form of a UUID of 32 lower-case hex digits."""
    return f'{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}'


def places_json(places: Iterable[BlobPlace]) -> str | None:
    """Places as JSON; `None` if there are none."""
    listed = [[place.hash, place.form, place.at] for place in places]
    return json.dumps(listed, separators=(',', ':')) if listed else None


def places_of(text: str | bytes | None) -> tuple[BlobPlace, ...]:
    """What `places_json` made.

    Raises:
        ValueError: It has made nothing like this.
    """
    if text is None:
        return ()
    try:
        return tuple(
            BlobPlace(hash=_text(name), form=_form(form), at=_place(at))
            for name, form, at in json.loads(text)
        )
    except (TypeError, ValueError) as e:
        raise ValueError(f'the places of its blobs are damaged ({e})') from e


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f'{value!r:.80} for a hash')
    return value


def _place(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f'{value!r:.80} for a place')
    return value


def _form(value: object) -> Literal['base64', 'base64url']:
    if value not in ('base64', 'base64url'):
        raise ValueError(f'{value!r:.80} for a form')
    return value
