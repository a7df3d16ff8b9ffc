"""The part of the port that speaks of conversations: checks what goes in, and tries again."""

from __future__ import annotations

from .conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from .port import Port, may_be_stored
from .runs import check_count, check_name

__all__ = ('ConversationPort',)


class ConversationPort(Port):
    """Conversations, for front ends: `graphkeep.agents` has the one for people."""

    @property
    def stretch(self) -> int | None:
        """Most entries of a long history to ask for at once; all of them if `None`."""
        return self._stretch

    async def find_conversations(self, query: ConversationQuery) -> list[StoredConversation]:
        """Find conversations, last written first.

        Raises:
            ValueError: An id or a scope that cannot be stored was asked for.
            DamagedConversationError: The one that was asked for by its id cannot be read.
        """
        check_name(query.conversation_id, 'conversation_id')
        check_name(query.scope, 'scope')
        if query.limit is not None:
            check_count(query.limit, 'limit')
        await self.open()
        return list(await self._retrying(lambda: self._conversations(query)))

    async def find_entries(self, query: EntriesQuery) -> StoredEntries | None:
        """A part of a history, oldest first; `None` if there is no entry `head_id`.

        Raises:
            ValueError: An id that cannot be stored was asked for.
            DamagedConversationError: An entry, or the chain, is not as it was written.
        """
        check_name(query.head_id, 'entry_id')
        await self.open()
        return await self._retrying(lambda: self._entries(query))

    async def write_conversation(self, write: ConversationWrite) -> bool:
        """Write a conversation and its new entries, in one atomic step.

        Returns:
            Whether it went through: if not, it is not at `expected_revision`, or an entry that it
            stands on is gone. Nothing was written then.

        Raises:
            ValueError: An id or a scope cannot be stored, or an entry comes twice, or before its
                parent.
        """
        _check(write)
        await self.open()
        tries: list[None] = []

        async def attempt() -> bool:
            tries.append(None)
            return await self._write_conversation(write)

        went_through = await self._retrying(attempt)
        if went_through or len(tries) == 1 or not write.entries:
            return went_through
        # An earlier attempt, whose reply was lost, may have gone through, and somebody has written
        # after it. Only that attempt can have brought our entries.
        newest = EntriesQuery(head_id=write.entries[-1].entry_id, limit=1)
        return await self._retrying(lambda: self._entries(newest)) is not None

    async def delete_conversation(self, conversation_id: str, *, revision: str) -> bool:
        """Remove a conversation that has this revision, and what only it needs.

        Returns:
            Whether there was one.
        """
        check_name(conversation_id, 'conversation_id')
        if not may_be_stored(revision):
            return False
        await self.open()
        tries: list[None] = []

        async def attempt() -> bool:
            tries.append(None)
            return await self._delete_conversation(conversation_id, revision)

        if await self._retrying(attempt):
            return True
        # Gone at a later try: the earlier one removed it, and only its reply was lost.
        here = ConversationQuery(conversation_id=conversation_id)
        return len(tries) > 1 and not await self._retrying(lambda: self._conversations(here))


def _check(write: ConversationWrite) -> None:
    row = write.conversation
    check_name(row.conversation_id, 'conversation_id')
    check_name(row.revision, 'revision')
    check_name(row.scope, 'scope')
    for tip in row.tips:
        check_name(tip, 'entry_id')
    if row.updated_at.tzinfo is None:
        raise ValueError('updated_at must be an aware datetime')
    if write.ttl is not None and not 0 <= write.ttl < 1e10:
        raise ValueError(f'ttl must be a number of seconds from 0 on, got {write.ttl!r}')
    later = {entry.entry_id for entry in write.entries}
    for entry in write.entries:
        check_name(entry.entry_id, 'entry_id')
        check_name(entry.parent_id, 'parent_id')
        if entry.entry_id not in later:
            raise ValueError(f'entry {entry.entry_id!r} comes twice')
        if entry.parent_id in later:
            raise ValueError(f'entry {entry.entry_id!r} comes before the one it follows')
        later.discard(entry.entry_id)
        if missing := set(entry.hashes) - write.blobs.keys():
            raise ValueError(f'entry {entry.entry_id!r} needs {missing!r:.80}, which is not given')
