"""What a kept run of an agent gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.usage import RunUsage

__all__ = ('AgentResult',)

T_co = TypeVar('T_co', covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentResult(Generic[T_co]):
    """The result of `graphkeep.agents.run`: of all its legs together.

    It has the names of pydantic-ai's `AgentRunResult`. Messages are as JSON gives them back: a tool
    that returned a model or a tuple has its plain JSON there, as the LLM saw it.
    """

    output: T_co
    """The final output of the agent."""
    messages: tuple[ModelMessage, ...]
    """All messages, those of the given history first."""
    new: int
    """How many of them are the given history."""
    usage: RunUsage
    """Of all legs, and of the usage that was given."""
    legs: int
    """How often the agent ran: one more than it waited for answers."""

    def all_messages(self) -> list[ModelMessage]:
        """The given history and what came after it."""
        return list(self.messages)

    def new_messages(self) -> list[ModelMessage]:
        """The messages of this run, of all its legs, without the given history."""
        return list(self.messages[self.new :])

    def all_messages_json(self) -> bytes:
        """`all_messages` as JSON."""
        return ModelMessagesTypeAdapter.dump_json(self.all_messages())

    def new_messages_json(self) -> bytes:
        """`new_messages` as JSON."""
        return ModelMessagesTypeAdapter.dump_json(self.new_messages())

    @property
    def response(self) -> ModelResponse:
        """The last response of the model."""
        return next(m for m in reversed(self.messages) if isinstance(m, ModelResponse))
