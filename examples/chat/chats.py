"""The chats of one user: all of graphkeep that a chat needs is on this page.

`KeepRun` loads a conversation and keeps what a run adds to it, step by step. `Conversations` does
the rest; its `scope` keeps each user to what is theirs.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from pydantic_ai import Agent, AgentRunEvents
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, UserPromptPart

from graphkeep import UnfinishedRunError
from graphkeep.agents import Conversations, KeepRun

__all__ = ('Chats', 'NoChatError', 'NothingToDoError')


class NoChatError(LookupError):
    """This user has no such chat."""


class NothingToDoError(RuntimeError):
    """There is no answer to go on with, or to give again."""


@dataclass(frozen=True, kw_only=True)
class Chats:
    """The chats of one user."""

    conversations: Conversations
    agent: Agent[None, str]
    user: str

    async def newest(self, limit: int = 50) -> list[ConversationRecord]:
        """The chats, last used first."""
        return await self.conversations.list_conversations(scope=self.user, limit=limit)

    async def new(self) -> str:
        """Begin an empty chat; gives its id."""
        chat_id = secrets.token_hex(4)
        await self.conversations.save(Conversation(conversation_id=chat_id), scope=self.user)
        return chat_id

    async def find(self, chat_id: str) -> ConversationRecord:
        """A chat. One of somebody else is not there."""
        record = await self.conversations.read_record(chat_id)
        if record is None or record.scope != self.user:
            raise NoChatError(f'You have no chat {chat_id!r}.')
        return record

    async def is_unfinished(self, chat_id: str) -> bool:
        """Whether an answer was left half-way, or is just being given."""
        return await self.conversations.unfinished(chat_id, scope=self.user) is not None

    async def history(
        self, chat_id: str, start: int = 0, stop: int | None = None
    ) -> list[ConversationEntry]:
        """The messages from `start` on, up to the one before `stop`."""
        await self.find(chat_id)
        return await self.conversations.load_range(chat_id, start, stop, scope=self.user) or []

    @asynccontextmanager
    async def say(self, chat_id: str, prompt: str) -> AsyncIterator[AgentRunEvents[str]]:
        """Say something, and hear the answer as it comes. Whoever leaves early can `resume`."""
        await self.find(chat_id)
        async with self._answer(chat_id, prompt) as events:
            yield events

    @asynccontextmanager
    async def resume(self, chat_id: str) -> AsyncIterator[AgentRunEvents[str]]:
        """Go on with an answer that was left half-way. Nothing that is kept is done again."""
        await self.find(chat_id)
        if not await self.is_unfinished(chat_id):
            raise NothingToDoError('No answer was left half-way in this chat.')
        async with self._answer(chat_id, None) as events:
            yield events

    @asynccontextmanager
    async def again(self, chat_id: str) -> AsyncIterator[AgentRunEvents[str]]:
        """Have the last answer given again. The one that was there stays stored, as a branch."""
        record = await self.find(chat_id)
        if await self.is_unfinished(chat_id):
            raise UnfinishedRunError('The last answer is not there yet.', conversation_id=chat_id)
        history = await self.history(chat_id)
        asked = [n for n, entry in enumerate(history, start=1) if is_question(entry.message)]
        if not asked:
            raise NothingToDoError('Nothing was asked in this chat.')
        # The question stays, and is sent again: a process that dies here has not lost it.
        await self.conversations.branch(
            chat_id, at=asked[-1], expected_revision=record.revision, scope=self.user
        )
        async with self._answer(chat_id, None) as events:
            yield events

    def _answer(
        self, chat_id: str, prompt: str | None
    ) -> AbstractAsyncContextManager[AgentRunEvents[str]]:
        keep = KeepRun(self.conversations, scope=self.user)
        return self.agent.run_stream_events(prompt, conversation_id=chat_id, capabilities=[keep])

    async def fork(self, chat_id: str, at: int | None = None) -> str:
        """A chat of its own, which begins with the first `at` messages; gives its id."""
        await self.find(chat_id)
        for entry in await self.history(chat_id, at - 1, at) if at else ():
            if not isinstance(entry.message, ModelResponse) or entry.message.tool_calls:
                raise UserError(f'No answer ends with the first {at} messages.')
        forked = await self.conversations.fork(
            chat_id, at=at, new_conversation_id=secrets.token_hex(4), source_scope=self.user
        )
        return forked.conversation_id

    async def give_up(self, chat_id: str) -> bool:
        """Give an answer up that was left half-way: it becomes a branch."""
        await self.find(chat_id)
        return await self.conversations.discard(chat_id, scope=self.user)

    async def delete(self, chat_id: str) -> None:
        """Delete a chat. What its forks share with it stays theirs."""
        await self.find(chat_id)
        await self.conversations.delete(chat_id, scope=self.user)


def is_question(message: ModelMessage) -> bool:
    """Whether the user has said something in a message."""
    return any(isinstance(part, UserPromptPart) for part in message.parts)
