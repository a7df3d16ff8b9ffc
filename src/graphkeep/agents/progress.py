"""How far an agent's run has come, and where that is kept: with the task whose step it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from ..scope import Scope, once
from .messages import MessageCodec, OnLossy
from .plain import USAGE

__all__ = ('Came', 'InTask', 'Progress', 'Started', 'taken_back')

_NEVER_APART = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """How a run was started by its caller."""

    run_id: str
    conversation_id: str
    history: Sequence[ModelMessage]
    """The messages it was given."""
    unsaved: Sequence[ModelMessage] | None = None
    """Of a conversation: those at its end that its store does not have; `None` if that is not
    known."""
    revision: str | None = None
    """Of a conversation: the revision it was loaded with."""
    prompt: ModelRequest | None = None
    """The prompt alone, as a request."""
    has_results: bool = False
    """Whether it was given results of deferred tools."""
    decided: Mapping[str, str] = field(default_factory=dict[str, str])
    """What these are, by the id of the call: `approved`, `denied` or `result`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Came:
    """How far a run has come."""

    run_id: str
    conversation_id: str
    messages: Sequence[ModelMessage] = ()
    """What it has added to the history, in its final form."""
    pending: ModelRequest | None = None
    """What it will send next: the model adds to it when it does."""
    returns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What tools have returned since the last message, as JSON, by the id of the call."""
    usage: RunUsage = field(default_factory=RunUsage)
    """What it has used."""
    step: int = 0
    """Requests to the model."""
    retries: int = 0
    """How often its output was refused."""
    prompt: ModelRequest | None = None
    """The prompt that it began with."""
    history: Sequence[ModelMessage] | None = None
    """What comes before, where the caller has not given it."""
    spent: RunUsage | None = None
    """What the conversation has used before, where the caller has not given it."""


class Progress(Protocol):
    """Where the progress of a run is kept. After an error of `begin` nothing else is called."""

    @property
    def codec(self) -> MessageCodec:
        """How messages are stored."""
        ...

    async def begin(self, started: Started) -> Came:
        """How far the run has come already, if it was started before and has not ended."""
        ...

    async def commit(self, came: Came) -> None:
        """Keep what has come since the last commit: `messages` are those that are new."""
        ...

    async def returned(self, call_id: str, value: Any) -> None:
        """Keep what a tool has returned, as JSON."""
        ...

    async def end(self, came: Came, deferred: DeferredToolRequests | None) -> str | None:
        """The run has ended: as `commit`, for the last time. Gives the new revision."""
        ...

    async def leave(self, *, refused: bool = False) -> None:
        """The run has been left by an exception: whoever comes next may go on.

        Args:
            refused: Because of the last response: it is taken back, so that the model is asked
                again.
        """
        ...


class InTask:
    """The progress of a run inside of a step: values of `once`, which go when the step ends."""

    def __init__(self, scope: Scope, name: str, *, on_lossy: OnLossy) -> None:
        """Make it.

        Args:
            scope: The task.
            name: Names the run in its step.
            on_lossy: As for `KeepRun`.
        """
        self.codec = MessageCodec(on_lossy=on_lossy, inline=_NEVER_APART)
        """How messages are stored."""
        self._scope = scope
        self._key = f'keep-run:{name}'
        self._steps = 0
        self._calls: list[str] = []

    async def begin(self, started: Started) -> Came:
        """As `Progress.begin`. What the caller gives is the same on every attempt, if not in its
        bytes.
        """
        messages: list[ModelMessage] = []
        came: dict[str, Any] = {'run': started.run_id, 'conversation': started.conversation_id}
        while self._scope.has_kept(self._step_key):
            came = await once(self._step_key, _never, type=Any)
            messages += [self._load(data) for data in came['messages']]
            refused = self._scope.has_kept(f'{self._step_key}:refused')
            self._steps += 1
            if refused:
                messages, request = taken_back(messages)
                came['pending'] = request and self._dump(request, 'next request')
        returns: dict[str, Any] = {}
        while self._scope.has_kept(self._return_key(len(returns))):
            call_id, value = await once(self._return_key(len(returns)), _never, type=Any)
            returns[call_id] = value
        self._calls = [*returns]
        pending = came.get('pending')
        return Came(
            run_id=came['run'],
            conversation_id=came['conversation'],
            messages=messages,
            pending=None if pending is None else cast('ModelRequest', self._load(pending)),
            returns=returns,
            usage=USAGE.validate_python(came.get('usage', {})),
            step=came.get('step', 0),
            retries=came.get('retries', 0),
            prompt=started.prompt,
        )

    async def commit(self, came: Came) -> None:
        """As `Progress.commit`."""
        kept = {
            'run': came.run_id,
            'conversation': came.conversation_id,
            'messages': [self._dump(message, 'message') for message in came.messages],
            'pending': None if came.pending is None else self._dump(came.pending, 'next request'),
            'usage': USAGE.dump_python(came.usage, mode='json'),
            'step': came.step,
            'retries': came.retries,
        }
        await once(self._step_key, lambda: kept, type=Any)
        self._steps += 1
        self._calls = []

    async def returned(self, call_id: str, value: Any) -> None:
        """As `Progress.returned`."""
        number = len(self._calls)
        self._calls.append(call_id)
        await once(self._return_key(number), lambda: [call_id, value], type=Any)

    async def end(self, came: Came, deferred: DeferredToolRequests | None) -> None:
        """As `Progress.end`: the attempt may yet die, and then the last response is there."""
        if came.messages:
            await self.commit(came)

    async def leave(self, *, refused: bool = False) -> None:
        """As `Progress.leave`: the claim of the run says who may go on. Whoever catches the error
        in this attempt may too.
        """
        self._scope.taken.discard(self._key)
        if refused and self._steps:
            await once(f'{self._key}:{self._steps - 1}:refused', lambda: True, type=bool)

    @property
    def _step_key(self) -> str:
        return f'{self._key}:{self._steps}'

    def _return_key(self, number: int) -> str:
        return f'{self._key}:{self._steps}:return-{number}'

    def _dump(self, message: ModelMessage, what: str) -> Any:
        where = f'{what} of the agent in step {self._scope.task.node_id!r}'
        return self.codec.as_json(message, where=where)

    def _load(self, data: Any) -> ModelMessage:
        return self.codec.from_json(data, of=self._key)


def taken_back(
    messages: Sequence[ModelMessage],
) -> tuple[list[ModelMessage], ModelRequest | None]:
    """Messages without the last response, and the request that it answered: it is sent again."""
    before = list(messages)
    while before and not isinstance(before.pop(), ModelResponse):
        pass
    request = before[-1] if before else None
    if not isinstance(request, ModelRequest):
        return before, None
    return before[:-1], request


def _never() -> Any:
    raise AssertionError('a kept value is not made again')
