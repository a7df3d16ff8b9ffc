"""Every error graphkeep raises.

```
GraphkeepError
├── StoreError                      the database or the way to it
│   ├── StoreUnavailableError       down, unreachable, out of connections: worth trying again
│   ├── StoreWriteError             full, read-only, no right to write: nothing was written
│   ├── StoreClosedError            the store was closed, or inherited through fork()
│   ├── SchemaError                 missing and may not be made, or made by a newer graphkeep
│   └── MissingDriverError          names the extra to install
├── RunError                        one run; carries `run_id`
│   ├── RunNotFoundError
│   ├── RunExistsError
│   ├── RunBusyError                someone else holds a live claim: `owner`, `lease_until`
│   ├── RunStatusError              the run's status does not allow this: `status`
│   ├── RunMovedError               the run was changed since it was read
│   ├── LeaseLostError              our claim was taken over; nothing was written
│   ├── DamagedRunError             a stored snapshot cannot be read: `seq`
│   ├── FormatVersionError          written by a newer graphkeep
│   ├── GraphChangedError           the stored run does not fit the graph: `node`, `path`
│   ├── RunPausedError              only an answer can carry it on: `requests`
│   └── RequestError                one request; carries `request_id`
│       ├── RequestNotFoundError
│       ├── RequestClosedError      answered otherwise, expired, or of no more use: `request`
│       ├── InvalidAnswerError      does not fit what was asked for: `path`
│       └── RequestTimeoutError     raised in the step: its deadline has passed
├── ConversationError               one conversation, or its messages
│   ├── DamagedConversationError    a row or entry cannot be read: `conversation_id`, `entry_id`
│   ├── ConversationBusyError       somebody runs an agent in it: `owner`, `updated_at`
│   ├── UnreadableMessageError      a message is none to this pydantic-ai: `entry_id`, `library`
│   └── UnfinishedRunError          an agent's run was left half-way, and something else was asked
├── StateConflictError              parallel steps changed the same field: `path`, `steps`
└── CodecError                      a Python value and its JSON: `path`
    ├── UnstorableTypeError         found when the graph is bound
    └── LossyStateError             found before anything is written
```

Each is also the built-in that one would catch (`ConnectionError`, `LookupError`, `ValueError`, …).
A message says what happened, to which run, and what to do next. URLs are shown without passwords.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .requests import Request

__all__ = (
    'CodecError',
    'ConversationBusyError',
    'ConversationError',
    'DamagedConversationError',
    'DamagedRunError',
    'FormatVersionError',
    'GraphChangedError',
    'GraphkeepError',
    'InvalidAnswerError',
    'LeaseLostError',
    'LossyStateError',
    'MissingDriverError',
    'RequestClosedError',
    'RequestError',
    'RequestNotFoundError',
    'RequestTimeoutError',
    'RunBusyError',
    'RunError',
    'RunExistsError',
    'RunMovedError',
    'RunNotFoundError',
    'RunPausedError',
    'RunStatusError',
    'SchemaError',
    'StateConflictError',
    'StoreClosedError',
    'StoreError',
    'StoreUnavailableError',
    'StoreWriteError',
    'UnfinishedRunError',
    'UnreadableMessageError',
    'UnstorableTypeError',
)


class GraphkeepError(Exception):
    """Base class of every error graphkeep raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Process pools and task queues send errors from one process to another, and a pool hangs on
        # one that it cannot make again: by default from `args`, which `__init__` does not take.
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[GraphkeepError], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args  # `OSError` leaves them to an `__init__`, which is not called here
    error.__dict__.update(fields)
    return error


class StoreError(GraphkeepError):
    """Something is wrong with the database, or with the way to it."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The database cannot be reached now. The same call may succeed later; nothing is
    half-written.
    """


class StoreWriteError(StoreError, OSError):
    """The database refused a write (full, read-only, no right to write). Nothing was written."""


class StoreClosedError(StoreError, RuntimeError):
    """The store has been closed, or belongs to the process that this one was forked from."""


class SchemaError(StoreError, RuntimeError):
    """The database schema is missing and may not be created, or was made by a newer graphkeep."""


class MissingDriverError(StoreError, ImportError):
    """The driver of a database is not installed."""

    def __init__(self, *, driver: str, extra: str) -> None:
        self.driver = driver
        """The missing package."""
        self.extra = extra
        """The extra of graphkeep that brings it."""
        super().__init__(
            f'{driver!r} is not installed. Install it with: pip install "graphkeep[{extra}]"'
        )


class RunError(GraphkeepError):
    """Something is wrong with one run."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.run_id = run_id
        """The run it is about."""
        super().__init__(message)


class RunNotFoundError(RunError, LookupError):
    """No run has this id in this store."""

    def __init__(self, *, run_id: str) -> None:
        super().__init__(f'There is no run {run_id!r} in this store.', run_id=run_id)


class RunExistsError(RunError, ValueError):
    """A run with this id was started before."""

    def __init__(self, *, run_id: str, status: str | None = None) -> None:
        self.status = status
        """The status of the run that exists, where it is known."""
        known = f' (status {status!r})' if status else ''
        advice = (
            f'Continue it with graphkeep.resume(graph, store.persistence({run_id!r})), or start'
        )
        if status == 'cancelled':
            advice = f'Start from its state with store.fork({run_id!r}, new_run_id=…), or start'
        super().__init__(
            f'Run {run_id!r} already exists{known}. {advice} a new run under another id.',
            run_id=run_id,
        )


class RunBusyError(RunError, RuntimeError):
    """Another owner holds a live claim on the run."""

    def __init__(
        self, *, run_id: str, owner: str | None, lease_until: datetime | None, epoch: int
    ) -> None:
        self.epoch = epoch
        """The epoch of that claim."""
        self.owner = owner
        """Who holds the claim."""
        self.lease_until = lease_until
        """When the claim ends if its owner does not renew it (UTC, by the database's clock)."""
        until = f' until {lease_until.isoformat()}' if lease_until else ''
        super().__init__(
            f'Run {run_id!r} is being worked on by {owner!r}{until}. Wait for it, or stop that '
            'owner: a claim that is not renewed ends by itself.',
            run_id=run_id,
        )


class RunStatusError(RunError, RuntimeError):
    """The status of the run does not allow what was asked."""

    def __init__(self, message: str, *, run_id: str, status: str) -> None:
        self.status = status
        """The status the run has."""
        super().__init__(message, run_id=run_id)


class RunMovedError(RunError, RuntimeError):
    """The run was changed by someone else between reading it and claiming it. Nothing was
    written.
    """

    def __init__(self, *, run_id: str, expected_seq: int, seq: int) -> None:
        self.expected_seq = expected_seq
        """The snapshot the caller had read."""
        self.seq = seq
        """The snapshot the run is at now."""
        super().__init__(
            f'Run {run_id!r} moved from snapshot {expected_seq} to {seq} after it was read. '
            'Load it again and continue from there.',
            run_id=run_id,
        )


class LeaseLostError(RunError, RuntimeError):
    """The claim on the run was taken over or ended. Nothing was written by this call."""

    def __init__(self, *, run_id: str, epoch: int, exists: bool = True) -> None:
        self.epoch = epoch
        """The epoch of the claim that was lost."""
        self.exists = exists
        """`False` when the run is known not to be in the store any more."""
        if exists:
            what = (
                'another process took the run over, or it was cancelled or deleted. Nothing was '
                'written. Whoever holds the run now goes on from the last commit.'
            )
        else:
            what = (
                'the run is not in the store any more. It was deleted, or the database has lost it '
                '(a Redis without AOF that restarted, a restored backup). Nothing was written.'
            )
        super().__init__(
            f'The claim on run {run_id!r} (epoch {epoch}) was lost: {what}', run_id=run_id
        )


class DamagedRunError(RunError, ValueError):
    """A stored snapshot of the run cannot be read."""

    def __init__(self, *, run_id: str, seq: int | None, reason: str) -> None:
        self.seq = seq
        """The snapshot that is damaged; `None` for the header."""
        self.reason = reason
        what = 'The header' if seq is None else f'Snapshot {seq}'
        advice = f' An earlier snapshot may still be good: store.fork({run_id!r}, at=…).'
        super().__init__(
            f'{what} of run {run_id!r} cannot be read: {reason}. Other runs are not affected.'
            f'{"" if seq is None else advice}',
            run_id=run_id,
        )


class FormatVersionError(RunError, ValueError):
    """The run was written by a newer version of graphkeep."""

    def __init__(self, *, run_id: str, found: object, known: int) -> None:
        self.found = found
        """The format version in the store."""
        self.known = known
        """The newest format version this graphkeep reads."""
        super().__init__(
            f'Run {run_id!r} has stored format {found!r}; this graphkeep reads up to {known}. '
            'Upgrade graphkeep here. The run was left as it is.',
            run_id=run_id,
        )


class GraphChangedError(RunError, ValueError):
    """What is stored does not fit the graph any more. The run was left as it is."""

    def __init__(
        self, message: str, *, run_id: str, node: str | None = None, path: str | None = None
    ) -> None:
        self.node = node
        """The node (or step) that is missing or has changed."""
        self.path = path
        """Where in the document the value does not fit."""
        super().__init__(message, run_id=run_id)


class RunPausedError(RunError, RuntimeError):
    """Nothing of the run can go on before one of its requests is answered."""

    def __init__(self, *, run_id: str, requests: Sequence[Request] = ()) -> None:
        self.requests = tuple(requests)
        """What it waits for, oldest first."""
        waits = ', '.join(repr(request.request_id) for request in self.requests[:5])
        more = len(self.requests) - 5
        waits += f' and {more} more' if more > 0 else ''
        if self.requests:
            first = self.requests[0].request_id
            message = (
                f'Run {run_id!r} is paused: it waits for an answer to {waits}. Give it with '
                f'store.answer({run_id!r}, {first!r}, …), then resume the run.'
            )
        else:
            message = f'Run {run_id!r} has paused, and was answered meanwhile. Resume it.'
        super().__init__(message, run_id=run_id)


class RequestError(RunError):
    """Something is wrong with one request of a run."""

    def __init__(self, message: str, *, run_id: str, request_id: str) -> None:
        self.request_id = request_id
        """The request it is about."""
        super().__init__(message, run_id=run_id)


class RequestNotFoundError(RequestError, LookupError):
    """The run has no such request."""

    def __init__(self, *, run_id: str, request_id: str) -> None:
        super().__init__(
            f'Run {run_id!r} has no request {request_id!r}. Its id is <task>:<name>, as '
            f'store.requests(run_id={run_id!r}) lists those that are open.',
            run_id=run_id,
            request_id=request_id,
        )


class RequestClosedError(RequestError, RuntimeError):
    """The request takes no answer any more. Nothing was changed."""

    def __init__(self, request: Request) -> None:
        self.request = request
        """The request as it is."""
        by = f' by {request.answered_by!r}' if request.answered_by else ''
        why = {
            'answered': f'was answered{by} before, with another answer',
            'expired': f'expired at {request.deadline}',
            'closed': 'is of no more use: its run has ended, or was cancelled, or its branch was',
        }.get(request.status, 'takes no answer')
        super().__init__(
            f'Request {request.request_id!r} of run {request.run_id!r} {why}. Nothing was changed.',
            run_id=request.run_id,
            request_id=request.request_id,
        )


class InvalidAnswerError(RequestError, ValueError):
    """An answer does not fit what was asked for. The request stays open."""

    def __init__(self, message: str, *, run_id: str, request_id: str, path: str) -> None:
        self.path = path
        """Where it does not, e.g. `answer.amount`."""
        super().__init__(message, run_id=run_id, request_id=request_id)


class RequestTimeoutError(RequestError, TimeoutError):
    """The deadline of a request has passed before an answer came. Raised in the step that asked."""

    def __init__(self, *, run_id: str, request_id: str, deadline: datetime | None) -> None:
        self.deadline = deadline
        """When that was (UTC, the database's clock), where it is known."""
        at = f' by {deadline.isoformat()}' if deadline else ' in time'
        super().__init__(
            f'Request {request_id!r} of run {run_id!r} was not answered{at}. wait_for(default=…) '
            'gives a value instead.',
            run_id=run_id,
            request_id=request_id,
        )


class ConversationError(GraphkeepError):
    """A conversation, or what it holds, is not as it has to be."""

    def __init__(
        self, message: str, *, conversation_id: str | None = None, entry_id: str | None = None
    ) -> None:
        self.conversation_id = conversation_id
        """The conversation, where it is known: entries may be shared."""
        self.entry_id = entry_id
        """The entry, if it is one."""
        super().__init__(message)


class DamagedConversationError(ConversationError, LookupError):
    """A stored conversation or entry is not as graphkeep wrote it. Other ones can be read.

    A `LookupError`, because that is how `ConversationStore` hears of an entry that is gone.
    """

    def __init__(
        self, *, conversation_id: str | None = None, entry_id: str | None = None, reason: str
    ) -> None:
        self.reason = reason
        """What is wrong with it."""
        what = f'Conversation {conversation_id!r}' if entry_id is None else f'Entry {entry_id!r}'
        super().__init__(
            f'{what} is damaged: {reason}. Others can be read. Restore it from a backup, or '
            f'{"remove its row" if entry_id is None else "delete its conversation"}.',
            conversation_id=conversation_id,
            entry_id=entry_id,
        )


class UnreadableMessageError(ConversationError, ValueError):
    """A stored message cannot be read by this version of pydantic-ai."""

    def __init__(
        self, *, entry_id: str, position: int, library: str, here: str, reason: str
    ) -> None:
        self.position = position
        """How many messages come before it."""
        self.library = library
        """The version of pydantic-ai that wrote it."""
        self.here = here
        """The version that was to read it."""
        self.reason = reason
        """What this version has against it."""
        super().__init__(
            f'Message {position} (entry {entry_id!r}) was written by pydantic-ai {library} and '
            f"cannot be read by {here}: {reason}. It is stored as it was. on_unreadable='skip' "
            'reads the others.',
            entry_id=entry_id,
        )


class ConversationBusyError(ConversationError, RuntimeError):
    """Somebody who may be alive runs an agent in the conversation. Nothing was changed."""

    def __init__(self, *, conversation_id: str, owner: str, updated_at: datetime) -> None:
        self.owner = owner
        """Who, as `host/pid/…`."""
        self.updated_at = updated_at
        """When it last said that it lives (by its clock)."""
        where = '/'.join(owner.split('/')[:2])
        super().__init__(
            f'An agent runs in conversation {conversation_id!r} in process {where}, which wrote at '
            f'{updated_at.isoformat()}. Wait for its end; if it has died, its run can be taken '
            'over when the lease of KeepRun has passed.',
            conversation_id=conversation_id,
        )


class UnfinishedRunError(ConversationError, RuntimeError):
    """A run of an agent was left half-way in this conversation, and something else was asked."""


class StateConflictError(GraphkeepError, ValueError):
    """Two parallel steps changed the same part of the state, and no rule says how to merge it."""

    def __init__(
        self, message: str, *, path: str, steps: tuple[str, str], values: tuple[object, object]
    ) -> None:
        self.path = path
        """What both changed, e.g. `state.count`."""
        self.steps = steps
        """The step that was settled last, and the one before it."""
        self.values = values
        """What each of them made of it."""
        super().__init__(message)


class CodecError(GraphkeepError):
    """A Python value and its JSON do not go together."""

    def __init__(self, message: str, *, path: str) -> None:
        self.path = path
        """Where, e.g. `state.clients[0].lock`."""
        super().__init__(message)


class UnstorableTypeError(CodecError, TypeError):
    """A declared type cannot be stored as JSON. Raised when the graph is bound, before any step."""


class LossyStateError(CodecError, ValueError):
    """A value would not come back as it is. Raised before anything is written."""
