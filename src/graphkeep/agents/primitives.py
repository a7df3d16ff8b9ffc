"""What upstream asks of a conversation store, over the port: records, entries and messages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    Line,
    StoredConversation,
    StoredEntries,
    StoredEntry,
)
from ..errors import DamagedConversationError, FormatVersionError, UnreadableMessageError
from .histories import read_back
from .messages import MessageCodec, OnLossy
from .records import Unfinished, record_of, row_of

if TYPE_CHECKING:
    from ..store import Store

__all__ = ('OnUnreadable', 'Primitives', 'ScopeConflict')

logger = logging.getLogger('graphkeep')

OnUnreadable: TypeAlias = Literal['raise', 'skip']
_INLINE = 65_536
_PRUNE_EVERY = 60.0
"""Seconds between two looks for expired conversations while conversations are saved."""
_PRUNE_PAGE = 100
_REMEMBERED = 1_000


class ScopeConflict(ConversationConflict):
    """The conversation was saved with another scope. Nothing was changed.

    A `ConversationConflict`, as upstream has it; but loading it again does not help.
    """

    def __init__(self, conversation_id: str, scope: str | None) -> None:
        super().__init__(conversation_id)
        self.scope = scope
        """The scope that was asked for."""
        self.message = (
            f'Conversation {conversation_id!r} was saved with another scope than {scope!r}. Ids '
            'are the same for all scopes: choose another id, or give the scope it was saved with.'
        )
        self.args = (self.message,)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.conversation_id, self.scope)


class Primitives(ConversationStore):
    """Upstream's five, and what `Conversations` and `KeepRun` stand on."""

    def __init__(
        self,
        store: Store,
        *,
        on_unreadable: OnUnreadable = 'raise',
        on_lossy: OnLossy = 'raise',
        inline: int = _INLINE,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Describe them; nothing is opened.

        Args:
            store: Where they are. It opens at the first use, and is closed by who made it.
            on_unreadable: What to do with a stored message that this version of pydantic-ai cannot
                read: raise an error that names it, or leave it out with a warning.
            on_lossy: What to do with what JSON would change, e.g. a dataclass that a tool returned:
                refuse it, naming message, part and tool; or store it as the model sees it.
            inline: Bytes of base64 text up to which binary content stays in its message. What is
                larger is stored once by its content, also across messages and conversations.
            ttl: Seconds, or a timedelta, after its last save until a conversation is not there any
                more, by the database's clock. Messages that others share stay.

        Raises:
            ValueError: An option is not what it may be.
        """
        if on_unreadable not in get_args(OnUnreadable):
            raise ValueError(f"on_unreadable must be 'raise' or 'skip', got {on_unreadable!r}")
        if on_lossy not in get_args(OnLossy):
            raise ValueError(f"on_lossy must be 'raise' or 'plain', got {on_lossy!r}")
        if isinstance(ttl, timedelta):
            ttl = ttl.total_seconds()
        if ttl is not None and not (math.isfinite(ttl) and ttl > 0):
            raise ValueError(f'ttl must be a number of seconds above 0, got {ttl!r}')
        if inline < 0:
            raise ValueError(f'inline must be a number of bytes from 0 on, got {inline!r}')
        self.store = store
        """Where they are."""
        self.codec = MessageCodec(on_lossy=on_lossy, inline=inline)
        """How messages are stored."""
        self._skip = on_unreadable == 'skip'
        self._ttl = ttl
        self._pruned_at = time.monotonic()
        self._lost: dict[str, str] = {}

    # --- upstream's five --------------------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation, or `None` if there is none.

        Raises:
            DamagedConversationError: It is not as graphkeep wrote it.
            ValueError: `conversation_id` is not 1 to 512 bytes of UTF-8 without NUL.
        """
        found = await self.read(conversation_id)
        return None if found is None else found[0]

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """The records, or those with this scope, last saved first; one that is damaged is left out
        with a warning.
        """
        return await self.records(ConversationQuery(scope=scope, limit=limit))

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries, in one atomic step.

        If a run was left half-way in the conversation, its messages become a branch: what goes on
        without it does not lose it.

        Raises:
            ConversationConflict: The stored record has another revision, or an entry that this one
                stands on is gone. Nothing was written.
            LossyStateError: A message would not come back as it is; names message, part and tool.
                Nothing was written.
        """
        lost = self._lost.get(expected_revision or '')
        follows = {record.head_id, *(entry.parent_id for entry in new_entries)}
        if lost is not None and lost not in follows:
            left = [tip for tip in record.branches if tip != lost]
            record = replace(record, branches=[*left, lost])
        await self.put(record, new_entries, expected_revision=expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and the messages that no other one reaches, in one atomic step.

        Raises:
            ConversationConflict: No record with `expected_revision` is stored.
        """
        if not await self.store.delete_conversation(conversation_id, revision=expected_revision):
            raise ConversationConflict(conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """One message.

        Raises:
            LookupError: There is none with this id.
            UnreadableMessageError: This version of pydantic-ai cannot read it.
        """
        found = await self._find_entries(EntriesQuery(head_id=entry_id, limit=1))
        (entry,) = found.entries
        return _entry(entry, self.codec.load(entry, found.blobs))

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """The entries up to `head_id`, oldest first, or the last `limit` of them: one query; of a
        long history where the database is another process, one for each few hundred.

        Raises:
            LookupError: There is none with this id, or one before it is gone.
            UnreadableMessageError: This version of pydantic-ai cannot read one of them, and
                `on_unreadable` is `raise`.
        """
        if head_id is None:
            return []
        return await read_back(
            self._find_entries, self.loaded, head_id, limit=limit, stretch=self.store.stretch
        )

    # --- for `KeepRun` ----------------------------------------------------------------------------

    async def read(
        self, conversation_id: str
    ) -> tuple[ConversationRecord, Unfinished | None] | None:
        """The record of a conversation, and the run that is under way in it."""
        rows = await self.store.find_conversations(
            ConversationQuery(conversation_id=conversation_id, limit=1)
        )
        return self._known(rows[0]) if rows else None

    async def put(
        self,
        record: ConversationRecord,
        new_entries: Sequence[ConversationEntry] = (),
        *,
        expected_revision: str | None,
        unfinished: Unfinished | None = None,
        stays: float = 0.0,
    ) -> None:
        """Write a record, the run under way in it, and new entries. As `write_record`."""
        entries: list[StoredEntry] = []
        blobs: dict[str, bytes] = {}
        for number, entry in enumerate(new_entries):
            stored = self.codec.dump(
                entry.message,
                where=f'new message {number} of conversation {record.conversation_id!r}',
            )
            blobs.update(stored.blobs)
            entries.append(
                StoredEntry(
                    entry_id=entry.id,
                    parent_id=entry.parent_id,
                    data=stored.data,
                    library=stored.library,
                    places=stored.places,
                )
            )
        write = ConversationWrite(
            conversation=row_of(record, unfinished),
            expected_revision=expected_revision,
            entries=entries,
            blobs=blobs,
            # Not while somebody works on it.
            ttl=None if self._ttl is None else max(self._ttl, stays),
        )
        if not await self.store.write_conversation(write):
            raise ConversationConflict(record.conversation_id)
        self._lost.pop(expected_revision or '', None)
        if self._ttl is not None and time.monotonic() > self._pruned_at + _PRUNE_EVERY:
            self._pruned_at = time.monotonic()
            await self.prune()

    async def prune(self) -> int:
        """Remove the conversations whose time is up. They are not there for anybody since then;
        this frees what they take. A save does it once a minute, if a `ttl` is set.

        Returns:
            How many.
        """
        removed = 0
        query = ConversationQuery(expired=True, limit=_PRUNE_PAGE)
        while True:
            expired = await self.store.find_conversations(query)
            gone = [
                await self.store.delete_conversation(row.conversation_id, revision=row.revision)
                for row in expired
            ]
            removed += sum(gone)
            if len(expired) < _PRUNE_PAGE or not any(gone):
                return removed

    # --- reading ----------------------------------------------------------------------------------

    def _known(self, row: StoredConversation) -> tuple[ConversationRecord, Unfinished | None]:
        record, unfinished = record_of(row)
        # Upstream reads a record before it replaces it. It knows of no run that is under way, and
        # of no message that was left out at the end of a history.
        lost = record.head_id if self._skip else None
        if unfinished is not None and unfinished.count:
            lost = unfinished.tip
        if lost is not None:
            self._lost[record.revision] = lost
            while len(self._lost) > _REMEMBERED:
                self._lost.pop(next(iter(self._lost)))
        return record, unfinished

    async def records(self, query: ConversationQuery) -> list[ConversationRecord]:
        """Matching records; one that is damaged is left out with a warning."""
        if query.limit == 0:
            return []
        records: list[ConversationRecord] = []
        for row in await self.store.find_conversations(query):
            try:
                records.append(self._known(row)[0])
            except (DamagedConversationError, FormatVersionError) as e:
                logger.warning('left out of a list of conversations: %s', e)
        return records

    async def in_scope(self, conversation_id: str, scope: str | None) -> ConversationRecord | None:
        """The record of a conversation, unless it has another scope."""
        record = await self.read_record(conversation_id)
        return record if record is None or scope in (None, record.scope) else None

    async def is_current(self, record: ConversationRecord) -> bool:
        """Whether nobody has changed a record since: then what it stands on has to be there."""
        current = await self.read_record(record.conversation_id)
        return current is not None and current.revision == record.revision

    async def find_part(
        self, conversation_id: str, *, scope: str | None, **part: int | None
    ) -> StoredEntries | None:
        """Part of the history of a conversation; `None` if there is none with this id and scope.

        Args:
            conversation_id: The conversation.
            scope: Its scope; any if `None`.
            **part: As for `EntriesQuery`.
        """
        while True:
            record = await self.in_scope(conversation_id, scope)
            if record is None:
                return None
            if record.head_id is None:
                return StoredEntries(Line(), {})
            query = replace(EntriesQuery(head_id=record.head_id), **part)
            found = await self.store.find_entries(query)
            if found is not None:
                return found
            if await self.is_current(record):
                raise DamagedConversationError(entry_id=record.head_id, reason='it is missing')

    async def _find_entries(self, query: EntriesQuery) -> StoredEntries:
        found = await self.store.find_entries(query)
        if found is None:
            reason = 'it is missing, or was deleted while the history was read'
            raise DamagedConversationError(entry_id=query.head_id, reason=reason)
        return found

    def loaded(self, found: StoredEntries) -> list[ConversationEntry]:
        """The entries with their messages; what cannot be read as `on_unreadable` says."""
        try:
            messages = self.codec.load_all(found.entries, found.blobs)
        except UnreadableMessageError:
            if not self._skip:
                raise
            return self._readable(found)
        line = found.entries
        return [
            ConversationEntry(id=entry_id, parent_id=parent_id, message=message)
            for entry_id, parent_id, message in zip(line.ids, line.parents, messages, strict=True)
        ]

    def _readable(self, found: StoredEntries) -> list[ConversationEntry]:
        entries: list[ConversationEntry] = []
        for entry in found.entries:
            try:
                entries.append(_entry(entry, self.codec.load(entry, found.blobs)))
            except UnreadableMessageError as e:
                logger.warning('left out of a history: %s', e)
        return entries


def _entry(entry: StoredEntry, message: ModelMessage) -> ConversationEntry:
    return ConversationEntry(id=entry.entry_id, parent_id=entry.parent_id, message=message)
