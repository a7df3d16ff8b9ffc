"""One run in memory, and the commits that carry it forward. Both front ends stand on this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from . import owner as owners
from .document import SMALL, Change, Document, wants_full
from .errors import LeaseLostError
from .history import Replay
from .hooks import busy
from .leases import Lease, claiming
from .requests import NewRequest
from .runs import Claim, Commit, Draft, Event, NewRun, Run, SnapshotKind, Status
from .shielding import Ending, to_its_end
from .store import Store, new_nonce

__all__ = ('Journal', 'check_not_held')

_NOTHING = b'{"format":1}'
"""A delta that changes nothing: for the event `error`, which leaves the document as it was."""


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class Journal:
    """A run as this process knows it: its document, the snapshot it is at, and the claim, while
    there is one.

    A journal that failed to commit may not match the database any more: drop it and load the run
    again.
    """

    __slots__ = (
        '_delta_bytes',
        '_deltas',
        '_full_bytes',
        '_lease',
        'answered',
        'document',
        'first_epoch',
        'run_id',
        'seq',
        'store',
    )

    def __init__(self, store: Store, run: Run, replay: Replay) -> None:
        """Take a run as it was read; nothing is claimed."""
        self.store = store
        self.run_id = run.run_id
        self.seq = run.seq
        self.first_epoch = (run.created_at - _BEGINNING) // timedelta(microseconds=1)
        """The epoch the run was created with: the database's microseconds then."""
        self.answered = run.answered
        """How many answers to its requests there were when it was read."""
        self.document = replay.document
        self._full_bytes = replay.full_bytes
        self._deltas = replay.deltas
        self._delta_bytes = replay.delta_bytes
        self._lease: Lease | None = None

    @classmethod
    async def start(
        cls,
        store: Store,
        run_id: str,
        document: Document,
        *,
        graph: str | None,
        labels: Mapping[str, str],
        claimed: bool,
    ) -> Journal:
        """Create the run with its first snapshot.

        Args:
            store: Where.
            run_id: The name of the run.
            document: The run before its first step.
            graph: The name the graph is recorded under.
            labels: The user's labels.
            claimed: Claim it at once, to run it; else it is `ready`.

        Raises:
            RunExistsError: There is a run with this id.
        """
        data = document.to_json()
        new = NewRun(
            run_id=run_id,
            graph=graph,
            labels=labels,
            owner=owners.current() if claimed else None,
            ttl=store.lease,
            nonce=new_nonce(),
        )

        async def create() -> Journal:
            with claiming(run_id):
                run = await store.create(new, Draft(seq=0, kind='full', event='start', data=data))
                replay = Replay.of(run_id, document, full_bytes=len(data))
                journal = cls(store, run, replay)
                if claimed:
                    journal._hold(run.claim())
                return journal

        ending = await to_its_end(create(), bound=store.retry + 5.0)
        if ending.cancelled is not None and ending.value is not None:
            await ending.value.release()
        journal = ending.unwrap()
        journal._told()
        return journal

    @classmethod
    async def load(cls, store: Store, run_id: str) -> tuple[Run, Journal]:
        """Read a run; claims and changes nothing. Errors as in `Store.document`."""
        run, replay = await store.read(run_id)
        return run, cls(store, run, replay)

    @property
    def claimed(self) -> bool:
        """Whether this process has the right to write the run, as far as it knows."""
        return self._lease is not None and self._lease.valid

    @property
    def writing(self) -> bool:
        """Whether a commit is in flight."""
        return self._lease is not None and self._lease.writing

    @property
    def epoch(self) -> int:
        """The epoch of the claim, lost or not: `commit` tells. `LeaseLostError` without one."""
        lease = self._lease or self._valid_lease()
        return lease.claim.epoch

    def key_of(self, task: str) -> str:
        """A name for a task that no other task has, of this run or of another of the same id."""
        return f'{self.run_id}/{self.first_epoch}/{task}'

    def attempt(self, born: int) -> int:
        """The how-manieth claim this is since a task was made: 1 for the claim that made it."""
        return self.epoch - (born or self.first_epoch) + 1

    async def claim(self, *, allow: tuple[Status, ...] = ('ready',)) -> None:
        """Get the right to write the run, if it is still as it was read.

        Raises:
            RunMovedError: Somebody wrote to it meanwhile.
            RunBusyError: Somebody who may be alive holds it.
            RunStatusError: Its status is not in `allow`.
            RunNotFoundError: It was deleted.
        """

        async def claim() -> None:
            with claiming(self.run_id):
                claimed = await self.store.claim(self.run_id, allow=allow, expected_seq=self.seq)
                self._hold(claimed.claim)

        ending = await to_its_end(claim(), bound=self.store.retry + 5.0)
        if ending.cancelled is not None and ending.error is None:
            await self.release()
        ending.unwrap()
        self._told()

    def step_begins(self) -> None:
        """From now on a step runs: the claim is renewed, and nobody takes it for idle."""
        self._valid_lease().busy = True

    def step_ends(self) -> None:
        """No step runs any more: the claim is given up soon, if nothing follows."""
        if self._lease is not None:
            self._lease.busy = False
            self._lease.idle_since = monotonic()

    async def commit(
        self,
        change: Change,
        *,
        event: Event,
        status: Status = 'running',
        node: str | None = None,
        task: str | None = None,
        started_at: datetime | None = None,
        duration: float | None = None,
        asks: Sequence[NewRequest] = (),
        closes: Sequence[str] = (),
        answered: int = 0,
        wake_at: datetime | None = None,
    ) -> Ending[None]:
        """Write one snapshot. Waits to the end even if cancelled.

        Args:
            change: What it changes in the document.
            event: Why.
            status: What the run is afterwards; any but `running` gives the claim up.
            node: The node whose end this records.
            task: Its task.
            started_at: When it started (aware).
            duration: How long it ran, in seconds.
            asks: The requests that go with it.
            closes: The requests whose tasks have ended.
            answered: For the status `paused`: as in `Commit`.
            wake_at: For the status `paused`: as in `Commit`.

        Returns:
            How the write ended: see `Store.append`. After an error the journal is of no more use,
            but for `fail`.

        Raises:
            LeaseLostError: The claim was lost before.
            StoreClosedError: The store was closed, which ended the claim.
        """
        if not self.claimed:
            await self.store.open()
        lease = self._valid_lease()
        kind, data, size = self._snapshot(change)
        draft = Draft(
            seq=self.seq + 1,
            kind=kind,
            event=event,
            data=data,
            node=node,
            task=task,
            started_at=started_at,
            duration=duration,
        )
        ending = await self._write(
            lease,
            draft,
            status,
            asks=tuple(asks),
            closes=tuple(closes),
            answered=answered,
            wake_at=wake_at,
        )
        if ending.error is None:
            self.document.advance(change, size=size)
            self.seq += 1
            if kind == 'full':
                self._full_bytes, self._deltas, self._delta_bytes = len(data), 0, 0
            else:
                self._deltas += 1
                self._delta_bytes += len(data)
        return ending

    def _snapshot(self, change: Change) -> tuple[SnapshotKind, bytes, int]:
        """What to write for `change`, and how many bytes the document then has."""
        document = self.document
        if document.size <= SMALL:
            data = document.to_json(change)
            if len(data) <= SMALL:
                return 'full', data, len(data)
        size = document.size_after(change)
        data = document.delta(change) or _NOTHING
        if wants_full(
            size, len(data), full=self._full_bytes, deltas=self._deltas, since=self._delta_bytes
        ):
            return 'full', document.to_json(change), size
        return 'delta', data, size

    async def fail(
        self,
        error: Mapping[str, Any],
        *,
        node: str | None = None,
        task: str | None = None,
        started_at: datetime | None = None,
        duration: float | None = None,
    ) -> Ending[None]:
        """Record that a step raised, leave the document as it was, and give the claim up."""
        draft = Draft(
            seq=self.seq + 1,
            kind='delta',
            event='error',
            data=_NOTHING,
            node=node,
            task=task,
            started_at=started_at,
            duration=duration,
            error=error,
        )
        ending = await self._write(self._valid_lease(), draft, 'failed')
        if ending.error is None:
            self.seq += 1
            self._deltas += 1
            self._delta_bytes += len(_NOTHING)
        return ending

    async def release(self) -> Ending[None]:
        """Give the claim up, if there is one: the run becomes `ready`."""
        lease, self._lease = self._lease, None
        if lease is None:
            return Ending()
        return await self.store.leases.give_up(lease)

    def abandon(self) -> None:
        """Leave the claim to its lease, without a word to the database: it cannot be reached."""
        if self._lease is not None:
            self.store.leases.drop(self._lease)
            self._lease = None

    async def _write(
        self,
        lease: Lease,
        draft: Draft,
        status: Status,
        *,
        asks: tuple[NewRequest, ...] = (),
        closes: tuple[str, ...] = (),
        answered: int = 0,
        wake_at: datetime | None = None,
    ) -> Ending[None]:
        commit = Commit(
            claim=lease.claim,
            draft=draft,
            status=status,
            ttl=self.store.lease,
            nonce=new_nonce(),
            history=self.store.history,
            asks=asks,
            closes=closes,
            answered=answered,
            wake_at=wake_at,
        )
        started = monotonic()
        lease.writing = True
        try:
            ending = await self.store.append(commit)
        finally:
            lease.writing = False
        lease.renewed_at = lease.idle_since = started
        gone = (
            status != 'running'
            if ending.error is None
            else isinstance(ending.error, LeaseLostError)
        )
        if gone:
            self.abandon()
        return ending

    def _hold(self, claim: Claim) -> None:
        self._lease = self.store.leases.hold(claim)
        self._lease.fresh = True

    def _told(self) -> None:
        if self._lease is not None:
            self._lease.fresh = False

    def _valid_lease(self) -> Lease:
        lease = self._lease
        if lease is None or not lease.valid:
            epoch = -1 if lease is None else lease.claim.epoch
            raise LeaseLostError(run_id=self.run_id, epoch=epoch)
        return lease


def check_not_held(run: Run) -> None:
    """Raise for a run that another process holds, unless its lease has passed or the process is
    proven dead.

    Raises:
        RunBusyError: That process may be alive.
    """
    if run.status != 'running' or run.interrupted or owners.is_this_process(run.owner):
        return
    if not owners.is_proven_dead(run.owner):
        raise busy(run)
