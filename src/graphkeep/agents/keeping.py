"""`KeepRun`: a capability that keeps an agent's run, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from pydantic_ai import (
    CallToolsNode,
    ModelRequestNode,
    RunContext,
    UnexpectedModelBehavior,
    UserPromptNode,
)
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.usage import RunUsage

from ..scope import refuse_inside_once, running_scope
from ..shielding import ending_of, to_its_end
from .legs import spent
from .messages import OnLossy
from .progress import Came, InTask, Progress, Started
from .returns import NO_TIME, return_as_json, return_of

if TYPE_CHECKING:
    from .conversations import Conversations

__all__ = ('KeepRun', 'OnUnfinished', 'current_leg')

OnUnfinished = Literal['raise', 'discard']

current_leg: ContextVar[str | None] = ContextVar('graphkeep_leg', default=None)
"""The leg of `graphkeep.agents.run` that runs here: its agents are named by it too."""

_LEAVING = 10.0
"""Seconds that leaving a run may take after a cancellation."""


@dataclass
class KeepRun(AbstractCapability[Any]):
    """Keeps an agent's run: one that died goes on where it was.

    The messages are committed after each response of the model, before its tools run, and after the
    tools' results; what a tool of a batch has returned as soon as it has. A run that is started
    again with the same prompt, or with none, calls no model again whose response was kept, and no
    tool whose return was. A tool that was running runs again.

    Outside of a graph it is bound to a conversation:

    ```python
    keep = KeepRun(store.conversations, scope='ada')
    result = await agent.run(prompt, conversation_id='chat-1', capabilities=[keep])
    ```

    It loads the conversation and saves what the run added: no `load` and no `save` is needed.
    Inside of a step or node of a kept graph, `KeepRun()` keeps the progress with the task: it is
    committed with the run's claim, and gone when the step ends.

    Give it to the agent or to a run. What must not happen twice belongs into `graphkeep.once` in a
    step; elsewhere `ctx.tool_call_id` is the same on every attempt.
    """

    conversations: Conversations | None = None
    """Where the conversation is; `None` for a run inside of a step."""
    conversation_id: str | None = None
    """The conversation; by default the one that the run is started with."""
    scope: str | None = field(default=None, kw_only=True)
    """Whose it is: one with another scope is not touched."""
    name: str = field(default='agent', kw_only=True)
    """Names the run in its step, the same on every attempt: give each agent in a step its own."""
    on_lossy: OnLossy = field(default='raise', kw_only=True)
    """Inside of a step: what to do with what JSON would change. As for `Conversations`, which says
    it for conversations."""
    on_unfinished: OnUnfinished = field(default='raise', kw_only=True)
    """What to do with a run that was left half-way, when the conversation is given another prompt:
    raise `UnfinishedRunError`, or give it up. Its messages are then a branch."""
    lease: float = field(default=30.0, kw_only=True)
    """Seconds after which a run in a conversation counts as left, if its process cannot be told to
    be dead and has not said that it lives, which it does every third of this."""

    def __post_init__(self) -> None:
        if self.on_lossy not in get_args(OnLossy):
            raise ValueError(f"on_lossy must be 'raise' or 'plain', got {self.on_lossy!r}")
        if self.on_unfinished not in get_args(OnUnfinished):
            raise ValueError(f"on_unfinished is 'raise' or 'discard', got {self.on_unfinished!r}")
        if not self.lease > 0:
            raise ValueError(f'lease must be a number of seconds above 0, got {self.lease!r}')
        if not self.name:
            raise ValueError('KeepRun() needs a name')
        if self.conversations is not None and not hasattr(self.conversations, 'put'):
            raise TypeError(
                'KeepRun() takes store.conversations, or Conversations(store, …); in a step '
                f'nothing: KeepRun(). Got {self.conversations!r:.80}'
            )
        if self.conversations is None and (self.conversation_id or self.scope):
            raise TypeError('KeepRun(): conversation_id= and scope= need conversations=')

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """It holds a store, and is in no specification of an agent."""
        return None

    def get_ordering(self) -> CapabilityOrdering | None:
        """Around all others: what they make of a tool's return is what is kept."""
        return CapabilityOrdering(position='outermost')

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """One for each run.

        Raises:
            RuntimeError: Neither in a step of a kept run, nor bound to a conversation; or inside of
                a `once`.
            ValueError: Another agent has run under this name in this attempt of the step.
        """
        return _Kept(self._progress(ctx), self.get_ordering())

    def _progress(self, ctx: RunContext[Any]) -> Progress:
        if self.conversations is not None:
            from .in_conversation import InConversation

            conversation_id = self.conversation_id or ctx.conversation_id
            return InConversation(
                self.conversations,
                cast('str', conversation_id),
                scope=self.scope,
                discard=self.on_unfinished == 'discard',
                lease=self.lease,
            )
        try:
            scope = running_scope('KeepRun()')
        except RuntimeError as e:
            raise RuntimeError(
                'KeepRun() is bound to nothing: inside of a step or node of a kept run it keeps '
                'the progress there; elsewhere give it KeepRun(store.conversations).'
            ) from e
        refuse_inside_once(scope, 'KeepRun()', 'what it keeps would be kept before that')
        name = ':'.join(filter(None, (current_leg.get(), self.name)))
        key = f'keep-run:{name}'
        if key in scope.taken:
            raise ValueError(
                f'An agent has run with KeepRun(name={self.name!r}) before in this attempt of step '
                f'{scope.task.node_id!r}. Give each run of an agent in a step a name of its own: '
                'agent.run(…, capabilities=[KeepRun(name=…)]).'
            )
        scope.taken.add(key)
        return InTask(scope, name, on_lossy=self.on_lossy)


class _Kept(AbstractCapability[Any]):
    """One run that is kept."""

    def __init__(self, progress: Progress, ordering: CapabilityOrdering | None) -> None:
        self._progress = progress
        self._ordering = ordering
        self._state: Any = None
        self._known: list[ModelMessage] = []
        """All messages of the history that were there at the last commit."""
        self._before = RunUsage()
        """What had been used when the run was started."""
        self._refused = False
        """Whether it was left because of what the model has answered."""
        self._closed = False
        """Whether the run has been left."""
        self._beginning: asyncio.Future[None] | None = None
        """Done when `begin` has found out how far the run has come."""
        self._spent: RunUsage | None = None
        """What the conversation had used before, if it was loaded here."""
        self._resends = False
        """Whether the next request is the last one of the history, which is there already."""
        self._came: Came | None = None
        """How far it had come when it was started, until that is used up."""

    def get_ordering(self) -> CapabilityOrdering | None:
        return self._ordering

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        try:
            result = await handler()
            if self._state is not None:
                await self._end(result)
        except BaseException:
            self._closed = True
            if self._beginning is not None:
                # Upstream runs the first node in a task of its own, and may have left it behind.
                await ending_of(self._beginning, bound=_LEAVING)
            if self._state is not None:
                left = self._progress.leave(refused=self._refused)
                (await to_its_end(left, bound=_LEAVING)).unwrap()
            raise
        return result

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        if isinstance(node, _Begin):
            raise ValueError('This run has two KeepRun. Give it to the agent or to the run.')
        if isinstance(node, UserPromptNode) and self._state is None:
            return _Begin.of(cast('UserPromptNode[Any, Any]', node), self)
        return cast('Any', node)

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:
        if isinstance(node, ModelRequestNode):
            await self._progress.commit(self._now())
        elif isinstance(node, CallToolsNode) and isinstance(result, ModelRequestNode):
            await self._progress.commit(self._now(pending=cast('Any', result).request))
        return cast('Any', result)

    async def on_node_run_error(self, ctx: RunContext[Any], *, node: Any, error: Exception) -> Any:
        if isinstance(node, CallToolsNode) and isinstance(error, UnexpectedModelBehavior):
            self._refused = True
        raise error

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        codec = self._progress.codec
        if self._came is not None and call.tool_call_id in self._came.returns:
            self._state.usage.tool_calls += 1  # upstream counts those that it calls
            return return_of(codec, call, self._came.returns[call.tool_call_id])
        value = await handler(args)
        kept = return_as_json(codec, call, value)
        if kept is not None:
            await self._progress.returned(call.tool_call_id, kept)
        return value

    # --- the beginning and the end ----------------------------------------------------------------

    async def begin(self, node: _Begin, ctx: Any) -> Any:
        """Run the first node, from where the run was when it was left."""
        state = ctx.state
        started = Started(
            run_id=state.run_id,
            conversation_id=state.conversation_id,
            history=list(state.message_history),
            unsaved=getattr(state, 'conversation_unsaved', None),
            revision=getattr(state, 'conversation_revision', None),
            prompt=_prompt(node.user_prompt),
            has_results=node.deferred_tool_results is not None,
            decided=_decided(node.deferred_tool_results),
        )
        self._beginning = asyncio.get_running_loop().create_future()
        try:
            came = await self._progress.begin(started)
            if self._closed:
                await self._progress.leave()
                raise asyncio.CancelledError
            self._state, self._came = state, came
        finally:
            self._beginning.set_result(None)
        if came.history is not None:
            state.message_history = [*came.history]
        self._spent = came.spent
        self._before = copy(state.usage)
        state.run_id, state.conversation_id = came.run_id, came.conversation_id
        state.run_step, state.output_retries_used = came.step, came.retries
        state.usage.incr(came.usage)
        prompt = _prompt_in((came.prompt, *came.messages[:1], came.pending))
        if came.messages or came.pending:
            result = await self._go_on(node, ctx, came, prompt)
        else:
            node.user_prompt = prompt
            result = await node.run_first(ctx)
            self._resends = isinstance(result, ModelRequestNode) and bool(
                cast('Any', result).is_resuming_without_prompt
            )
        self._known = list(state.message_history)
        return cast('Any', result)

    async def _go_on(self, node: _Begin, ctx: Any, came: Came, prompt: Any) -> Any:
        """Run the first node of a run that has come somewhere already."""
        state, tail = ctx.state, came.pending
        base = len(state.message_history)
        state.message_history += came.messages
        before: list[ModelMessage] = list(state.message_history)
        node.user_prompt = node.deferred_tool_results = None
        if tail is not None:
            state.message_history.append(tail)
        result: Any = await node.run_first(ctx)
        history: list[ModelMessage] = state.message_history
        if len(history) != len(before):
            # To upstream it is a history that it has not seen, and requests that follow each other
            # are one.
            history[:] = before
        ctx.deps.new_message_index = base
        if prompt is not None:
            ctx.deps.prompt = prompt
        if isinstance(result, ModelRequestNode):
            if tail is not None:
                # It has not been sent before.
                cast('Any', result).request = tail
                cast('Any', result).is_resuming_without_prompt = False
            elif _is_complete(history):
                # The last response was the last of all: upstream would ask once more.
                result = CallToolsNode[Any, Any](cast('ModelResponse', history[-1]))
        return cast('Any', result)

    async def _end(self, result: Any) -> None:
        output = getattr(result, 'output', None)
        deferred = output if isinstance(output, DeferredToolRequests) else None
        revision = await self._progress.end(self._now(), deferred)
        if self._spent is not None:
            # As for a run that is given the conversation. Not before: limits are those of a run.
            self._state.usage = self._spent + self._state.usage
        saved = getattr(result, '_conversation_saved', None)
        if revision is not None and saved is not None:
            saved(revision)  # so that it can be saved again, or go on

    def _now(self, *, pending: ModelRequest | None = None) -> Came:
        """What is new since the last time this was called."""
        state = self._state
        history: Sequence[ModelMessage] = state.message_history
        new = _behind(self._known, history, state.run_id)
        if self._resends and new and isinstance(new[0], ModelRequest):
            new = new[1:]
            self._resends = False
        self._known = list(history)
        self._came = None
        return Came(
            run_id=state.run_id,
            conversation_id=state.conversation_id,
            messages=new,
            pending=pending,
            usage=spent(state.usage, self._before),
            step=state.run_step,
            retries=state.output_retries_used,
        )


class _Begin(UserPromptNode[Any, Any]):
    """The first node of a run, which finds out how far the run has come."""

    _kept: _Kept

    @classmethod
    def of(cls, node: UserPromptNode[Any, Any], kept: _Kept) -> _Begin:
        """The node, of this class."""
        made = cls(**{each.name: getattr(node, each.name) for each in fields(node) if each.init})
        made._kept = kept
        return made

    async def run(self, ctx: Any) -> Any:
        return await self._kept.begin(self, ctx)

    async def run_first(self, ctx: Any) -> Any:
        """As the node runs by itself."""
        return await super().run(ctx)


# What upstream knows a node by, where a graph is made of classes.
_Begin.__name__ = UserPromptNode.__name__


def _behind(
    known: Sequence[ModelMessage], history: Sequence[ModelMessage], run_id: str
) -> list[ModelMessage]:
    """The messages of this run behind those that are known. A capability may have replaced those
    before them.
    """
    ids = {id(message) for message in known}
    last = max((n for n, message in enumerate(history) if id(message) in ids), default=None)
    if last is not None:
        return list(history[last + 1 :])
    if not known:
        return list(history)
    own = [message for message in history if message.run_id == run_id]
    return own[sum(message.run_id == run_id for message in known) :]


def _is_complete(history: Sequence[ModelMessage]) -> bool:
    """Whether the history ends in a response that needs nothing more from the model."""
    last = history[-1] if history else None
    return isinstance(last, ModelResponse) and getattr(last, 'state', 'complete') == 'complete'


def _prompt(prompt: Any) -> ModelRequest | None:
    """A prompt as a request: the same for the same prompt."""
    if prompt is None:
        return None
    return ModelRequest(parts=[UserPromptPart(prompt, timestamp=NO_TIME)])


def _prompt_in(requests: Sequence[ModelMessage | None]) -> Any:
    """The first prompt in requests; `None` if there is none."""
    parts = [part for request in requests if request is not None for part in request.parts]
    return next((part.content for part in parts if isinstance(part, UserPromptPart)), None)


def _decided(results: DeferredToolResults | None) -> dict[str, str]:
    """What was decided about calls, so that a run that goes on is not given another decision."""
    if results is None:
        return {}
    decided = {
        call_id: 'approved' if given is True or isinstance(given, ToolApproved) else 'denied'
        for call_id, given in results.approvals.items()
    }
    return decided | dict.fromkeys(results.calls, 'result')
