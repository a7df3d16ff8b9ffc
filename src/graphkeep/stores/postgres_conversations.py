"""What a Postgres store does to its tables of conversations, entries and blobs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    Line,
    StoredConversation,
    StoredEntries,
    StoredEntry,
    packed_id,
    places_of,
    unpacked_id,
)
from ..errors import DamagedConversationError, StoreError
from .postgres_errors import asyncpg, is_damage
from .postgres_pool import Connection, Connections
from .postgres_rows import (
    blob_columns,
    conversation_of,
    conversation_row,
    entry_columns,
    line_of,
)
from .statements import load

__all__ = ('PostgresConversations',)

logger = logging.getLogger('graphkeep')

_LOOKS = 3
"""How often a history is read before a blob that is missing is damage."""


class _RefusedError(Exception):
    """A write does not go through: what its transaction has done so far is taken back."""


class _Locked(NamedTuple):
    """An entry that stays as it is until the transaction ends."""

    parent: bytes | None
    refs: int


class PostgresConversations:
    """The conversations of one store. Its methods are hooks: `Store` says what each does."""

    def __init__(self, db: Connections, *, prefix: str) -> None:
        self._db = db
        self._sql = load('postgres_conversations.sql', prefix=prefix)

    # --- writing ---------------------------------------------------------------------------------

    async def write(self, write: ConversationWrite) -> bool:
        """As `Store._write_conversation`."""
        kept, refs = _reached(write.entries, write.conversation.tips)
        async with self._db.for_commits() as connection:
            if len(kept) == len(write.entries):
                new = {entry.entry_id for entry in kept}
                raised = [packed_id(i) for i, n in refs.items() for _ in range(n) if i not in new]
                # Another transaction may bring the same: then it is there at the next look.
                with suppress(asyncpg.UniqueViolationError):
                    outcome = await connection.fetchval(
                        self._sql['write_conversation'],
                        *conversation_row(write),
                        write.expected_revision,
                        raised,
                        *entry_columns(kept, refs),
                        *blob_columns(kept, write.blobs),
                    )
                    if outcome != 'look':
                        return outcome in ('written', 'same')
            while True:
                with suppress(asyncpg.UniqueViolationError):
                    try:
                        async with connection.transaction(isolation='read_committed'):
                            return await self._write_looking(connection, write)
                    except _RefusedError:
                        return False

    async def _write_looking(self, connection: Connection, write: ConversationWrite) -> bool:
        """A write that removes entries, or finds some of its own, or an expired row: each statement
        sees what the locks of the one before it have made sure of.
        """
        new, values = write.conversation, conversation_row(write)
        if write.expected_revision is None:
            await connection.execute(self._sql['lock_name'], new.conversation_id)
        old = await connection.fetchrow(self._sql['lock_conversation'], new.conversation_id)
        revision, tips, expired = old or (None, (), False)
        found = None if expired else revision
        if found != write.expected_revision:
            return found == new.revision
        if old is None:
            await connection.execute(self._sql['insert_conversation'], *values)
        else:
            await connection.execute(self._sql['replace_conversation'], *values)
        ids = {entry.entry_id for entry in write.entries}
        needs = {*new.tips, *(e.parent_id for e in write.entries if e.parent_id is not None)}
        locked = await self._lock(connection, tips, map(packed_id, needs | ids))
        removed: Counter[str] = Counter()
        if expired:
            # Nothing may stand on what has expired.
            removed += await self._settle(connection, _lowered(tips), locked)
            tips = ()
        if not all(need in ids or packed_id(need) in locked for need in needs):
            raise _RefusedError
        added = [entry for entry in write.entries if packed_id(entry.entry_id) not in locked]
        if len(added) < len(write.entries):
            await self._check_same(connection, write.entries)
        kept, refs = _reached(added, new.tips)
        await connection.execute(self._sql['insert_entries'], *entry_columns(kept, refs))
        for entry in kept:
            del refs[entry.entry_id]
        changes = Counter({packed_id(entry_id): n for entry_id, n in refs.items()})
        changes.subtract(tips)
        removed += await self._settle(connection, changes, locked)
        uses = Counter(name for entry in kept for name in entry.hashes)
        uses.subtract(removed)
        await self._count(connection, uses, write.blobs)
        return True

    async def _check_same(self, connection: Connection, entries: Sequence[StoredEntry]) -> None:
        """Refuse the write if an entry of it is stored with other contents."""
        wanted = {packed_id(entry.entry_id): entry for entry in entries}
        for packed, parent, data in await connection.fetch(
            self._sql['select_entries'], list(wanted)
        ):
            entry = wanted[packed]
            expected = None if entry.parent_id is None else packed_id(entry.parent_id)
            if (parent, data) != (expected, entry.data):
                raise _RefusedError

    async def delete(self, conversation_id: str, revision: str) -> bool:
        """As `Store._delete_conversation`."""
        async with (
            self._db.acquire(writes=True) as connection,
            # Whatever the database's default: each statement sees what was committed before it.
            connection.transaction(isolation='read_committed'),
        ):
            row = await connection.fetchrow(
                self._sql['delete_conversation'], conversation_id, revision
            )
            if row is None:
                return False
            locked = await self._lock(connection, row[0], ())
            uses: Counter[str] = Counter()
            uses.subtract(await self._settle(connection, _lowered(row[0]), locked))
            await self._count(connection, uses, {})
            return True

    async def _lock(
        self, connection: Connection, ending: Iterable[bytes], others: Iterable[bytes]
    ) -> dict[bytes, _Locked]:
        """Lock entries, and those which end with the ones that are `ending`."""
        rows = await connection.fetch(self._sql['lock_entries'], list(ending), list(others))
        return {row[0]: _Locked(row[1], row[2]) for row in rows}

    async def _settle(
        self, connection: Connection, changes: Mapping[bytes, int], locked: dict[bytes, _Locked]
    ) -> Counter[str]:
        """Change counters of locked entries, and remove what comes to 0: each lowers the one before
        it. `locked` is then what is left.

        Returns:
            How many of those that are removed needed each blob.
        """
        refs = {one: locked[one].refs + n for one, n in changes.items() if n and one in locked}
        gone: set[bytes] = set()
        ending = [one for one, n in refs.items() if n <= 0]
        while ending:
            one = ending.pop()
            gone.add(one)
            parent = locked[one].parent
            if parent is None or parent in gone:
                continue
            if parent not in locked:
                # Others let go of it since we looked.
                locked |= await self._lock(connection, (parent,), ())
                if parent not in locked:
                    # It is damaged; the rest can be removed all the same.
                    continue
            refs[parent] = refs.get(parent, locked[parent].refs) - 1
            if refs[parent] == 0:
                ending.append(parent)
        stay = {one: n for one, n in refs.items() if one not in gone and n != locked[one].refs}
        if stay:
            await connection.execute(self._sql['move_entries'], [*stay], [*stay.values()])
        for one, n in stay.items():
            locked[one] = locked[one]._replace(refs=n)
        removed: Counter[str] = Counter()
        if gone:
            rows = await connection.fetch(self._sql['remove_entries'], [*gone])
            for row in rows:
                # What is damaged stays behind, and does not keep the rest from being removed.
                with suppress(ValueError):
                    removed.update({bytes.fromhex(p.hash).hex() for p in places_of(row[0])})
        for one in gone:
            del locked[one]
        return removed

    async def _count(
        self, connection: Connection, uses: Mapping[str, int], blobs: Mapping[str, bytes]
    ) -> None:
        """Change how often blobs are needed."""
        changed = {bytes.fromhex(name): name for name, n in sorted(uses.items()) if n}
        if changed:
            counts = [uses[name] for name in changed.values()]
            data = [blobs.get(name, b'') for name in changed.values()]
            await connection.execute(self._sql['count_blobs'], [*changed], counts, data)
        if any(n < 0 for n in uses.values()):
            await connection.execute(self._sql['remove_blobs'], [*changed])

    # --- reading ---------------------------------------------------------------------------------

    async def find(self, query: ConversationQuery) -> list[StoredConversation]:
        """As `Store._conversations`."""
        wanted = query.limit
        try:
            async with self._db.acquire(writes=False) as connection:
                while True:
                    sql, values = self._finding(query, wanted)
                    rows = await connection.fetch(sql, *values)
                    found = _readable(rows, query)
                    if query.limit is None or wanted is None or len(rows) < wanted:
                        return found
                    if len(found) >= query.limit:
                        return found[: query.limit]
                    wanted += len(rows) - len(found)
        except StoreError as e:
            if query.conversation_id is None or not is_damage(e):
                raise
            raise DamagedConversationError(
                conversation_id=query.conversation_id, reason=str(e.__cause__)
            ) from e

    def _finding(self, query: ConversationQuery, limit: int | None) -> tuple[str, list[object]]:
        """The statement for a query, and its values: nothing of the query goes into the text."""
        values: list[object] = [limit]
        conditions = [self._sql['if_expired' if query.expired else 'if_not_expired']]
        for name, given in (
            ('if_conversation', (query.conversation_id,)),
            ('if_scope', (query.scope,)),
            ('if_after', query.after or (None,)),
        ):
            if given[0] is not None:
                condition = self._sql[name]
                for place, value in zip(('{n}', '{m}'), given, strict=False):
                    values.append(value)
                    condition = condition.replace(place, f'${len(values)}')
                conditions.append(condition)
        sql = self._sql['find_expired' if query.expired else 'find_conversations']
        return sql.replace('{conditions}', ' AND '.join(conditions)), values

    async def entries(self, query: EntriesQuery) -> StoredEntries | None:
        """As `Store._entries`."""
        try:
            async with self._db.acquire(writes=False) as connection:
                looks = 0
                while True:
                    looks += 1
                    rows = await self._rows(connection, query)
                    if not rows:
                        return None
                    line = _in_order(rows)
                    needs = line.needs
                    blobs = await self._blobs(connection, needs)
                    if len(blobs) == len(needs):
                        return StoredEntries(line, blobs)
                    # Its entry may have been removed in between: then it is not found again.
                    if looks == _LOOKS:
                        name, entry_id = next(n for n in needs.items() if n[0] not in blobs)
                        reason = f'its blob {name} is missing'
                        raise DamagedConversationError(entry_id=entry_id, reason=reason)
        except StoreError as e:
            if not is_damage(e):
                raise
            entry_id = await self._first_damaged(query.head_id)
            raise DamagedConversationError(entry_id=entry_id, reason=str(e.__cause__)) from e

    async def _rows(self, connection: Connection, query: EntriesQuery) -> list[Sequence[Any]]:
        stop = query.stop if query.limit is None else None
        head = packed_id(query.head_id)
        return await connection.fetch(
            self._sql['read_entries'], head, query.limit, query.start, stop
        )

    async def _blobs(self, connection: Connection, needs: Iterable[str]) -> dict[str, bytes]:
        names = {bytes.fromhex(name): name for name in needs}
        if not names:
            return {}
        rows = await connection.fetch(self._sql['select_blobs'], list(names))
        return {names[row[0]]: row[1] for row in rows}

    async def _first_damaged(self, head_id: str) -> str:
        """The entry that the server cannot read, or whose blob it cannot."""
        entry_id, before = head_id, head_id
        while True:
            try:
                async with self._db.acquire(writes=False) as connection:
                    rows = await self._rows(connection, EntriesQuery(head_id=entry_id, limit=1))
                    line = _in_order(rows)
                    await self._blobs(connection, line.needs)
            except StoreError as e:
                if is_damage(e):
                    return entry_id
                raise
            before = line.parent_id
            if before is None:
                return head_id
            entry_id = before


def _reached(
    entries: Sequence[StoredEntry], tips: Iterable[str]
) -> tuple[list[StoredEntry], Counter[str]]:
    """The new entries that the tips reach, and how often each entry, also of those that are stored,
    is referred to by them and as a tip.
    """
    refs, kept = Counter(tips), list[StoredEntry]()
    for entry in reversed(entries):
        if refs[entry.entry_id]:
            kept.append(entry)
            if entry.parent_id is not None:
                refs[entry.parent_id] += 1
    return kept[::-1], refs


def _lowered(tips: Iterable[bytes]) -> Counter[bytes]:
    """The changes of counters when these are no tips any more."""
    changes: Counter[bytes] = Counter()
    changes.subtract(tips)
    return changes


def _in_order(rows: Sequence[Sequence[Any]]) -> Line:
    """The entries in the rows of `read_entries`.

    Raises:
        DamagedConversationError: One of them, or the chain, is not as it was written.
    """
    first: bytes | None = None
    wanted: list[Sequence[Any]] = []
    for row in rows:
        entry_id, parent, position, lowest, *_ = row
        if lowest is None:
            wanted.append(row)
            continue
        if position > lowest or (parent is None) != (position == 0):
            reason = f'no entry that fits is before it, at position {position}'
            raise DamagedConversationError(entry_id=_name(entry_id), reason=reason)
        first = parent
    return line_of(wanted, first)


def _name(packed: bytes) -> str:
    try:
        return unpacked_id(packed)
    except ValueError:
        return f'{packed!r:.80}'


def _readable(rows: Sequence[Sequence[Any]], query: ConversationQuery) -> list[StoredConversation]:
    """The conversations in rows: one that is damaged does not hide the others."""
    found: list[StoredConversation] = []
    for row in rows:
        try:
            found.append(conversation_of(row))
        except DamagedConversationError as e:
            if query.conversation_id is not None:
                raise
            logger.warning('left out of a list of conversations: %s', e)
    return found
