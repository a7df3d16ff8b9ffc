"""What a tool has returned, as it is kept until the next request has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.messages import (
    ModelRequest,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)

from .messages import MessageCodec

__all__ = ('NO_TIME', 'part_as_json', 'return_as_json', 'return_of')

NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""For parts that are made to be kept, and are the same whenever that is."""


def return_as_json(codec: MessageCodec, call: ToolCallPart, value: Any) -> Any:
    """What a tool has returned, as JSON; `None` if that cannot be kept for itself.

    Raises:
        LossyStateError: It would not come back as it is.
    """
    if not isinstance(value, ToolReturn):
        return part_as_json(codec, _part(call, value))
    value = cast('ToolReturn[Any]', value)
    tools = getattr(value, 'tools', None)
    known = _wrapped(value.return_value, value.content, value.metadata, tools)
    if known != value:
        return None
    more: list[Any] = []
    if value.content is not None:
        more.append(UserPromptPart(value.content, timestamp=NO_TIME))
    part = _part(call, value.return_value, metadata=value.metadata)
    return {'wrapped': True, 'tools': tools, 'message': _message(codec, part, *more)}


def part_as_json(codec: MessageCodec, part: ToolReturnPart) -> Any:
    """As `return_as_json`, of what has become a part of a request already."""
    return {'wrapped': False, 'message': _message(codec, part)}


def return_of(codec: MessageCodec, call: ToolCallPart, kept: Any) -> Any:
    """What the two above made JSON of."""
    message = codec.from_json(kept['message'], of=f'return of {call.tool_call_id}')
    returned, *more = message.parts
    value = cast('ToolReturnPart', returned)
    if not kept['wrapped']:
        return value.content
    content = cast('UserPromptPart', more[0]).content if more else None
    return _wrapped(value.content, content, value.metadata, kept.get('tools'))


def _part(call: ToolCallPart, content: Any, *, metadata: Any = None) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=call.tool_name,
        content=content,
        tool_call_id=call.tool_call_id,
        metadata=metadata,
        timestamp=NO_TIME,
    )


def _wrapped(value: Any, content: Any, metadata: Any, tools: Any) -> ToolReturn[Any]:
    made = ToolReturn[Any](value, content=content, metadata=metadata)
    # 1.x does not have them.
    return made if tools is None else replace(cast('Any', made), tools=tools)


def _message(codec: MessageCodec, part: ToolReturnPart, *more: Any) -> Any:
    where = f'what tool {part.tool_name!r} has returned'
    return codec.as_json(ModelRequest(parts=[part, *more]), where=where)
