"""Messages and conversations for the tests of what agents say."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from graphkeep.agents import Conversations


def ask(content: Any) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(content)])


def say(content: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(content)])


def turns(*numbers: int) -> list[ModelMessage]:
    """A question and an answer for each number."""
    return [message for n in numbers for message in (ask(f'question {n}'), say(f'answer {n}'))]


def new_id() -> str:
    """An id, or a scope, that is in no database."""
    return f'chat-{uuid.uuid4().hex}'


def conversation(*messages: ModelMessage, name: str | None = None) -> Conversation:
    """One that no store has."""
    return Conversation(
        messages=list(messages),
        conversation_id=new_id() if name is None else name,
        usage=RunUsage(requests=len(messages) // 2),
    )


async def load(kept: Conversations, name: str, limit: int | None = None) -> Conversation:
    loaded = await kept.load(name, limit=limit)
    assert loaded is not None
    return loaded


async def messages(kept: Conversations, name: str) -> list[ModelMessage]:
    return (await load(kept, name)).messages


async def ids(kept: Conversations, name: str) -> list[str]:
    entries = await kept.load_entries(name)
    assert entries is not None
    return [entry.id for entry in entries]


async def branches(kept: Conversations, name: str) -> list[list[ModelMessage]]:
    record = await kept.read_record(name)
    assert record is not None
    lines = [await kept.read_history(tip) for tip in record.branches]
    return [[entry.message for entry in line] for line in lines]
