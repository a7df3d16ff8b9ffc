"""Asks for what an agent has deferred: one request a call, all of them in one pause."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic_ai import DeferredToolRequests
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolResults
from pydantic_core import from_json

from ..errors import RequestTimeoutError
from ..pausing import REQUIRED, Waiting
from ..scope import wait_for
from .answers import Approval, ExternalResult

__all__ = ('EXPIRED', 'PendingCall', 'Prompt', 'ask', 'check_prompt')

EXPIRED = 'Nobody has approved the tool call in time.'
"""What the model is told of an approval whose deadline has passed."""
_MOST_OF_NAME = 256
_MOST_OF_PROMPT = 2_000


def check_prompt(prompt: object) -> None:
    """Refuse what no prompt can be made from, before anything is paid.

    Raises:
        ValueError: It names something that a call has not.
        TypeError: It is neither a template nor a function.
    """
    if prompt is None or callable(prompt):
        return
    if not isinstance(prompt, str):
        raise TypeError(f'prompt= is a template or a function of a PendingCall, got {prompt!r:.80}')
    names = [field.name for field in fields(PendingCall)]
    try:
        prompt.format(**dict.fromkeys(names, ''))
    except (LookupError, ValueError, AttributeError) as e:
        known = ', '.join(f'{{{name}}}' for name in names)
        raise ValueError(
            f'prompt={prompt!r:.200} is no template of a call: {type(e).__name__}: {e}. It may '
            f'name {known}; write braces twice to have them.'
        ) from e


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingCall:
    """A tool call that has to be answered: the payload of its request."""

    tool_name: str
    """The tool."""
    args: Any
    """What the model calls it with, by name; the text itself where that is no JSON object."""
    tool_call_id: str
    """The id of the call, in its leg."""
    kind: Literal['approval', 'external', 'question']
    """`approval`: the tool runs if it may. `external`: it is made elsewhere, and its result is the
    answer. `question`: the same, and a person is asked (pydantic-ai 2.x)."""
    metadata: dict[str, Any] | None
    """What the tool has deferred the call with."""


Prompt: TypeAlias = str | Callable[[PendingCall], str | None]
"""What to ask a person: a template with the names of `PendingCall`, `'{tool_name}: {args}?'`, or
what makes it."""


class _Answered(NamedTuple):
    approvals: dict[str, Any]
    calls: dict[str, Any]


async def ask(
    requests: DeferredToolRequests,
    *,
    name: str,
    prompt: Prompt | None,
    timeout: float | timedelta | None,
) -> DeferredToolResults:
    """The answers to all of them.

    Args:
        requests: What an agent has deferred.
        name: Begins the names of the requests, each of which ends with the id of its call.
        prompt: What to ask; by default the call in brief.
        timeout: Until when each has to be answered. An approval that was not is a denial.

    Raises:
        Waiting: Not all are answered.
        RequestTimeoutError: One that is no approval was not answered in time.
    """
    answered = _Answered({}, {})
    unanswered: Waiting | RequestTimeoutError | None = None
    for call in _pending(requests):
        approves = call.kind == 'approval'
        late = Approval(approved=False, message=EXPIRED)
        try:
            answer = await wait_for(
                Approval if approves else ExternalResult,
                _request_name(name, call.tool_call_id),
                payload=_without_surrogates(asdict(call)),
                prompt=_prompt(prompt, call),
                timeout=timeout,
                default=late if approves and timeout is not None else REQUIRED,
            )
        except (Waiting, RequestTimeoutError) as e:
            # The others are asked in the same pause, and none has failed while one can be answered.
            if unanswered is None or isinstance(e, Waiting):
                unanswered = e
        else:
            where = answered.approvals if approves else answered.calls
            where[call.tool_call_id] = answer.meaning()
    if unanswered is not None:
        raise unanswered
    return requests.build_results(
        approvals=answered.approvals, calls=answered.calls, metadata=requests.metadata
    )


def _pending(requests: DeferredToolRequests) -> Iterator[PendingCall]:
    for call in requests.approvals:
        yield _call(requests, call, 'approval')
    kind_of = getattr(requests, 'kind', None)
    for call in requests.calls:
        # 1.x has no questions.
        yield _call(requests, call, kind_of(call.tool_call_id) if kind_of else 'external')


def _call(requests: DeferredToolRequests, call: ToolCallPart, kind: Any) -> PendingCall:
    return PendingCall(
        tool_name=call.tool_name,
        args=_args(call.args),
        tool_call_id=call.tool_call_id,
        kind=kind,
        metadata=requests.metadata.get(call.tool_call_id),
    )


def _args(args: Any) -> Any:
    if not isinstance(args, str):
        return args or {}
    try:
        read = from_json(args or '{}')
    except ValueError:
        return args
    return cast('Any', read) if isinstance(read, dict) else args


def _request_name(name: str, tool_call_id: str) -> str:
    """Unlike for any two ids, and storable whatever a model gives as an id."""
    plain = f'{name}:{tool_call_id}'
    fits = tool_call_id.isprintable() and len(plain.encode(errors='replace')) <= _MOST_OF_NAME
    if fits and not tool_call_id.startswith('#'):
        return plain
    digest = sha256(tool_call_id.encode(errors='surrogatepass')).hexdigest()
    return f'{name}:#{digest[:32]}'


def _prompt(prompt: Prompt | None, call: PendingCall) -> str | None:
    if callable(prompt):
        said = prompt(call)
    elif prompt is not None:
        said = prompt.format(**{**asdict(call), 'args': _brief(call.args)})
    else:
        said = _question(call)
    return cast('str | None', _without_surrogates(said))


def _question(call: PendingCall) -> str:
    shown = f'{call.tool_name}({_brief(call.args)})'
    if call.kind == 'approval':
        return f'May the agent call {shown}?'
    if call.kind == 'question':
        return f'The agent asks: {shown}'
    return f'The agent needs the result of {shown}.'


def _brief(args: Any) -> str:
    if isinstance(args, dict):
        pairs = cast('dict[str, Any]', args).items()
        text = ', '.join(f'{key}={_as_text(value)}' for key, value in pairs)
    else:
        text = str(args)
    if len(text) <= _MOST_OF_PROMPT:
        return text
    return f'{text[:_MOST_OF_PROMPT]}… ({len(text)} characters, all of them in the payload)'


def _as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _without_surrogates(value: Any) -> Any:
    """A model may send halves of characters, which no database takes."""
    if isinstance(value, str):
        return value.encode(errors='backslashreplace').decode()
    if isinstance(value, dict):
        pairs = cast('dict[Any, Any]', value).items()
        return {_without_surrogates(key): _without_surrogates(each) for key, each in pairs}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(each) for each in cast('list[Any]', value)]
    return value
