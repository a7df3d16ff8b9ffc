"""One leg of an agent's run, as it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, make_dataclass
from functools import lru_cache
from typing import Any, cast

from pydantic_ai import AgentRunResult, DeferredToolRequests, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from .plain import REQUESTS, USAGE, as_plain, requests_as_json

__all__ = ('Leg', 'leg_type', 'messages_of', 'pack', 'requests_of', 'spent', 'usage_of')


@dataclass
class Leg:
    """What one `agent.run` came to."""

    shared: int
    """How many of the messages of the leg before begin its own: those are not kept again."""
    messages: list[ModelMessage]
    """The others."""
    new: int
    """Of the first leg: how many messages are the given history."""
    usage: dict[str, Any]
    """Of this leg alone."""
    output: list[Any]
    """The output, if it was the last leg."""
    deferred: dict[str, Any] | None
    """Otherwise what has to be answered. Messages do not tell what kind of call it is."""


@lru_cache(maxsize=256)
def leg_type(output: Any) -> type[Leg]:
    """The type of legs with this type of output: a class, for which codecs are made once."""
    own = [('output', list[output])]
    return cast(
        'type[Leg]', make_dataclass('Leg', own, bases=(Leg,), namespace={'__module__': __name__})
    )


def pack(
    result: AgentRunResult[Any],
    before: Sequence[ModelMessage],
    usage: RunUsage,
    type_: type[Leg],
) -> Leg:
    """What is to be kept of a leg.

    Args:
        result: What `Agent.run` gave.
        before: The messages of the leg before.
        usage: What this leg has used.
        type_: The class of the leg.

    Raises:
        UnexpectedModelBehavior: Several deferred calls have the same id.
    """
    messages = result.all_messages()
    new = len(messages) - len(result.new_messages())
    messages = as_plain(messages)
    shared = 0
    while shared < min(len(before), len(messages)) and before[shared] == messages[shared]:
        shared += 1
    output = result.output
    deferred = None
    if isinstance(output, DeferredToolRequests):
        _check_ids(output)
        deferred = requests_as_json(output)
    return type_(
        shared=shared,
        messages=messages[shared:],
        new=new,
        usage=USAGE.dump_python(usage, mode='json'),
        output=[output] if deferred is None else [],
        deferred=deferred,
    )


def _check_ids(requests: DeferredToolRequests) -> None:
    # 1.x would take the answer to one for an answer to all of them.
    ids = Counter(call.tool_call_id for call in (*requests.approvals, *requests.calls))
    twice = [each for each, times in ids.items() if times > 1]
    if twice:
        raise UnexpectedModelBehavior(
            f'Several tool calls that need an answer have the same id: {twice!r:.200}'
        )


def messages_of(leg: Leg, before: Sequence[ModelMessage]) -> list[ModelMessage]:
    """All messages at the end of a leg."""
    return [*before[: leg.shared], *leg.messages]


def usage_of(leg: Leg) -> RunUsage:
    """What a leg has used."""
    return USAGE.validate_python(leg.usage)


def requests_of(leg: Leg) -> DeferredToolRequests | None:
    """What has to be answered after a leg; `None` if it was the last one."""
    return None if leg.deferred is None else REQUESTS.validate_python(leg.deferred)


def spent(after: RunUsage, before: RunUsage) -> RunUsage:
    """The difference of two usages."""
    subtract = getattr(after, '__sub__', None)
    if subtract is not None:  # 2.x
        return cast('RunUsage', subtract(before))
    difference = copy(after)
    for each in fields(after):
        value = getattr(after, each.name)
        if isinstance(value, int):
            setattr(difference, each.name, value - getattr(before, each.name))
    was = before.details
    details = {name: count - was.get(name, 0) for name, count in after.details.items()}
    difference.details = {name: count for name, count in details.items() if count}
    return difference
