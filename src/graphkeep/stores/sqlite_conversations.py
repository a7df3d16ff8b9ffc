"""What a SQLite store does to its tables of conversations. Synchronous, as `sqlite_runs`.

Nothing is searched for what nobody needs any more: each entry counts who refers to it, and each
blob the entries that need it. Only net changes of a counter are written, so a save that moves a tip
forward writes no entry but the new ones.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    Line,
    StoredConversation,
    StoredEntries,
    StoredEntry,
    packed_id,
    places_json,
)
from ..errors import DamagedConversationError
from .sqlite_connections import Reader, Writer
from .sqlite_file import SQLiteFile
from .sqlite_rows import (
    clock,
    conversation_of,
    entry_id_of,
    hashes_of,
    line_of,
    micros,
    stamp,
    tips_of,
    to_json,
)

__all__ = ('SQLiteConversations',)

logger = logging.getLogger('graphkeep')

_ROW = 256
"""Most entries that are read as one row: it is in memory twice. SQLite limits one to 1 GB."""
_LAST = 2**63 - 1
"""The highest position, and the latest time, that SQLite can store."""


class _Found(NamedTuple):
    """An entry that is stored."""

    entry: int
    parent: int | None
    position: int


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A write does not go through: what it has done so far is undone."""


class SQLiteConversations:
    """The conversations of one store. The methods are hooks of `Store`: it says what each does."""

    def __init__(self, file: SQLiteFile) -> None:
        self._sql = file.statements
        find = self._sql['find_conversations']
        self._find_any = find.replace('{which}', 'true')
        self._find_of_id = find.replace('{which}', self._sql['if_of_id'])
        self._find_of_scope = find.replace('{which}', self._sql['if_of_scope'])

    # --- writing ----------------------------------------------------------------------------------

    def write(self, writer: Writer, write: ConversationWrite) -> bool:
        """As `Store._write_conversation`."""
        new = write.conversation
        try:
            with writer.transaction(size=write.size) as connection:
                now = clock()
                asked = {'conversation_id': new.conversation_id, 'now': now}
                row = connection.execute(self._sql['select_conversation'], asked).fetchone()
                revision, tips, expired = row or (None, None, False)
                found = None if expired else revision
                if found != write.expected_revision:
                    return found == new.revision
                before = () if row is None else _tips(new.conversation_id, tips)
                if expired:
                    # Nothing may stand on what only it had.
                    self._release(connection, before)
                    before = ()
                self._store(connection, write, before)
                values = {
                    'conversation_id': new.conversation_id,
                    'revision': new.revision,
                    'scope': new.scope,
                    'updated_at': stamp(new.updated_at),
                    'expires_at': None if write.ttl is None else now + micros(write.ttl),
                    'tips': to_json(new.tips),
                    'data': new.data,
                }
                connection.execute(self._sql['store_conversation'], values)
                return True
        except _Refused:
            return False

    def delete(self, writer: Writer, conversation_id: str, revision: str) -> bool:
        """As `Store._delete_conversation`."""
        with writer.transaction() as connection:
            values = {'conversation_id': conversation_id, 'revision': revision}
            rows = connection.execute(self._sql['delete_conversation'], values).fetchall()
            for (tips,) in rows:
                self._release(connection, _tips(conversation_id, tips))
            return bool(rows)

    def _store(
        self, connection: sqlite3.Connection, write: ConversationWrite, before: Sequence[str]
    ) -> None:
        """Insert the new entries and their blobs, and move the tips from those `before`."""
        known: dict[str, _Found] = {}
        fresh = [entry for entry in write.entries if not self._is_there(connection, entry, known)]
        refs = Counter(entry.parent_id for entry in fresh if entry.parent_id is not None)
        refs.update(write.conversation.tips)
        refs.subtract(before)
        dead: list[int] = []
        for entry in fresh:
            own = refs.pop(entry.entry_id, 0)
            found = known[entry.entry_id] = self._insert(connection, entry, own, known)
            if own <= 0:
                dead.append(found.entry)
        for tip in write.conversation.tips:
            self._need(connection, tip, known)
        uses = Counter(name for entry in fresh for name in entry.hashes)
        for name, count in uses.items():
            values = {'hash': bytes.fromhex(name), 'uses': count, 'data': write.blobs[name]}
            connection.execute(self._sql['use_blob'], values)
        dead += self._change(connection, self._numbered(connection, refs, known))
        self._remove(connection, dead)

    def _is_there(
        self, connection: sqlite3.Connection, entry: StoredEntry, known: dict[str, _Found]
    ) -> bool:
        """Whether an entry is stored already, the very same."""
        found = self._find(connection, entry.entry_id)
        if found is None:
            return False
        parent = None if entry.parent_id is None else self._need(connection, entry.parent_id, known)
        values = {'entry': found.entry}
        data = connection.execute(self._sql['select_message'], values).fetchone()
        number = None if parent is None else parent.entry
        if (found.parent, data) != (number, (entry.data,)):
            raise _Refused
        known[entry.entry_id] = found
        return True

    def _insert(
        self,
        connection: sqlite3.Connection,
        entry: StoredEntry,
        refs: int,
        known: dict[str, _Found],
    ) -> _Found:
        parent, position = None, 0
        if entry.parent_id is not None:
            before = self._need(connection, entry.parent_id, known)
            parent, position = before.entry, before.position + 1
        values = {
            'entry_id': packed_id(entry.entry_id),
            'parent': parent,
            'position': position,
            'refs': max(refs, 0),
            'library': entry.library,
            'places': places_json(entry.places),
        }
        number = connection.execute(self._sql['insert_entry'], values).lastrowid
        assert number is not None  # it is after an INSERT
        message = {'entry': number, 'data': entry.data}
        connection.execute(self._sql['insert_message'], message)
        return _Found(number, parent, position)

    def _need(
        self, connection: sqlite3.Connection, entry_id: str, known: dict[str, _Found]
    ) -> _Found:
        """An entry that has to be there."""
        found = known.get(entry_id) or self._find(connection, entry_id)
        if found is None:
            raise _Refused
        known[entry_id] = found
        return found

    def _find(self, connection: sqlite3.Connection, entry_id: str) -> _Found | None:
        values = {'entry_id': packed_id(entry_id)}
        row = connection.execute(self._sql['select_entry'], values).fetchone()
        if row is None:
            return None
        found = _Found._make(row)
        if type(found.position) is not int or not 0 <= found.position < _LAST:
            reason = f'it has position {found.position!r:.80}'
            raise DamagedConversationError(entry_id=entry_id, reason=reason)
        return found

    # --- what nobody needs any more ---------------------------------------------------------------

    def _release(self, connection: sqlite3.Connection, tips: Iterable[str]) -> None:
        """Take the references of tips away, and remove what has none then."""
        lost = Counter(dict.fromkeys(tips, -1))
        self._remove(connection, self._change(connection, self._numbered(connection, lost, {})))

    def _numbered(
        self, connection: sqlite3.Connection, changes: Mapping[str, int], known: dict[str, _Found]
    ) -> dict[int, int]:
        """Changes of counters, by number. Of an entry that is gone nothing is left to change."""
        found = {
            entry_id: known.get(entry_id) or self._find(connection, entry_id)
            for entry_id, change in changes.items()
            if change
        }
        return {there.entry: changes[name] for name, there in found.items() if there is not None}

    def _change(self, connection: sqlite3.Connection, changes: Mapping[int, int]) -> list[int]:
        """Change counters of entries; gives those that nobody refers to any more."""
        dead: list[int] = []
        for entry, change in changes.items():
            values = {'entry': entry, 'change': change}
            for (refs,) in connection.execute(self._sql['change_refs'], values).fetchall():
                if refs <= 0:
                    dead.append(entry)
        return dead

    def _remove(self, connection: sqlite3.Connection, dead: Sequence[int]) -> None:
        """Remove entries that nobody refers to, all that only they need, and so on.

        Each round takes whole lines, up to where something else branches off.
        """
        uses: Counter[bytes] = Counter()
        while dead:
            asked = {'entries': to_json(dead)}
            rows = connection.execute(self._sql['find_doomed'], asked).fetchall()
            doomed = {entry for entry, _, _ in rows}
            for entry, _, places in rows:
                uses.update(hashes_of(entry, places))
            values = {'entries': to_json([*doomed])}
            connection.execute(self._sql['delete_entries'], values)
            connection.execute(self._sql['delete_messages'], values)
            lost = Counter(
                parent for _, parent, _ in rows if parent is not None and parent not in doomed
            )
            dead = self._change(connection, {entry: -count for entry, count in lost.items()})
        for name, count in uses.items():
            values = {'hash': name, 'uses': count}
            if connection.execute(self._sql['delete_blob'], values).rowcount == 0:
                connection.execute(self._sql['release_blob'], values)

    # --- reading ----------------------------------------------------------------------------------

    def find(self, reader: Reader, query: ConversationQuery) -> list[StoredConversation]:
        """As `Store._conversations`."""
        updated_at, before_id = query.after or (None, '')
        values = {
            'conversation_id': query.conversation_id,
            'scope': query.scope,
            'updated_at': _LAST if updated_at is None else stamp(updated_at),
            'before_id': before_id,
            'now': clock(),
        }
        statement = self._find_any
        if query.expired:
            statement = self._sql['find_expired']
        elif query.conversation_id is not None:
            statement = self._find_of_id
        elif query.scope is not None:
            statement = self._find_of_scope
        found: list[StoredConversation] = []
        with closing(reader.connection.execute(statement, values)) as rows:
            for row in rows:
                if len(found) == query.limit:
                    break
                try:
                    found.append(conversation_of(row))
                except DamagedConversationError as e:
                    if query.conversation_id is not None:
                        raise
                    # One that is damaged does not hide the others.
                    logger.warning('left out of a list of conversations: %s', e)
        return found

    def entries(self, reader: Reader, query: EntriesQuery) -> StoredEntries | None:
        """As `Store._entries`."""
        with reader.snapshot() as connection:
            head = self._find(connection, query.head_id)
            if head is None:
                return None
            first, stop = _part(query, head.position)
            if first >= stop:
                return StoredEntries(Line(), {})
            line = self._line(connection, head, first, stop)
            return StoredEntries(line, self._blobs(connection, line))

    def _line(self, connection: sqlite3.Connection, head: _Found, first: int, stop: int) -> Line:
        """The entries with `first <= position < stop`, back from one."""
        lines: list[Line] = []
        entry: int | None = head.entry
        position = head.position
        most = _ROW
        while stop > first:
            low = max(first, stop - most)
            values = {'entry': entry, 'position': position, 'first': low, 'stop': stop}
            try:
                row = connection.execute(self._sql['select_line'], values).fetchone()
            except sqlite3.DataError:
                if most == 1:
                    raise
                most = max(1, most // 8)  # together they are more than one row can hold
                continue
            _, entry, count, *_ = row
            if count != stop - low:
                raise self._broken(connection, {'entry': head.entry, 'first': first})
            lines.append(line_of(row))
            stop, position = low, low - 1
        line = Line.joined(lines[::-1])
        return replace(line, parent_id=self._parent_id(connection, line, entry))

    def _parent_id(
        self, connection: sqlite3.Connection, line: Line, parent: int | None
    ) -> str | None:
        """The id of the entry before these."""
        if parent is None and line.position == 0:
            return None
        values = {'entry': parent}
        before = connection.execute(self._sql['select_entry_id'], values).fetchone()
        if before is None or line.position == 0:
            reason = (
                f'it has position {line.position} and {"no" if before is None else "an"} entry '
                'before it'
            )
            raise DamagedConversationError(entry_id=line.ids[0], reason=reason)
        return entry_id_of(before[0])

    def _broken(
        self, connection: sqlite3.Connection, values: Mapping[str, int]
    ) -> DamagedConversationError:
        """Why a walk has ended early."""
        row = connection.execute(self._sql['select_break'], values).fetchone()
        entry_id, position, before = row
        has = 'is missing' if before is None else f'has position {before!r:.80}'
        reason = f'it has position {position}, and the entry before it {has}'
        return DamagedConversationError(entry_id=entry_id_of(entry_id), reason=reason)

    def _blobs(self, connection: sqlite3.Connection, line: Line) -> dict[str, bytes]:
        """What entries need."""
        blobs: dict[str, bytes] = {}
        for name, entry_id in line.needs.items():
            values = {'hash': bytes.fromhex(name)}
            row = connection.execute(self._sql['select_blob'], values).fetchone()
            if row is None:
                reason = f'its blob {name} is missing'
                raise DamagedConversationError(entry_id=entry_id, reason=reason)
            blobs[name] = row[0]
        return blobs


def _part(query: EntriesQuery, head: int) -> tuple[int, int]:
    """The first position that is asked for, and the one after the last."""
    if query.limit is not None:
        return max(0, head + 1 - query.limit), head + 1
    return max(0, query.start), head + 1 if query.stop is None else min(query.stop, head + 1)


def _tips(conversation_id: str, text: object) -> tuple[str, ...]:
    """The tips of a row that is replaced or deleted: damage must not stop that."""
    try:
        return tips_of(text)
    except ValueError as e:
        logger.warning('the entries of conversation %r stay: %s', conversation_id, e)
        return ()
