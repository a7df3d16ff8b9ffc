"""What every database does the same for a front end: set-up once, checks, retries, group commit,
claims.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

from . import owner as owners
from .errors import (
    DamagedRunError,
    GraphkeepError,
    LeaseLostError,
    RunBusyError,
    RunNotFoundError,
    StoreClosedError,
    StoreUnavailableError,
)
from .grouping import CommitQueue
from .history import Replay, assemble
from .hooks import Hooks, new_nonce
from .leases import LeaseKeeper, idle_holder
from .notices import Notices
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
    Status,
    check_count,
    check_labels,
    check_name,
    check_run_id,
)
from .shielding import Ending, to_its_end

__all__ = ('Port',)

T = TypeVar('T')

_UNSTORABLE = re.compile('[\0\ud800-\udfff]')
_TURN = 16
"""Commits of a store that is not grouped between two turns of the event loop."""


class Port(Hooks):
    """The part of a store that front ends stand on."""

    max_batch_commits: int = 500
    """Most commits that share one write."""
    max_batch_bytes: int = 8_000_000
    """Most payload bytes that share one write, beyond its first commit."""
    grouped: bool = True
    """Whether commits share writes. `False` for a store whose `_append` never waits."""
    parallel_batches: int = 1
    """Most writes of commits in flight at once."""

    def __init__(
        self,
        *,
        lease: float = 30.0,
        heartbeat: float | None = None,
        history: Literal['all', 'latest'] = 'all',
        retry: float = 10.0,
    ) -> None:
        """Describe a store; nothing is opened.

        Args:
            lease: Seconds that a claim lasts without being renewed. It must outlast every stretch
                in which a step blocks the event loop.
            heartbeat: Seconds between renewals while a step runs, at most half the lease; a third
                of it if omitted.
            history: `latest` drops snapshots older than the newest full one; `all` keeps every
                snapshot.
            retry: Seconds for which a call is tried again while the database cannot be reached.
        """
        heartbeat = lease / 3 if heartbeat is None else heartbeat
        if not 0 < heartbeat <= lease / 2 or math.isinf(lease):
            raise ValueError(
                'the lease must be finite, and the heartbeat above 0 and at most half the lease; '
                f'got a lease of {lease} and a heartbeat of {heartbeat}'
            )
        if history not in ('all', 'latest'):
            raise ValueError(f"history must be 'all' or 'latest', got {history!r}")
        if retry < 0:
            raise ValueError(f'retry must not be negative, got {retry}')
        self.lease = lease
        self.heartbeat = heartbeat
        self.history: Literal['all', 'latest'] = history
        self.retry = retry
        self._state: Literal['new', 'open', 'closing', 'closed'] = 'new'
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._unyielded = 0
        self._queue = CommitQueue(
            self._append_retrying,
            max_commits=self.max_batch_commits,
            max_bytes=self.max_batch_bytes,
            parallel=self.parallel_batches,
            bound=retry + 5.0,
        )
        self.leases = LeaseKeeper(self)
        """Renews the claims of running steps and gives up idle ones."""
        self.notices = Notices(self)
        """Wakes who waits for an answer."""

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
        if self._pid != os.getpid():
            raise StoreClosedError(
                f'{self!r} was inherited through fork(). Open a store of its own in each process.'
            )
        if self._state == 'open':
            if self._loop is asyncio.get_running_loop():
                return
            raise StoreClosedError(
                f'{self!r} was opened in another event loop. Open one store for each event loop.'
            )
        self._refuse_closed()
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            self._refuse_closed()
            if self._state == 'new':
                await self._retrying(self._open)
                try:
                    self._refuse_closed()
                except StoreClosedError:
                    # Closed while it was opening: nobody else knows what has just been opened.
                    await to_its_end(self._close(), bound=self.retry + 5.0)
                    raise
                self._loop = asyncio.get_running_loop()
                self._state = 'open'

    def _refuse_closed(self) -> None:
        if self._state in ('closing', 'closed'):
            raise StoreClosedError(f'{self!r} has been closed. Open a new one with open_store().')

    async def close(self) -> None:
        """Write out what was handed in, give up every claim, and let go of the database. Calling it
        twice is fine.
        """
        if self._state in ('closing', 'closed'):
            return
        if self._state == 'new' or self._pid != os.getpid():
            self._state = 'closed'
            return
        self._state = 'closing'
        tidy = self._loop is asyncio.get_running_loop()
        ending = await to_its_end(self._shut_down(tidy=tidy), bound=self.retry + 5.0)
        ending.unwrap()

    async def _shut_down(self, *, tidy: bool) -> None:
        try:
            if tidy:
                # In this order: a commit that waits its turn needs the claim it was made under.
                await self._queue.flush()
                await self.notices.close()
                await self.leases.close()
        finally:
            self._state = 'closed'
            await self._close()

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
        if self.grouped:
            ending = await self._queue.put(commit)
            if isinstance(ending.error, LeaseLostError) and ending.cancelled is None:
                return Ending(error=await self._lost(commit.claim, ending.error))
            return ending
        cancelled: asyncio.CancelledError | None = None
        self._unyielded += 1
        if self._unyielded >= _TURN:
            # A graph whose nodes wait for nothing must not keep the loop for itself.
            self._unyielded = 0
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as e:
                cancelled = e
        (error,) = await self._append((commit,))
        return Ending(error=error, cancelled=cancelled)

    async def _lost(self, claim: Claim, error: LeaseLostError) -> LeaseLostError:
        """The error of a lost claim, told apart by whether the run is still there."""
        try:
            found = await self._header(claim.run_id)
        except GraphkeepError:
            return error
        exists = found is not None
        return LeaseLostError(run_id=claim.run_id, epoch=claim.epoch, exists=exists)

    async def renew(self, claims: Sequence[Claim]) -> list[BaseException | None]:
        """Start the leases of these claims anew; gives `LeaseLostError` or `None` for each."""
        await self.open()
        return list(await self._renew(claims, self.lease))

    async def release(self, claim: Claim) -> None:
        """Give a claim up: a `running` run becomes `ready`. A claim that was lost is no error."""
        if self._state != 'closing':
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
        if not snapshots and (at is None or at >= run.full_seq):
            raise DamagedRunError(run_id=run_id, seq=run.full_seq, reason='it is missing')
        return run, assemble(run_id, snapshots, at=run.seq if at is None else at)

    async def find(self, query: RunQuery) -> list[Run]:
        """Find runs, newest first."""
        check_count(query.limit, 'limit')
        if query.updated_before is not None and query.updated_before.tzinfo is None:
            raise ValueError('updated_before must be an aware datetime')
        await self.open()
        if not may_be_stored(query.graph, query.parent_run_id):
            return []
        return list(await self._retrying(lambda: self._find(query)))

    async def candidates(self, graphs: Sequence[str], *, limit: int) -> list[Run]:
        """Runs of these graphs that can be claimed, longest untouched first."""
        check_count(limit, 'limit')
        await self.open()
        return list(await self._retrying(lambda: self._candidates(graphs, limit)))

    async def find_requests(self, query: RequestQuery) -> list[Request]:
        """Find requests, oldest first."""
        if query.limit is not None:
            check_count(query.limit, 'limit')
        if query.created_before is not None and query.created_before.tzinfo is None:
            raise ValueError('created_before must be an aware datetime')
        await self.open()
        if not may_be_stored(query.run_id, query.request_id, query.name, query.graph):
            return []
        return list(await self._retrying(lambda: self._requests(query)))

    async def expire(self, run_id: str) -> None:
        """Close the requests of a run whose deadlines have passed to answers, for good."""
        await self.open()
        await self._retrying(lambda: self._expire(run_id))

    async def watch(self, heard: Callable[[str | None], None]) -> None:
        """As `_watch`."""
        await self.open()
        await self._watch(heard)

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


def may_be_stored(*texts: str | None) -> bool:
    """Whether these can be stored anywhere: what cannot, matches nothing. Not every database takes
    NUL or a surrogate even to compare.
    """
    return not any(text is not None and _UNSTORABLE.search(text) for text in texts)


def _is_gone(busy: RunBusyError) -> bool:
    """Whether the holder of a live claim is a dead process, or a handle of this process that runs
    no step.
    """
    if owners.is_this_process(busy.owner):
        return idle_holder(busy.run_id, busy.epoch)
    return owners.is_proven_dead(busy.owner)
