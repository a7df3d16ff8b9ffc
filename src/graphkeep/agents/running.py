"""`run`: an agent inside of a step, leg by leg."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import Any, TypeVar, overload

from pydantic_ai import DeferredToolRequests
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.output import OutputSpec
from pydantic_ai.usage import RunUsage

from ..codec import Codec
from ..errors import LossyStateError
from ..scope import Scope, once, refuse_inside_once, running_scope
from .asking import Prompt, ask, check_prompt
from .keeping import current_leg
from .legs import Leg, leg_type, messages_of, pack, requests_of, spent, usage_of
from .outputs import output_of
from .result import AgentResult

__all__ = ('run',)

DepsT = TypeVar('DepsT')
T = TypeVar('T')

_MOST_OF_NAME = 128
_NO_DEPS: Any = None


@overload
async def run(
    agent: AbstractAgent[DepsT, T | DeferredToolRequests],
    user_prompt: str | Sequence[UserContent] | None = None,
    *,
    name: str = 'agent',
    output_type: None = None,
    message_history: Sequence[ModelMessage] | None = None,
    deps: DepsT = _NO_DEPS,
    usage: RunUsage | None = None,
    prompt: Prompt | None = None,
    timeout: float | timedelta | None = None,
    **options: Any,
) -> AgentResult[T]: ...


@overload
async def run(
    agent: AbstractAgent[DepsT, Any],
    user_prompt: str | Sequence[UserContent] | None = None,
    *,
    name: str = 'agent',
    output_type: OutputSpec[T | DeferredToolRequests],
    message_history: Sequence[ModelMessage] | None = None,
    deps: DepsT = _NO_DEPS,
    usage: RunUsage | None = None,
    prompt: Prompt | None = None,
    timeout: float | timedelta | None = None,
    **options: Any,
) -> AgentResult[T]: ...


async def run(
    agent: AbstractAgent[DepsT, Any],
    user_prompt: str | Sequence[UserContent] | None = None,
    *,
    name: str = 'agent',
    output_type: OutputSpec[Any] | None = None,
    message_history: Sequence[ModelMessage] | None = None,
    deps: DepsT = _NO_DEPS,
    usage: RunUsage | None = None,
    prompt: Prompt | None = None,
    timeout: float | timedelta | None = None,
    **options: Any,
) -> AgentResult[Any]:
    """Run an agent inside of a step; pause for tool calls to be approved, or to be made elsewhere.

    A call is one request, named `<name>:<leg>:<id of the call>`, with the fields of `PendingCall`
    as its payload; those of one leg are asked in one pause. An approval is answered with an
    `Approval` (or `true`, or `false`), a call that is made elsewhere with an `ExternalResult`. Then
    the agent goes on.

    What is kept in the step: the messages, the usage, the output. Never `deps`. An attempt after
    the answers or after a crash calls no model again for a leg that was kept; a leg that was under
    way is run again, with the tools in it. Let a tool use `graphkeep.once` for what must not happen
    twice.

    Agents may run beside each other in a step, under names of their own. Where one has to wait, the
    legs of the others are brought to their ends before the step pauses.

    The agent need not have `DeferredToolRequests` in its output type: it is added, unless the agent
    has output validators (pydantic-ai takes no other output type then; add it to the agent's own).

    Args:
        agent: The agent.
        user_prompt: As for `Agent.run`.
        name: Names this run of an agent in its step: the same on every attempt, and no other one's.
            1 to 128 bytes.
        output_type: As for `Agent.run`. A kept output is loaded as one of its types.
        message_history: The history of the conversation so far. It is kept with the first leg.
        deps: The dependencies, never stored.
        usage: Usage so far; what each leg uses is added to it. Limits count all of it.
        prompt: What to ask a person about a call.
        timeout: Seconds until a request expires (not those of `Agent.run` in 2.x). An approval that
            has expired is a denial, with a message that says so.
        **options: As for `Agent.run`, which gets them in each leg: `model`, `model_settings`,
            `usage_limits`, `toolsets`, `instructions`, ….

    Raises:
        RuntimeError: Not called from a step or node of a kept run, or inside of a `once`.
        ValueError: `name` or `prompt` is not what it may be, or another agent has run under the
            name in this attempt.
        TypeError: The output's types cannot be told, or an option is of no use here.
        UnstorableTypeError: An output of these types cannot be kept.
        LossyStateError: A message or the output would not come back as it is; the leg is not kept.
        RequestTimeoutError: A call that is made elsewhere was not answered in time.
    """
    scope = _scope_of(name)
    if 'conversation' in options:
        raise TypeError(
            'graphkeep.agents.run() keeps the conversation itself. In place of conversation= give '
            'message_history=conversation.messages (and its usage and conversation_id).'
        )
    check_prompt(prompt)
    output = output_of(agent, output_type)
    type_ = leg_type(output.type)
    Codec[Any](type_, path=f'agents.run(name={name!r})')  # found out before anything is paid
    options.setdefault('infer_name', False)  # it would be the name of a variable here
    options |= {'output_type': output.passed, 'deps': deps}
    begins: dict[str, Any] = {'user_prompt': user_prompt, 'message_history': message_history}
    total = RunUsage() if usage is None else usage
    messages: list[ModelMessage] = []
    number = new = 0
    with _taken(scope, name):
        while True:
            key = f'{name}:{number}'
            if scope.has_kept(key):
                leg = await once(key, _never, type=type_)
                total.incr(usage_of(leg))
            else:
                leg = await _to_its_end(
                    scope, _leg(agent, options | begins, messages, total, key, type_)
                )
            messages = messages_of(leg, messages)
            new = new if number else leg.new
            number += 1
            requests = requests_of(leg)
            if requests is None:
                return AgentResult(
                    output=leg.output[0],
                    messages=tuple(messages),
                    new=new,
                    usage=total,
                    legs=number,
                )
            results = await ask(requests, name=key, prompt=prompt, timeout=timeout)
            options = _without_beginnings(options)
            begins = {'message_history': messages, 'deferred_tool_results': results}


async def _leg(
    agent: AbstractAgent[Any, Any],
    options: dict[str, Any],
    before: Sequence[ModelMessage],
    total: RunUsage,
    key: str,
    type_: type[Leg],
) -> Leg:
    """Run the agent and commit the leg; gives it as a later attempt will see it.

    What it uses is added to the total, also if it fails.
    """
    was, used = deepcopy(total), deepcopy(total)
    own = RunUsage()
    named = current_leg.set(key)
    try:
        # Not inside of a `once`: so the tools may use it.
        result = await agent.run(**options, usage=used)
    finally:
        current_leg.reset(named)
        own = spent(used, was)
        total.incr(own)
    kept = pack(result, before, own, type_)
    try:
        return await once(key, lambda: kept, type=type_)
    except LossyStateError as e:
        raise LossyStateError(
            f'What the agent has done (leg {key!r}) cannot be kept: {e} What a tool returns has '
            'to be values that JSON can hold.',
            path=e.path,
        ) from e


async def _to_its_end(scope: Scope, leg: Coroutine[Any, Any, Leg]) -> Leg:
    """Await a leg. Where the step pauses beside it, which cancels this, the leg is kept before."""
    task = asyncio.ensure_future(leg)
    # Also where nothing cancels this: `asyncio.gather` leaves it behind.
    scope.last.add(task)
    task.add_done_callback(scope.last.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not scope.is_pausing:
            task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if not task.cancelled():
            task.exception()  # is of no interest any more: the next attempt runs the leg again
        raise


def _never() -> Leg:
    raise AssertionError('a kept value is not made again')


def _without_beginnings(options: dict[str, Any]) -> dict[str, Any]:
    """Without what only the first leg may be given."""
    first = {'run_id', 'deferred_tool_results'}
    if options.get('conversation_id') == 'new':
        first.add('conversation_id')
    if isinstance(workspace := options.get('workspace'), str) and workspace == 'new':
        first.add('workspace')
    return {key: value for key, value in options.items() if key not in first}


def _scope_of(name: object) -> Scope:
    """The task that runs here.

    Raises:
        RuntimeError: None does, or it is inside of a `once`.
        ValueError: An agent's run cannot have this name.
    """
    scope = running_scope('graphkeep.agents.run()')
    refuse_inside_once(scope, 'graphkeep.agents.run()', 'it keeps its legs itself')
    if not isinstance(name, str):
        raise TypeError(f'graphkeep.agents.run(): the name must be a string, got {name!r:.80}')
    if not name or not name.isprintable() or len(name.encode()) > _MOST_OF_NAME:
        raise ValueError(
            f'graphkeep.agents.run(): the name must be 1 to {_MOST_OF_NAME} bytes of printable '
            f'characters, got {name!r:.80}'
        )
    return scope


@contextmanager
def _taken(scope: Scope, name: str) -> Generator[None]:
    """One run of an agent in an attempt has this name: another would get what the first kept."""
    if name in scope.taken:
        raise ValueError(
            f'graphkeep.agents.run() was called with the name {name!r} twice in one attempt of '
            f'step {scope.task.node_id!r}. Give each agent in a step a name of its own: name=.'
        )
    scope.taken.add(name)
    try:
        yield
    except Exception:
        # Whoever catches it may try again.
        scope.taken.discard(name)
        raise
