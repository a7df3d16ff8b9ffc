"""Conversations in the memory of this process. What nobody reaches is found by looking at
everything: the plainest of all ways, which the others are tested against.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    Line,
    StoredConversation,
    StoredEntries,
    StoredEntry,
)
from ..errors import DamagedConversationError

__all__ = ('Conversations',)


class _Row(NamedTuple):
    conversation: StoredConversation
    expires_at: datetime | None

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class Conversations:
    """All conversations of a memory store."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._entries: dict[str, StoredEntry] = {}
        self._blobs: dict[str, bytes] = {}

    def write(self, write: ConversationWrite, now: datetime) -> bool:
        """As `Store._write_conversation`."""
        new = write.conversation
        row = self._rows.get(new.conversation_id)
        found = None if row is None or row.expired(now) else row.conversation.revision
        if found != write.expected_revision:
            return found == new.revision
        if row is not None and found is None:
            self._forget(new.conversation_id)  # nothing may stand on what has expired
        added = {entry.entry_id: entry for entry in write.entries}
        needs = [*new.tips, *(e.parent_id for e in write.entries if e.parent_id is not None)]
        if not all(entry_id in self._entries or entry_id in added for entry_id in needs):
            return False
        for entry in write.entries:
            known = self._entries.get(entry.entry_id)
            if known is not None and (known.parent_id, known.data) != (entry.parent_id, entry.data):
                return False
        for entry in write.entries:
            position = 0 if entry.parent_id is None else self._entries[entry.parent_id].position + 1
            self._entries[entry.entry_id] = entry._replace(position=position)
        self._blobs.update(write.blobs)
        expires_at = None if write.ttl is None else now + timedelta(seconds=write.ttl)
        self._rows[new.conversation_id] = _Row(new, expires_at)
        self._sweep()
        return True

    def delete(self, conversation_id: str, revision: str) -> bool:
        """As `Store._delete_conversation`."""
        row = self._rows.get(conversation_id)
        if row is None or row.conversation.revision != revision:
            return False
        self._forget(conversation_id)
        return True

    def find(self, query: ConversationQuery, now: datetime) -> list[StoredConversation]:
        """As `Store._conversations`."""
        rows = [
            row
            for row in self._rows.values()
            if row.expired(now) == query.expired
            and query.conversation_id in (None, row.conversation.conversation_id)
            and query.scope in (None, row.conversation.scope)
            and (query.after is None or _place(row) < query.after)
        ]
        if query.expired:
            rows.sort(key=lambda row: (row.expires_at, row.conversation.conversation_id))
        else:
            rows.sort(key=_place, reverse=True)
        return [row.conversation for row in rows[: query.limit]]

    def entries(self, query: EntriesQuery) -> StoredEntries | None:
        """As `Store._entries`."""
        if query.head_id not in self._entries:
            return None
        line = [*self._line(query.head_id)][::-1]
        if query.limit is not None:
            line = line[max(0, len(line) - query.limit) :]
        else:
            line = line[query.start : query.stop]
        found = Line.of(line)
        return StoredEntries(found, {name: self._blobs[name] for name in found.needs})

    def _line(self, entry_id: str | None) -> Iterator[StoredEntry]:
        """An entry and those before it, back to the first."""
        child: str | None = None
        while entry_id is not None:
            entry = self._entries.get(entry_id)
            if entry is None:
                reason = f'entry {entry_id!r} before it is missing'
                raise DamagedConversationError(entry_id=child, reason=reason)
            yield entry
            child, entry_id = entry_id, entry.parent_id

    def _forget(self, conversation_id: str) -> None:
        del self._rows[conversation_id]
        self._sweep()

    def _sweep(self) -> None:
        reached: set[str] = set()
        for row in self._rows.values():
            for tip in row.conversation.tips:
                for entry in self._line(tip):
                    if entry.entry_id in reached:
                        break
                    reached.add(entry.entry_id)
        if len(reached) < len(self._entries):
            self._entries = {name: self._entries[name] for name in self._entries if name in reached}
        needed = {name for entry in self._entries.values() for name in entry.hashes}
        if len(needed) < len(self._blobs):
            self._blobs = {name: self._blobs[name] for name in self._blobs if name in needed}


def _place(row: _Row) -> tuple[datetime, str]:
    return row.conversation.updated_at, row.conversation.conversation_id
