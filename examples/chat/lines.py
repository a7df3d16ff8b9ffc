"""What is shown of a chat: of its messages, and of an answer while it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic_ai import AgentRunResultEvent
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

__all__ = ('Line', 'heard', 'lines', 'title')


@dataclass(frozen=True)
class Line:
    """Something that is shown."""

    kind: Literal['user', 'text', 'call', 'return', 'end']
    """Who says it. `end` is an answer that is complete: its whole text."""
    text: str


def lines(message: ModelMessage) -> Iterator[Line]:
    """What is shown of a message."""
    for part in message.parts:
        match part:
            case UserPromptPart():
                yield Line('user', str(part.content))
            case TextPart():
                yield Line('text', part.content)
            case ToolCallPart():
                yield _call(part)
            case ToolReturnPart():
                yield _return(part)
            case _:
                pass


def heard(event: AgentStreamEvent | AgentRunResultEvent[str]) -> Line | None:
    """What is shown of an event; of many nothing."""
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            return Line('text', text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return Line('text', text)
        case FunctionToolCallEvent():
            return _call(event.part)
        case FunctionToolResultEvent():
            return _return(event.part)
        case AgentRunResultEvent():
            return Line('end', event.result.output)
        case _:
            return None


def title(first: ModelMessage | None) -> str:
    """A chat is called by what was said first."""
    said = [line.text for line in lines(first)] if first is not None else []
    return said[0][:60] if said else 'a new chat'


def _call(part: ToolCallPart) -> Line:
    args = ', '.join(f'{name}={value!r}' for name, value in part.args_as_dict().items())
    return Line('call', f'{part.tool_name}({args})')


def _return(part: ToolReturnPart) -> Line:
    return Line('return', f'{part.tool_name} → {part.model_response_str()}')
