"""The port: what a database must do for graphkeep, and what every store does the same.

Public methods are concrete: set-up once, checks, retries, group commit, taking over from the dead,
fork and prune. A database implements the hooks, whose names begin with an underscore and which are
atomic each.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from . import owner as owners
from .errors import (
    RunBusyError,
    RunNotFoundError,
    RunStatusError,
    StoreClosedError,
    StoreUnavailableError,
)
from .grouping import CommitQueue
from .history import Replay, assemble
from .leases import LeaseKeeper, idle_holder
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
    Status,
    check_labels,
    check_name,
    check_run_id,
)
from .shielding import Ending, to_its_end

if TYPE_CHECKING:
    from .classic import StatePersistence
    from .document import Document

__all__ = ('Store',)

T = TypeVar('T')

ENDED: tuple[Status, ...] = ('done', 'failed', 'cancelled')
_PAGE = 1_000


class Store(ABC):
    """One database and its connections, shared by all runs of the process.

    A store opens at its first use. `async with store:` is what closes it:

    ```python
    async with graphkeep.open_store('sqlite:///runs.db') as store:
        ...
    ```
    """

    max_batch_commits: int = 500
    """Most commits that share one write."""
    max_batch_bytes: int = 8_000_000
    """Most payload bytes that share one write, beyond its first commit."""
    parallel_batches: int = 1
    """Most writes of commits in flight at once."""

    def __init__(
        self,
        *,
        lease: float = 30.0,
        heartbeat: float = 10.0,
        history: Literal['all', 'latest'] = 'all',
        retry: float = 10.0,
    ) -> None:
        """Describe a store; nothing is opened.

        Args:
            lease: Seconds that a claim lasts without being renewed. It must outlast every stretch
                in which a step blocks the event loop.
            heartbeat: Seconds between renewals while a step runs. At most half the lease.
            history: `latest` drops snapshots older than the newest full one; `all` keeps every
                snapshot.
            retry: Seconds for which a call is tried again while the database cannot be reached.
        """
        if not 0 < heartbeat <= lease / 2:
            raise ValueError(
                f'heartbeat must be above 0 and at most half the lease, got {heartbeat} and {lease}'
            )
        if history not in ('all', 'latest'):
            raise ValueError(f"history must be 'all' or 'latest', got {history!r}")
        if retry < 0:
            raise ValueError(f'retry must not be negative, got {retry}')
        self.lease = lease
        self.heartbeat = heartbeat
        self.history: Literal['all', 'latest'] = history
        self.retry = retry
        self._state: Literal['new', 'open', 'closed'] = 'new'
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._queue = CommitQueue(
            self._append_retrying,
            max_commits=self.max_batch_commits,
            max_bytes=self.max_batch_bytes,
            parallel=self.parallel_batches,
            bound=retry + 5.0,
        )
        self.leases = LeaseKeeper(self)
        """Renews the claims of running steps and gives up idle ones."""

    # --- opening and closing ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and set the schema up. Called by the first use; calling it early finds errors
        early.

        Raises:
            StoreUnavailableError: The database cannot be reached.
            SchemaError: The schema may not be created, or is newer than this graphkeep.
            StoreClosedError: The store was closed, or belongs to another process or event loop.
        """
        if self._state == 'open' and self._pid == os.getpid():
            if self._loop is asyncio.get_running_loop():
                return
            raise StoreClosedError(
                f'{self!r} was opened in another event loop. Open one store for each event loop.'
            )
        if self._pid != os.getpid():
            raise StoreClosedError(
                f'{self!r} was inherited through fork(). Open a store of its own in each process.'
            )
        if self._state == 'closed':
            raise StoreClosedError(f'{self!r} has been closed. Open a new one with open_store().')
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._state == 'new':
                await self._retrying(self._open)
                self._loop = asyncio.get_running_loop()
                self._state = 'open'

    async def close(self) -> None:
        """Give up every claim, write out what was handed in, and let go of the database. Calling it
        twice is fine.
        """
        if self._state == 'closed':
            return
        was_open = self._state == 'open'
        inherited = self._pid != os.getpid()
        foreign_loop = self._loop is not None and self._loop is not asyncio.get_running_loop()
        self._state = 'closed'
        if not was_open or inherited:
            return
        ending = await to_its_end(self._shut_down(tidy=not foreign_loop), bound=self.retry + 5.0)
        ending.unwrap()

    async def _shut_down(self, *, tidy: bool) -> None:
        try:
            if tidy:
                await self.leases.close()
                await self._queue.flush()
        finally:
            await self._close()

    # --- runs, for users -------------------------------------------------------------------------

    def persistence(
        self, run_id: str, *, graph: str | None = None, labels: Mapping[str, str] | None = None
    ) -> StatePersistence[Any, Any]:
        """The handle of one run: what is passed as `persistence=` to pydantic-graph.

        Args:
            run_id: The name of the run, 1 to 512 bytes of UTF-8.
            graph: The name under which the run's graph is recorded; the graph's own name if
                omitted.
            labels: Your own labels of a run that is started here, for finding it with
                `runs(labels=…)`.

        Raises:
            ValueError: `run_id`, `graph` or a label cannot be stored.
        """
        # The one place where the port knows a front end: late, because front ends stand on the
        # port.
        from .classic import StatePersistence

        return StatePersistence(self, run_id, graph=graph, labels=labels)

    async def run(self, run_id: str) -> Run:
        """The header of a run.

        Raises:
            RunNotFoundError: There is no such run.
        """
        check_run_id(run_id)
        await self.open()
        found = await self._retrying(lambda: self._header(run_id))
        if found is None:
            raise RunNotFoundError(run_id=run_id)
        return found

    async def runs(
        self,
        *,
        graph: str | None = None,
        status: Status | Sequence[Status] = (),
        labels: Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
        updated_before: datetime | None = None,
        interrupted: bool | None = None,
        after: Run | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Find runs, newest first.

        Args:
            graph: Only runs of the graph recorded under this name.
            status: Only runs with this status, or any of these.
            labels: Only runs that have all of these labels.
            parent_run_id: Only forks of this run.
            updated_before: Only runs last written before this aware datetime.
            interrupted: Only (`True`), or no (`False`), runs whose worker let its lease pass.
            after: The last run of the previous page.
            limit: At most this many.
        """
        statuses = (status,) if isinstance(status, str) else tuple(status)
        return await self.find(
            RunQuery(
                graph=graph,
                status=statuses,
                labels=check_labels(labels),
                parent_run_id=parent_run_id,
                updated_before=updated_before,
                interrupted=interrupted,
                after=None if after is None else (after.created_at, after.run_id),
                limit=limit,
            )
        )

    async def interrupted(self, *, graph: str | None = None, limit: int = 100) -> list[Run]:
        """Runs that a worker left without a word: its lease has passed, or it is proven dead on
        this machine.
        """
        left: list[Run] = []
        after: Run | None = None
        while len(left) < limit:
            page = await self.runs(graph=graph, status='running', after=after, limit=_PAGE)
            left += [r for r in page if r.interrupted or owners.is_proven_dead(r.owner)]
            if len(page) < _PAGE:
                break
            after = page[-1]
        return left[:limit]

    async def snapshots(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[Snapshot]:
        """The stored snapshots of a run, oldest first.

        Args:
            run_id: The run.
            after: Only snapshots with a higher `seq`.
            limit: At most this many; `None` for all.

        Raises:
            RunNotFoundError: There is no such run.
        """
        await self.run(run_id)
        found: list[Snapshot] = []
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            last = found[-1].seq if found else after
            page = await self._retrying(lambda a=last, n=size: self._history(run_id, a, n))
            found += page
            if len(page) < size:
                break
        return found

    async def document(self, run_id: str, *, at: int | None = None) -> Document:
        """The whole run as one JSON document: state, pending tasks, output.

        Args:
            run_id: The run.
            at: The snapshot to look at; the newest if omitted.

        Raises:
            RunNotFoundError: There is no such run.
            ValueError: The run has no such snapshot (any more).
            DamagedRunError: A stored snapshot cannot be read.
        """
        _, replay = await self.read(run_id, at=at)
        return replay.document

    async def fork(self, run_id: str, *, new_run_id: str, at: int | None = None) -> Run:
        """Start a new run from a snapshot of another, which stays as it is.

        Args:
            run_id: The run to start from.
            new_run_id: The id of the new run.
            at: The snapshot to start from; the newest if omitted.

        Returns:
            The new run, `ready`. Forked after the end, it has the last state and no pending node:
            name the node to go on with, `graphkeep.resume(graph, persistence, start=Node())`.

        Raises:
            RunNotFoundError: There is no such run.
            RunExistsError: There is a run named `new_run_id`.
            ValueError: The run has no such snapshot (any more).
        """
        check_run_id(new_run_id)
        parent, replay = await self.read(run_id, at=at)
        document = replay.document
        document.output = None
        fork = NewRun(
            run_id=new_run_id,
            graph=parent.graph,
            labels=parent.labels,
            parent_run_id=run_id,
            parent_seq=replay.seq,
            nonce=new_nonce(),
        )
        draft = Draft(seq=0, kind='full', event='fork', data=document.to_json())
        return await self.create(fork, draft)

    async def cancel(self, run_id: str) -> Run:
        """End a run for good. A worker that is running it finds out at its next commit, which is
        refused.

        Raises:
            RunNotFoundError: There is no such run.
            RunStatusError: The run is done.
        """
        check_run_id(run_id)
        await self.open()
        return await self._retrying(lambda: self._cancel(run_id))

    async def delete(self, run_id: str, *, force: bool = False) -> None:
        """Remove a run and all its snapshots.

        Args:
            run_id: The run.
            force: Also while a worker is running it; that worker's next commit is refused.

        Raises:
            RunNotFoundError: There is no such run.
            RunBusyError: A worker is running it, and `force` is not set.
        """
        check_run_id(run_id)
        await self.open()
        await self._retrying(lambda: self._delete(run_id, force))

    async def prune(
        self,
        *,
        older_than: timedelta,
        status: Status | Sequence[Status] = ENDED,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> int:
        """Delete runs that were last written long ago.

        Args:
            older_than: How long ago at least.
            status: Only runs with this status, or any of these; by default those that have ended.
            graph: Only runs of this graph.
            labels: Only runs with all of these labels.

        Returns:
            How many were deleted. A run that is being worked on is left.
        """
        before = datetime.now(tz=UTC) - older_than
        deleted = 0
        after: Run | None = None
        while True:
            page = await self.runs(
                graph=graph, status=status, labels=labels, updated_before=before, after=after
            )
            for run in page:
                try:
                    await self.delete(run.run_id)
                    deleted += 1
                except (RunNotFoundError, RunBusyError):
                    continue
            if not page:
                return deleted
            after = page[-1]

    # --- runs, for front ends ---------------------------------------------------------------------

    async def create(self, run: NewRun, draft: Draft) -> Run:
        """Insert a run with its first snapshot, claimed if `run.owner` is set.

        Raises:
            RunExistsError: There is a run with this id.
        """
        check_run_id(run.run_id)
        check_name(run.graph, 'graph')
        check_labels(run.labels)
        await self.open()
        return await self._retrying(lambda: self._create(run, draft))

    async def claim(
        self,
        run_id: str,
        *,
        allow: tuple[Status, ...] = ('ready',),
        expected_seq: int | None = None,
    ) -> Claimed:
        """Get the right to write a run, from nobody, from a lease that has passed, or from the
        dead.

        Raises:
            RunNotFoundError: There is no such run.
            RunBusyError: Somebody who may be alive holds it.
            RunStatusError: Its status is not in `allow`.
            RunMovedError: It is not at `expected_seq` any more.
        """
        check_run_id(run_id)
        await self.open()
        expected_epoch: int | None = None
        while True:
            request = ClaimRequest(
                run_id=run_id,
                owner=owners.current(),
                ttl=self.lease,
                allow=allow,
                expected_epoch=expected_epoch,
                expected_seq=expected_seq,
                nonce=new_nonce(),
            )
            try:
                return await self._retrying(lambda r=request: self._claim(r))
            except RunBusyError as busy:
                # Taking over names the epoch that was seen, so that of two who see the same dead
                # owner one wins.
                if expected_epoch == busy.epoch or not _is_gone(busy):
                    raise
                expected_epoch = busy.epoch

    async def append(self, commit: Commit) -> Ending[None]:
        """Write one commit, together with those of other runs that are waiting. Waits to the end
        even if cancelled.

        Returns:
            How it ended: no error, `LeaseLostError` (the claim is not valid any more; nothing was
            written), `StoreWriteError` (the database refused; nothing was written), or
            `StoreUnavailableError` (it could not be reached for `retry` seconds; whether the last
            attempt was written is not known).
        """
        await self.open()
        return await self._queue.put(commit)

    async def renew(self, claims: Sequence[Claim]) -> list[BaseException | None]:
        """Start the leases of these claims anew; gives `LeaseLostError` or `None` for each."""
        await self.open()
        return list(await self._renew(claims, self.lease))

    async def release(self, claim: Claim) -> None:
        """Give a claim up: a `running` run becomes `ready`. A claim that was lost is no error."""
        if self._state != 'closed':
            await self.open()
        await self._retrying(lambda: self._release(claim))

    async def read(self, run_id: str, *, at: int | None = None) -> tuple[Run, Replay]:
        """A run's header and its document at a snapshot. Errors as in `document`."""
        check_run_id(run_id)
        await self.open()
        found = await self._retrying(lambda: self._read(run_id, at))
        if found is None:
            raise RunNotFoundError(run_id=run_id)
        run, snapshots = found
        if at is not None and not 0 <= at <= run.seq:
            raise ValueError(f'run {run_id!r} has snapshots 0 to {run.seq}, there is no {at}')
        return run, assemble(run_id, snapshots, at=run.seq if at is None else at)

    async def find(self, query: RunQuery) -> list[Run]:
        """Find runs, newest first."""
        if query.limit < 1:
            raise ValueError(f'limit must be at least 1, got {query.limit}')
        if query.updated_before is not None and query.updated_before.tzinfo is None:
            raise ValueError('updated_before must be an aware datetime')
        await self.open()
        return list(await self._retrying(lambda: self._find(query)))

    # --- retries ----------------------------------------------------------------------------------

    async def _append_retrying(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        return await self._retrying(lambda: self._append(commits))

    async def _retrying(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again while the database cannot be reached: every write names itself by a nonce, so
        this is safe.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.retry
        pause = 0.05
        while True:
            try:
                return await call()
            except StoreUnavailableError:
                if loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    # --- hooks: what a database implements --------------------------------------------------------
    #
    # Each is atomic. A database that cannot be reached raises StoreUnavailableError (the call may
    # be made again, with the same nonce), one that refuses a write StoreWriteError. Time is the
    # database's.

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
        """Make the run `running` for the owner, with epoch + 1 and a new lease.

        Checked in this order: the run exists (`RunNotFoundError`); its nonce is ours (a retry: it
        is claimed already); it is at `expected_seq` if given (`RunMovedError`); it may be claimed
        (`RunBusyError`, `RunStatusError`). `refused_claim` makes these errors from a header. The
        reply has the snapshots from the newest full one on, read in the same transaction, unless
        `expected_seq` was given.
        """

    @abstractmethod
    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        """Write commits; each succeeds or fails alone, all are durable on return.

        A commit goes through if the run is `running` with its epoch and at `draft.seq - 1`: the
        header takes seq, status, nonce, `draft.error`, `updated_at`, (for a full draft) full_seq, a
        new lease if it stays `running`, else no owner and no lease; the snapshot is inserted; with
        `history='latest'` and a full draft, older snapshots go. If it does not go through: a header
        with its nonce means that it went through before (`None`), else `LeaseLostError`.
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
    async def _read(self, run_id: str, at: int | None) -> tuple[Run, tuple[Snapshot, ...]] | None:
        """Header and snapshots, consistent: from the newest full snapshot not after `at` up to `at`
        (default: the end).
        """

    @abstractmethod
    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        """Snapshots with `seq > after`, oldest first."""

    @abstractmethod
    async def _find(self, query: RunQuery) -> Sequence[Run]:
        """Matching runs, by `created_at` then `run_id`, both descending."""

    @abstractmethod
    async def _cancel(self, run_id: str) -> Run:
        """Make the run `cancelled` with epoch + 1, no owner, no lease. `RunStatusError` if done;
        twice is fine.
        """

    @abstractmethod
    async def _delete(self, run_id: str, force: bool) -> None:
        """Remove the run. `RunNotFoundError`; `RunBusyError` for a live lease unless forced."""


def new_nonce() -> str:
    """A name for one write: 16 hex digits."""
    return secrets.token_hex(8)


def refused_claim(request: ClaimRequest, run: Run | None) -> Exception:
    """Why `run` cannot be claimed: for a hook whose claim matched nothing and which has read the
    header since.
    """
    if run is None:
        return RunNotFoundError(run_id=request.run_id)
    if request.expected_seq is not None and run.seq != request.expected_seq:
        from .errors import RunMovedError

        return RunMovedError(run_id=run.run_id, expected_seq=request.expected_seq, seq=run.seq)
    if run.status == 'running':
        return RunBusyError(
            run_id=run.run_id, owner=run.owner, lease_until=run.lease_until, epoch=run.epoch
        )
    return not_claimable(run)


def not_claimable(run: Run) -> RunStatusError:
    """The error for a run whose status does not let it go on."""
    advice = {
        'done': 'It has ended: graphkeep.resume() returns its stored output, store.fork() starts a new run from it.',
        'failed': 'graphkeep.resume() runs the node that failed again.',
        'cancelled': 'It was cancelled: store.fork() starts a new run from it.',
    }.get(run.status, 'Try again.')
    return RunStatusError(
        f'Run {run.run_id!r} has status {run.status!r}. {advice}',
        run_id=run.run_id,
        status=run.status,
    )


def _is_gone(busy: RunBusyError) -> bool:
    """Whether the holder of a live claim is a dead process, or a handle of this process that runs
    no step.
    """
    if owners.is_this_process(busy.owner):
        return idle_holder(busy.run_id, busy.epoch)
    return owners.is_proven_dead(busy.owner)
