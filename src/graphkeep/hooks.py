"""What a database implements: the hooks of a store.

Each is atomic. A database that cannot be reached raises `StoreUnavailableError` (the call may be
made again, with the same nonce), one that refuses a write `StoreWriteError`. Time is the
database's.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from .conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from .errors import RunBusyError, RunMovedError, RunNotFoundError, RunStatusError
from .requests import Request, RequestQuery
from .runs import (
    Claim,
    Claimed,
    ClaimRequest,
    Commit,
    Draft,
    NewRun,
    Run,
    RunQuery,
    Snapshot,
    SnapshotData,
)

__all__ = ('Hooks', 'busy', 'new_nonce', 'not_claimable', 'refused_claim')


class Hooks(ABC):
    """The hooks, and nothing else."""

    _stretch: ClassVar[int | None] = None
    """Most entries of a long history that are asked for at once, if it pays to ask for more while
    Python decodes what is there: where the database is another process. All of them if `None`.
    """

    @abstractmethod
    async def _open(self) -> None:
        """Connect, set up or migrate the schema. May be called again after it failed; leaves
        nothing open then.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Let go of everything that `_open` made, and of nothing that the user made."""

    @abstractmethod
    async def _create(self, run: NewRun, draft: Draft) -> Run:
        """Insert run and snapshot 0, or raise `RunExistsError`.

        The epoch starts at the database's microseconds since 1970, so that a run which is deleted
        and created again never meets an old epoch. If a run is there with `run.nonce` in its
        header, this is a retry: return it.
        """

    @abstractmethod
    async def _claim(self, request: ClaimRequest) -> Claimed:
        """Make the run `running` for the owner, with epoch + 1, a new lease and no `wake_at`.

        Checked in this order: the run exists (`RunNotFoundError`); it is `running` with our nonce
        (a retry: it is claimed already; a cancel in between leaves the nonce, but not the status);
        it is at `expected_seq` if given (`RunMovedError`); it may be claimed (`RunBusyError`,
        `RunStatusError`). `refused_claim` makes these errors from a header. The reply has the
        snapshots from the newest full one on, read in the same transaction, unless `expected_seq`
        was given.
        """

    @abstractmethod
    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        """Write commits; each succeeds or fails alone, all are durable on return.

        A commit goes through if the run is `running` with its epoch and at `draft.seq - 1`: the
        header takes seq, status, nonce, `draft.error`, `updated_at`, (for a full draft) full_seq, a
        new lease if it stays `running`, else no owner and no lease; the snapshot is inserted; with
        `history='latest'` and a full draft, older snapshots go. If it does not go through: a header
        with its nonce means that it went through before (`None`), else `LeaseLostError`.

        With it go its requests: `asks` are inserted as `open`, with a deadline `timeout` seconds
        from now. One that is there stays as it is, unless it has an `error`: then it is opened
        again, closed or not, without its answer, with the prompt, payload and schema that it has
        now, and with the deadline it had. `closes` get a `closed_at`, and those that are open
        become `closed`. With the status `paused`, `wake_at` is the earliest of the commit's
        `wake_at` and of the deadlines of what is new or opened again; but if the header's
        `answered` is above the commit's, the run becomes `ready` instead, without a `wake_at`.
        """

    @abstractmethod
    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        """Set the lease to now + ttl where the run is `running` with this epoch, else
        `LeaseLostError`.
        """

    @abstractmethod
    async def _release(self, claim: Claim) -> None:
        """`running` with this epoch becomes `ready`, without owner and lease; otherwise nothing
        happens.
        """

    @abstractmethod
    async def _header(self, run_id: str) -> Run | None:
        """The run's header."""

    @abstractmethod
    async def _read(
        self, run_id: str, at: int | None
    ) -> tuple[Run, Sequence[Snapshot | SnapshotData]] | None:
        """Header and snapshots, consistent: from the newest full snapshot not after `at` up to `at`
        (default: the end). Their data is enough.
        """

    @abstractmethod
    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        """Snapshots with `seq > after`, oldest first."""

    @abstractmethod
    async def _find(self, query: RunQuery) -> Sequence[Run]:
        """Matching runs, by `created_at` then `run_id`, both descending."""

    @abstractmethod
    async def _cancel(self, run_id: str) -> Run:
        """Make the run `cancelled` with epoch + 1, no owner, no lease, no `wake_at`; its requests
        are closed as by a commit's `closes`. `RunStatusError` if done; twice is fine.
        """

    @abstractmethod
    async def _delete(self, run_id: str, force: bool) -> None:
        """Remove the run, its snapshots and its requests. `RunNotFoundError`; `RunBusyError` for a
        live lease unless forced.
        """

    @abstractmethod
    async def _candidates(self, graphs: Sequence[str], limit: int) -> Sequence[Run]:
        """Runs of these graphs that can be claimed, longest untouched first (by `updated_at`).

        That is `ready`, `running` with a lease that has passed, `paused` with a `wake_at` that has.
        """

    @abstractmethod
    async def _requests(self, query: RequestQuery) -> Sequence[Request]:
        """Matching requests, by `created_at`, `run_id` and `request_id`."""

    @abstractmethod
    async def _answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        """Answer an open request whose deadline has not passed: it becomes `answered`, the run's
        `answered` rises by one, and a `paused` run becomes `ready`, without a `wake_at`. An open
        one whose deadline has passed becomes `expired`; any other stays as it is.

        Returns:
            The request as it is then; `None` if there is none.
        """

    @abstractmethod
    async def _expire(self, run_id: str) -> None:
        """The open requests of a run whose deadlines have passed become `expired`."""

    @abstractmethod
    async def _write_conversation(self, write: ConversationWrite) -> bool:
        """Insert or replace a conversation, and insert its new entries and their blobs.

        It goes through if the row that is stored has the `expected_revision` (or there is none, or
        an expired one, if that is `None`) and each tip, and each parent of a new entry, is stored
        or among the new entries. A row that has `conversation.revision` already means that an
        earlier attempt went through: nothing is written again; so does an entry that is there with
        the same parent and data. An entry that is there with others is a conflict.

        Where the new tips leave entries that no conversation reaches, those are removed, with the
        blobs that nobody needs any more; so are those of an expired conversation that is replaced.
        `expires_at` becomes now + `ttl`.

        Returns:
            Whether it went through; if not, nothing was written.
        """

    @abstractmethod
    async def _delete_conversation(self, conversation_id: str, revision: str) -> bool:
        """Remove the conversation if it has this revision (also one that has expired), the entries
        that no other conversation reaches, and the blobs that no other entry needs.

        Returns:
            Whether there was one.
        """

    @abstractmethod
    async def _conversations(self, query: ConversationQuery) -> Sequence[StoredConversation]:
        """Matching conversations, by `updated_at` then `conversation_id`, both descending; expired
        ones by when they expired.

        One that cannot be read raises `DamagedConversationError` if it was asked for by its id, and
        is left out with a warning otherwise.
        """

    @abstractmethod
    async def _entries(self, query: EntriesQuery) -> StoredEntries | None:
        """A part of the history that ends in `head_id`, in order, with its blobs, consistent.

        `limit`: the last so many. Otherwise those with `start <= position < stop`. `None` if there
        is no such entry.

        Raises:
            DamagedConversationError: An entry, or the chain, is not as it was written; names the
                entry. Whether its JSON is that of a message is not looked at.
        """

    async def _watch(self, heard: Callable[[str | None], None]) -> None:  # noqa: B027 - optional
        """Call `heard` with the id of each run that is answered from now on, and with `None` when
        some may have been missed. Runs until it is cancelled; returns where the database cannot
        tell: then it is asked again and again.
        """


def new_nonce() -> str:
    """A name for one write: 16 hex digits."""
    return os.urandom(8).hex()


def refused_claim(request: ClaimRequest, run: Run | None) -> Exception:
    """Why `run` cannot be claimed: for a hook whose claim matched nothing and which has read the
    header since.
    """
    if run is None:
        return RunNotFoundError(run_id=request.run_id)
    if request.expected_seq is not None and run.seq != request.expected_seq:
        return RunMovedError(run_id=run.run_id, expected_seq=request.expected_seq, seq=run.seq)
    if run.status == 'running':
        return busy(run)
    return not_claimable(run)


def busy(run: Run) -> RunBusyError:
    """The error for a run that somebody holds."""
    return RunBusyError(
        run_id=run.run_id, owner=run.owner, lease_until=run.lease_until, epoch=run.epoch
    )


def not_claimable(run: Run) -> RunStatusError:
    """The error for a run whose status does not let it go on."""
    advice = {
        'done': 'It has ended: graphkeep.resume() returns its stored output, store.fork(…, at=…) '
        'starts a new run from one of its snapshots (from its end, only one of a 1.x graph).',
        'failed': 'graphkeep.resume() runs the node that failed again.',
        'cancelled': 'It was cancelled: store.fork() starts a new run from it.',
        'paused': f'It waits for answers: see store.requests(run_id={run.run_id!r}).',
    }.get(run.status, 'Try again.')
    return RunStatusError(
        f'Run {run.run_id!r} has status {run.status!r}. {advice}',
        run_id=run.run_id,
        status=run.status,
    )
