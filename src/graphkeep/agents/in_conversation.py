"""The progress of a run in a conversation: beside its history until it ends, then part of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import takewhile
from typing import Any, cast

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from pydantic_ai.tools import DeferredToolRequests

from .. import owner as owners
from ..errors import (
    ConversationBusyError,
    DamagedConversationError,
    StoreError,
    UnfinishedRunError,
)
from ..shielding import to_its_end
from .conversations import Conversations
from .messages import MessageCodec
from .primitives import ScopeConflict
from .progress import Came, Started, taken_back
from .records import Unfinished, new_revision
from .returns import part_as_json

__all__ = ('InConversation',)

_BOUND = 10.0
"""Seconds that a write may take after a cancellation."""

_LARGE = 65_536
"""Bytes of a prompt that is not kept before the first response: every write would have it."""

_here: set[tuple[str, str]] = set()
"""The runs that are under way in this process: conversation and run id."""


class InConversation:
    """The progress of one run."""

    def __init__(
        self,
        conversations: Conversations,
        conversation_id: str,
        *,
        scope: str | None,
        discard: bool,
        lease: float,
    ) -> None:
        """Make it.

        Args:
            conversations: Where the conversation is.
            conversation_id: The conversation.
            scope: Whose it is.
            discard: Whether another prompt gives up a run that was left half-way.
            lease: As for `KeepRun`.
        """
        self._conversations = conversations
        self._id = conversation_id
        self._scope = scope
        self._discard = discard
        self._lease = lease
        self._record: ConversationRecord | None = None
        self._run: Unfinished | None = None
        self._expected: str | None = None
        self._begun: Unfinished | None = None
        """The run as it was begun here, with a prompt alone."""
        self._is_new = False
        """Whether the conversation was made for it."""
        self._lock = asyncio.Lock()
        self._waiting: dict[str, Any] = {}
        self._beat: asyncio.Task[None] | None = None

    @property
    def codec(self) -> MessageCodec:
        """How messages are stored."""
        return self._conversations.codec

    async def begin(self, started: Started) -> Came:
        """As `Progress.begin`.

        Raises:
            ConversationConflict: It was saved since the conversation that was given was loaded, or
                with another scope.
            ConversationBusyError: Somebody who may be alive runs an agent in it.
            UnfinishedRunError: A run was left half-way in it, and this is another prompt.
            UserError: The history that was given is not the conversation's.
        """
        record, left = await self._conversations.read(self._id) or (None, None)
        if record is not None and self._scope not in (None, record.scope):
            raise ScopeConflict(self._id, self._scope)
        if started.revision is not None and (record is None or record.revision != started.revision):
            raise ConversationConflict(self._id)
        history, unsaved = await self._history(record, started)
        if record is not None:
            for place, message in enumerate(history or ()):
                if message.run_id == started.run_id:
                    return self._has_ended(record, history or (), place)
        prompt = None if started.prompt is None else self._text_of(started.prompt)
        asked = None if prompt is None else sha256(prompt).hexdigest()
        if record is not None and left is not None:
            self._refuse_busy(record, left)
            if not self._goes_on(left, asked, started):
                await self._conversations.discard(self._id)
                record, left = await self._conversations.read(self._id) or (None, None)
        elif record is not None and not started.has_results:
            self._refuse_open_calls(record)
        self._expected = None if record is None else record.revision
        self._record = record or ConversationRecord(
            conversation_id=self._id, head_id=None, scope=self._scope
        )
        spent = copy(record.usage) if history is not None and record is not None else None
        in_flight: Sequence[ModelMessage] = ()
        if left is not None:
            run = replace(left, owner=owners.current())
            in_flight = await self._in_flight(run)
            if unsaved:
                # They are among what the run has added.
                if in_flight[: len(unsaved)] != list(unsaved):
                    raise self._another_history()
                history, unsaved = started.history[: len(started.history) - len(unsaved)], ()
        else:
            run = Unfinished(
                run_id=started.run_id,
                owner=owners.current(),
                asked=asked,
                prompt=json.loads(prompt) if prompt and len(prompt) <= _LARGE else None,
                has_results=started.has_results,
                decided=started.decided,
                tip=self._record.head_id,
            )
        came = Came(
            run_id=run.run_id,
            conversation_id=self._id,
            messages=in_flight,
            pending=self._load_request(run.pending),
            returns=run.returns,
            usage=run.usage,
            step=run.step,
            retries=run.retries,
            prompt=started.prompt or self._load_request(run.prompt),
            history=history,
            spent=spent,
        )
        await self._take(run, unsaved, fresh=left is None, is_new=record is None)
        return came

    def _text_of(self, prompt: ModelRequest) -> bytes:
        return self.codec.whole(prompt, where=f'the prompt of conversation {self._id!r}')

    async def _take(
        self, run: Unfinished, unsaved: Sequence[ModelMessage], *, fresh: bool, is_new: bool
    ) -> None:
        """Write that the run is ours, and say so from now on."""
        ending = await to_its_end(self._write(run, unsaved), bound=_BOUND)
        if fresh and not unsaved:
            self._begun, self._is_new = self._run, is_new
        if ending.cancelled is not None:
            # Nobody else will say that it is not here.
            await self.leave()
        ending.unwrap()
        _here.add((self._id, run.run_id))
        self._beat = asyncio.ensure_future(self._beating())

    def _refuse_busy(self, record: ConversationRecord, left: Unfinished) -> None:
        if left.owner is None or owners.is_proven_dead(left.owner):
            return
        if owners.is_this_process(left.owner):
            if (self._id, left.run_id) not in _here:
                return
        elif datetime.now(tz=UTC) - record.updated_at > timedelta(seconds=self._lease):
            return
        raise ConversationBusyError(
            conversation_id=self._id, owner=left.owner, updated_at=record.updated_at
        )

    def _refuse_open_calls(self, record: ConversationRecord) -> None:
        """Upstream would close the calls that wait for a person, and go on without them."""
        if record.deferred_tool_requests is None:
            return
        raise UnfinishedRunError(
            f'Conversation {self._id!r} waits for the results of deferred tools: start the run '
            'with deferred_tool_results=. To go on without them, deny them, or branch from before '
            'the calls.',
            conversation_id=self._id,
        )

    def _goes_on(self, left: Unfinished, asked: str | None, started: Started) -> bool:
        """Whether what the caller asks for is the run that was left."""
        if asked is None or asked == left.asked:
            moved = left.pending is not None or left.count
            if asked != left.asked and left.prompt is None and not moved:
                raise UnfinishedRunError(
                    f'A run was left in conversation {self._id!r} before the model had answered, '
                    'and its prompt is too large to be kept by itself. Start it with the prompt.',
                    conversation_id=self._id,
                )
            if started.has_results and not left.has_results:
                raise UnfinishedRunError(
                    f'A run was left half-way in conversation {self._id!r} that was begun without '
                    'results of deferred tools. Bring it to its end without them, or give it up '
                    'with conversations.discard(…).',
                    conversation_id=self._id,
                )
            if left.has_results and not started.has_results and not moved:
                raise UnfinishedRunError(
                    f'A run was left half-way in conversation {self._id!r} before the results of '
                    'its deferred tools were used. Start it with the same deferred_tool_results=.',
                    conversation_id=self._id,
                )
            if started.has_results and started.decided != left.decided:
                raise UnfinishedRunError(
                    f'A run was left half-way in conversation {self._id!r} that was begun with '
                    'other results of deferred tools, and may have used them. Start it with those '
                    'to bring it to its end, or give it up with conversations.discard(…).',
                    conversation_id=self._id,
                )
            return True
        if self._discard:
            return False
        again = (
            'the same deferred_tool_results='
            if left.has_results and not (left.pending or left.count)
            else 'the same prompt, or with none,'
        )
        raise UnfinishedRunError(
            f'A run was left half-way in conversation {self._id!r}, and this is another prompt. '
            f'Run the agent with {again} to bring it to its end; give it up with '
            "conversations.discard(…), or always with KeepRun(on_unfinished='discard').",
            conversation_id=self._id,
        )

    def _has_ended(
        self, record: ConversationRecord, history: Sequence[ModelMessage], start: int
    ) -> Came:
        """A run with this id has ended: it comes to the same output, and nothing is written."""
        if record.deferred_tool_requests is not None:
            raise UnfinishedRunError(
                f'The run {history[start].run_id!r} has ended in conversation {self._id!r}, and '
                'waits for the results of deferred tools: load the conversation, and start a run '
                'of another id with deferred_tool_results=.',
                conversation_id=self._id,
            )
        run_id = history[start].run_id
        own = list(takewhile(lambda message: message.run_id == run_id, history[start:]))
        if start + len(own) == len(history):
            self._expected = record.revision  # what it gives can be gone on with
        returns: dict[str, Any] = {}
        while own and isinstance(own[-1], ModelRequest):
            for part in own.pop().parts:
                if isinstance(part, ToolReturnPart):
                    returns[part.tool_call_id] = part_as_json(self.codec, part)
        return Came(
            run_id=cast('str', run_id),
            conversation_id=self._id,
            messages=own,
            returns=returns,
            history=history[:start],
            spent=copy(record.usage),
        )

    async def _history(
        self, record: ConversationRecord | None, started: Started
    ) -> tuple[Sequence[ModelMessage] | None, Sequence[ModelMessage]]:
        """The history that the caller has not given, and those messages of the one that it has
        given which are not stored.
        """
        given = list(started.history)
        if started.revision is not None and started.unsaved is not None:
            return None, started.unsaved
        stored = await self._stored(record)
        if not given:
            return stored, ()
        if given[: len(stored)] != stored:
            raise self._another_history()
        return None, given[len(stored) :]

    def _another_history(self) -> UserError:
        return UserError(
            f'The message_history that was given is not that of conversation {self._id!r}. '
            'Give none: KeepRun loads it. Or give conversation=await conversations.load(…).'
        )

    async def _stored(self, record: ConversationRecord | None) -> list[ModelMessage]:
        if record is None:
            return []
        try:
            history = await self._conversations.read_history(record.head_id)
        except DamagedConversationError:
            if not await self._conversations.is_current(record):
                raise ConversationConflict(self._id) from None
            raise
        return [entry.message for entry in history]

    async def _in_flight(self, run: Unfinished) -> list[ModelMessage]:
        """What the run has added."""
        history = await self._conversations.read_history(run.tip, limit=run.count)
        return [entry.message for entry in history]

    # --- writing ----------------------------------------------------------------------------------

    async def commit(self, came: Came) -> None:
        """As `Progress.commit`.

        Raises:
            ConversationConflict: Somebody else has written the conversation.
            LossyStateError: A message would not come back as it is; names message, part and tool.
        """
        async with self._lock:
            if self._run is not None:
                run = self._after(self._run, came)
                # A message has it now.
                run = replace(run, prompt=None) if came.messages else run
                await self._write(run, came.messages)

    async def returned(self, call_id: str, value: Any) -> None:
        """As `Progress.returned`. What comes while a write is under way shares the next one."""
        self._waiting[call_id] = value
        async with self._lock:
            if self._run is not None and call_id in self._waiting:
                waiting, self._waiting = self._waiting, {}
                await self._write(replace(self._run, returns={**self._run.returns, **waiting}))

    async def end(self, came: Came, deferred: DeferredToolRequests | None) -> str | None:
        """As `Progress.end`: the history of the conversation is the run's from now on."""
        async with self._lock:
            if self._run is not None:
                await self._still()
                run, entries = _chained(self._after(self._run, came), came.messages)
                record = cast('ConversationRecord', self._record)
                ended = replace(
                    record,
                    head_id=run.tip,
                    usage=record.usage + run.usage,
                    deferred_tool_requests=deferred,
                    branches=[tip for tip in record.branches if tip != run.tip],
                )
                await self._put(ended, entries, None)
            return self._expected

    async def leave(self, *, refused: bool = False) -> None:
        """As `Progress.leave`. What is kept stays; that nobody works on it is worth a try. Of a run
        that has come to nothing, its caller has the prompt: nothing stays.
        """
        await self._still()
        async with self._lock:
            if self._run is None:
                return
            with suppress(ConversationConflict, StoreError):
                if refused:
                    self._run = await self._taken_back(self._run)
                if self._run is not self._begun:
                    await self._write(replace(self._run, owner=None))
                elif self._is_new:
                    revision = cast('str', self._expected)
                    await self._conversations.delete_record(self._id, expected_revision=revision)
                else:
                    await self._put(cast('ConversationRecord', self._record), (), None)

    async def _taken_back(self, run: Unfinished) -> Unfinished:
        """The run before its last response: the request is sent again."""
        entries = await self._conversations.read_history(run.tip, limit=run.count)
        messages, request = taken_back([entry.message for entry in entries])
        if len(messages) == len(entries):
            return run
        return replace(
            run,
            tip=entries[len(messages)].parent_id,
            count=len(messages),
            pending=None if request is None else self._dump(request, 'the next request'),
            returns={},
            step=max(0, run.step - 1),
        )

    async def _still(self) -> None:
        """Stop saying that the run is alive."""
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.cancel()
            await asyncio.wait((beat,))
        if self._run is not None:
            _here.discard((self._id, self._run.run_id))

    async def _beating(self) -> None:
        """Say every third of the lease that the run is alive."""
        while True:
            await asyncio.sleep(self._lease / 3)
            async with self._lock:
                if self._run is not None:
                    # What it cannot write, the next commit cannot either, and says why.
                    begun = self._run is self._begun
                    with suppress(ConversationConflict, StoreError):
                        await self._write(self._run)
                    if begun:
                        self._begun = self._run

    def _after(self, run: Unfinished, came: Came) -> Unfinished:
        self._waiting = {}
        return replace(
            run,
            pending=None if came.pending is None else self._dump(came.pending, 'the next request'),
            returns={},
            usage=came.usage,
            step=came.step,
            retries=came.retries,
        )

    async def _write(self, run: Unfinished, messages: Sequence[ModelMessage] = ()) -> None:
        run, entries = _chained(run, messages)
        await self._put(cast('ConversationRecord', self._record), entries, run)

    async def _put(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        run: Unfinished | None,
    ) -> None:
        """Write all of it, also when the run is cancelled meanwhile; what is kept is known then."""
        record = replace(record, revision=new_revision(), updated_at=datetime.now(tz=UTC))
        put = self._conversations.put(
            record,
            entries,
            expected_revision=self._expected,
            unfinished=run,
            stays=0.0 if run is None else self._lease,
        )
        ending = await to_its_end(put, bound=_BOUND)
        if ending.error is None:
            self._record, self._run, self._expected = record, run, record.revision
        ending.unwrap()

    def _dump(self, message: ModelMessage, what: str) -> Any:
        return self.codec.as_json(message, where=f'{what} of conversation {self._id!r}')

    def _load_request(self, data: Any) -> ModelRequest | None:
        found = None if data is None else self.codec.from_json(data, of=self._id)
        return cast('ModelRequest | None', found)


def _chained(
    run: Unfinished, messages: Sequence[ModelMessage]
) -> tuple[Unfinished, list[ConversationEntry]]:
    """The run with new messages behind its last one, and their entries."""
    tip, entries = run.tip, list[ConversationEntry]()
    for message in messages:
        entry = ConversationEntry(parent_id=tip, message=message)
        entries.append(entry)
        tip = entry.id
    return replace(run, tip=tip, count=run.count + len(entries)), entries
