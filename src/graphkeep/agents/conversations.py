"""`Conversations`: pydantic-ai's `ConversationStore` on every store of graphkeep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic_ai import AgentRunResult
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)
from pydantic_ai.exceptions import UserError

from ..conversations import ConversationQuery
from ..errors import DamagedConversationError
from .primitives import OnUnreadable, Primitives, ScopeConflict
from .records import new_revision

__all__ = ('Conversations', 'OnUnreadable', 'ScopeConflict')


class Conversations(Primitives):
    """Conversations of pydantic-ai, in the tables or keys of a store beside its runs.

    ```python
    conversations = store.conversations
    conversation = await conversations.load('chat-1', scope='ada') or Conversation(
        conversation_id='chat-1'
    )
    result = await agent.run(prompt, conversation=conversation)
    await conversations.save(result, scope='ada')
    ```

    All of upstream's semantics hold: `load`, `save`, `branch`, `fork`, `list_conversations`,
    `delete`. A save is one atomic write: the record and its new messages, or nothing. `delete`
    removes the messages that no other conversation's history or branches reach, in the same step.
    """

    def __repr__(self) -> str:
        return f'<Conversations of {self.store!r}>'

    # --- upstream's, where something may change meanwhile -----------------------------------------

    async def delete(self, conversation_id: str, *, scope: str | None = None) -> None:
        """Delete a conversation, and the messages that no other one reaches: in one atomic step,
        also where some of it is damaged.

        With `scope`, a conversation that was saved with another one is left as it is.
        """
        query = ConversationQuery(conversation_id=conversation_id, limit=1)
        for row in await self.store.find_conversations(query):
            if scope in (None, row.scope) and not await self.store.delete_conversation(
                conversation_id, revision=row.revision
            ):
                await self.delete(conversation_id, scope=scope)  # saved since

    async def save(
        self, conversation: Conversation | AgentRunResult[Any], *, scope: str | None = None
    ) -> list[ConversationEntry]:
        """As upstream's; another scope is a `ScopeConflict`."""
        try:
            return await super().save(conversation, scope=scope)
        except ConversationConflict as e:
            record = await self.read_record(e.conversation_id)
            if record is not None and scope not in (None, record.scope):
                raise ScopeConflict(e.conversation_id, scope) from None
            raise

    async def branch(
        self,
        conversation_id: str,
        *,
        at: int | None = None,
        from_entry: str | None = None,
        expected_revision: str | None,
        scope: str | None = None,
    ) -> Conversation:
        """As upstream's; a change meanwhile is a `ConversationConflict` wherever it is noticed."""
        try:
            return await super().branch(
                conversation_id,
                at=at,
                from_entry=from_entry,
                expected_revision=expected_revision,
                scope=scope,
            )
        except DamagedConversationError:
            record = await self.read_record(conversation_id)
            if record is None or record.revision != expected_revision:
                raise ConversationConflict(conversation_id) from None
            raise

    async def fork(
        self,
        conversation_id: str,
        *,
        at: int | None = None,
        from_entry: str | None = None,
        new_conversation_id: str | None = None,
        scope: str | None = None,
        source_scope: str | None = None,
    ) -> Conversation:
        """As upstream's; of a conversation that changes meanwhile it is looked at again."""
        tries = 3
        while True:
            tries -= 1
            try:
                return await super().fork(
                    conversation_id,
                    at=at,
                    from_entry=from_entry,
                    new_conversation_id=new_conversation_id,
                    scope=scope,
                    source_scope=source_scope,
                )
            except DamagedConversationError:
                if not tries:
                    raise

    # --- what upstream does not have --------------------------------------------------------------

    async def list_conversations(
        self,
        *,
        scope: str | None = None,
        limit: int | None = None,
        after: ConversationRecord | None = None,
    ) -> list[ConversationRecord]:
        """The stored conversations, last saved first.

        Args:
            scope: Only those that were saved with this scope.
            limit: At most this many.
            after: The last record of the page before.

        Raises:
            UserError: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise UserError('`limit` must not be negative.')
        place = None if after is None else (after.updated_at, after.conversation_id)
        return await self.records(ConversationQuery(scope=scope, limit=limit, after=place))

    async def count(self, conversation_id: str, *, scope: str | None = None) -> int | None:
        """How many messages a conversation has, without loading them; `None` if there is none with
        this id (and scope).
        """
        newest = await self.find_part(conversation_id, scope=scope, limit=1)
        if newest is None:
            return None
        return newest.entries[0].position + 1 if newest.entries else 0

    async def load_range(
        self,
        conversation_id: str,
        start: int = 0,
        stop: int | None = None,
        *,
        scope: str | None = None,
    ) -> list[ConversationEntry] | None:
        """Part of a history, as a slice: the others are not loaded.

        Args:
            conversation_id: The conversation.
            start: How many messages come before the first one.
            stop: Before which message to stop; the end if omitted.
            scope: Only if it was saved with this scope.

        Returns:
            The entries; `None` if there is no such conversation.

        Raises:
            ValueError: `start` or `stop` is negative.
        """
        if start < 0 or (stop is not None and stop < 0):
            raise ValueError(f'start and stop count from 0, got {start} and {stop}')
        found = await self.find_part(conversation_id, scope=scope, start=start, stop=stop)
        return None if found is None else self.loaded(found)

    async def clear(self, conversation_id: str, *, scope: str | None = None) -> bool:
        """Remove all messages and branches of a conversation, and keep it: its id, its scope and
        its usage, which has been spent. Messages that others share stay theirs.

        Returns:
            Whether there was one with this id (and scope).
        """
        while True:
            record = await self.in_scope(conversation_id, scope)
            if record is None:
                return False
            empty = ConversationRecord(
                conversation_id=conversation_id,
                head_id=None,
                usage=record.usage,
                scope=record.scope,
                forked_from=record.forked_from,
            )
            try:
                await self.put(empty, expected_revision=record.revision)
            except ConversationConflict:
                continue  # saved since: its scope is looked at again
            return True

    async def unfinished(self, conversation_id: str, *, scope: str | None = None) -> str | None:
        """The id of the run of an agent that is under way in a conversation, or was left half-way;
        `None` if there is none, or no such conversation.
        """
        found = await self.read(conversation_id)
        if found is None or found[1] is None or scope not in (None, found[0].scope):
            return None
        return found[1].run_id

    async def discard(self, conversation_id: str, *, scope: str | None = None) -> bool:
        """Give up a run that was left half-way. Its messages stay, as a branch of the conversation.

        Returns:
            Whether there was one.
        """
        while True:
            found = await self.read(conversation_id)
            if found is None or found[1] is None or scope not in (None, found[0].scope):
                return False
            record = replace(found[0], revision=new_revision())
            try:
                await self.write_record(record, expected_revision=found[0].revision)
            except ConversationConflict:
                continue
            return True
