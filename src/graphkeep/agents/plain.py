"""Values of pydantic-ai as plain JSON, the same wherever they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError

__all__ = ('REQUESTS', 'USAGE', 'as_plain', 'requests_as_json')

# As upstream's own adapter, but what JSON has no number for is not made null without a word: it
# stays, and is refused.
_MESSAGES: TypeAdapter[list[ModelMessage]] = TypeAdapter(
    list[ModelMessage],
    config=ConfigDict(
        ser_json_bytes='base64', val_json_bytes='base64', ser_json_inf_nan='constants'
    ),
)
REQUESTS = TypeAdapter(DeferredToolRequests)
USAGE = TypeAdapter(RunUsage)


def as_plain(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Messages as they come back from pydantic-ai's own JSON."""
    messages = list(messages)
    try:
        return _MESSAGES.validate_json(_MESSAGES.dump_json(messages))
    except (PydanticSerializationError, ValueError, TypeError):
        return messages  # either they can be stored as they are, or it is said where they cannot


def requests_as_json(requests: DeferredToolRequests) -> dict[str, Any]:
    """What waits for an answer; its metadata as it is, since that can hold anything."""
    dumped = REQUESTS.dump_python(requests, mode='json', exclude={'metadata'})
    return {**dumped, 'metadata': requests.metadata}
