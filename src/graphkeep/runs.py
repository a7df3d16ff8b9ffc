"""The records that every store speaks: runs, snapshots, claims, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from .requests import NewRequest

__all__ = (
    'Claim',
    'ClaimRequest',
    'Claimed',
    'Commit',
    'Draft',
    'Event',
    'NewRun',
    'Run',
    'RunQuery',
    'Snapshot',
    'SnapshotData',
    'SnapshotKind',
    'Status',
    'check_count',
    'check_labels',
    'check_name',
    'check_run_id',
)

Status = Literal['ready', 'running', 'paused', 'failed', 'done', 'cancelled']
"""What a run is doing: docs/design.md has the table of statuses and what leads out of each."""

Event = Literal['start', 'step', 'edit', 'replace', 'once', 'pause', 'error', 'end', 'fork']
"""Why a snapshot was written."""

SnapshotKind = Literal['full', 'delta']


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The header of one durable execution of a graph."""

    run_id: str
    """The name the user chose: 1 to 512 bytes of UTF-8."""
    graph: str | None = None
    """The name of the graph, where it has one."""
    status: Status
    """What the run is doing. A `running` run whose lease has passed is *interrupted*."""
    seq: int
    """Number of the newest snapshot; the first is 0."""
    full_seq: int
    """Number of the newest full snapshot: reading starts there."""
    epoch: int
    """The fencing token: raised by every claim, checked by every write."""
    owner: str | None = None
    """Who holds the claim, while there is one."""
    lease_until: datetime | None = None
    """When the claim ends if it is not renewed (UTC, the database's clock)."""
    interrupted: bool = False
    """`True` when the status is `running` and the lease had passed as it was read, by the
    database's clock.
    """
    answered: int = 0
    """How many answers to its requests were accepted: raised by each."""
    wake_at: datetime | None = None
    """Of a `paused` run: the first deadline of its requests (UTC, the database's clock)."""
    due: bool = False
    """`True` when the status is `paused` and `wake_at` had passed as it was read, by the database's
    clock: the run can go on.
    """
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The user's own labels, for finding runs."""
    error: Mapping[str, Any] | None = None
    """What a failed run failed with: `{'type': …, 'message': …, 'node': …, 'traceback': …}`."""
    parent_run_id: str | None = None
    """The run this one was forked from."""
    parent_seq: int | None = None
    """The snapshot it was forked at."""
    created_at: datetime
    """When the run was created (UTC, the database's clock)."""
    updated_at: datetime
    """When the run was last written (UTC, the database's clock)."""

    def claim(self) -> Claim:
        """The claim its owner has."""
        if self.owner is None:
            raise ValueError(f'run {self.run_id!r} is not claimed')
        return Claim(run_id=self.run_id, owner=self.owner, epoch=self.epoch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One committed version of a run's document."""

    seq: int
    kind: SnapshotKind
    """`full`: `data` is the document. `delta`: `data` is what changed since `seq - 1`."""
    event: Event
    data: bytes
    """JSON, UTF-8."""
    node: str | None = None
    """The node (or step) whose end this snapshot records."""
    task: str | None = None
    """The task whose end this snapshot records."""
    started_at: datetime | None = None
    """When that task started (UTC, the worker's clock)."""
    duration: float | None = None
    """How long it ran, in seconds."""
    error: Mapping[str, Any] | None = None
    """What the task raised, for the event `error`."""
    created_at: datetime
    """When it was committed (UTC, the database's clock)."""


class SnapshotData(NamedTuple):
    """As much of a snapshot as a document is put together from.

    A long run is read from thousands of deltas: a whole `Snapshot` of each takes longer than
    applying it.
    """

    seq: int
    kind: SnapshotKind
    data: bytes


class Draft(NamedTuple):
    """A snapshot that is about to be written; the store adds `created_at`.

    A tuple, as `Commit`: they are made at every step, and a frozen dataclass takes four times as
    long.
    """

    seq: int
    kind: SnapshotKind
    event: Event
    data: bytes
    node: str | None = None
    task: str | None = None
    started_at: datetime | None = None
    duration: float | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The right to write one run."""

    run_id: str
    owner: str
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """The header of a run that is about to be created."""

    run_id: str
    graph: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    parent_run_id: str | None = None
    parent_seq: int | None = None
    owner: str | None = None
    """Claim the run at once for this owner (status `running`); `None` creates it `ready`."""
    ttl: float = 0.0
    """The lease of that claim, in seconds."""
    nonce: str
    """Names this call in the header, so that a retry after a lost reply recognises itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRequest:
    """Who wants to write which run, and what they know of it."""

    run_id: str
    owner: str
    ttl: float
    """The lease, in seconds."""
    allow: tuple[Status, ...] = ('ready',)
    """Statuses that may be claimed. A `running` run may be when its lease has passed, and a
    `paused` one when its `wake_at` has, whatever is named here.
    """
    expected_epoch: int | None = None
    """Also claim a `running` run whose lease is alive, if this is its epoch: its owner is known to
    be gone.
    """
    expected_seq: int | None = None
    """Claim only if this is still the newest snapshot; the reply then carries no snapshots."""
    nonce: str
    """Names this call in the header, so that a retry after a lost reply recognises itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A claim that was got, and what the run looks like under it."""

    claim: Claim
    run: Run
    snapshots: tuple[Snapshot, ...]
    """The newest full snapshot and the deltas after it, in order; empty when the caller named the
    seq it had read.
    """


class Commit(NamedTuple):
    """One fenced write: it succeeds only while `claim.epoch` is the run's and its seq is `draft.seq
    - 1`.
    """

    claim: Claim
    draft: Draft
    status: Status
    """The status after the commit. `running` renews the lease; any other gives the claim up."""
    ttl: float
    """The lease from now on, in seconds; unused when `status` is not `running`."""
    nonce: str
    """Names this commit in the header, so that a retry after a lost reply recognises itself."""
    history: Literal['all', 'latest'] = 'all'
    """`latest`: when `draft` is full, drop the snapshots before it, in the same transaction."""
    asks: tuple[NewRequest, ...] = ()
    """Requests to store with it, or to open again."""
    closes: tuple[str, ...] = ()
    """Requests whose tasks have ended."""
    answered: int = 0
    """With the status `paused`: how many answers the worker has seen. If there are more, the run
    becomes `ready` instead."""
    wake_at: datetime | None = None
    """With the status `paused`: the first deadline of the requests that are open already. Those of
    `asks` count as well."""

    @property
    def plain(self) -> bool:
        """Whether it is a step's end and nothing else, as nearly every commit is."""
        return not (self.asks or self.closes or self.status == 'paused')


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuery:
    """Which runs to find. Every field that is set must match."""

    graph: str | None = None
    status: tuple[Status, ...] = ()
    """Any of these; empty means all."""
    interrupted: bool | None = None
    """`True`: only `running` runs whose lease has passed; `False`: none of these."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """All of these labels with these values."""
    parent_run_id: str | None = None
    updated_before: datetime | None = None
    """Last written before this time (an aware datetime)."""
    after: tuple[datetime, str] | None = None
    """Only runs after this one in the order: `(created_at, run_id)` of the last run of the previous
    page.
    """
    limit: int = 100
    """At most this many, newest first (by `created_at`, then `run_id` descending)."""


def check_run_id(run_id: str) -> None:
    """Refuse what is not 1 to 512 bytes of UTF-8 without NUL.

    Raises:
        TypeError: It is not a string.
        ValueError: It cannot name a run.
    """
    _check_text(run_id, 'run_id')


def check_name(name: str | None, what: str) -> None:
    """Refuse a graph name that is neither `None` nor 1 to 512 bytes of UTF-8 without NUL. Errors as
    for run ids.
    """
    if name is not None:
        _check_text(name, what)


def check_count(count: object, what: str) -> None:
    """Refuse what is not a whole number of at least 1.

    Raises:
        TypeError: It is no `int`; a bool is none.
        ValueError: It is below 1.
    """
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f'{what} must be a whole number of at least 1, got {count!r}')
    if count < 1:
        raise ValueError(f'{what} must be at least 1, got {count}')


def check_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of `labels`: strings to strings, without NUL and surrogates, keys and values up to 512
    bytes.

    Raises:
        TypeError: A key or value is not a string.
        ValueError: A key or value cannot be stored.
    """
    checked = dict(labels or {})
    for key, value in checked.items():
        _check_text(key, 'label name')
        _check_text(value, f'label {key!r}', least=0)
    return checked


def _check_text(text: object, what: str, *, least: int = 1) -> None:
    if not isinstance(text, str):
        raise TypeError(f'{what} must be a string, got {type(text).__name__}')
    if '\0' in text:
        raise ValueError(f'{what} {text!r} holds a NUL character')
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f'{what} {text!r} holds a surrogate, which UTF-8 cannot store') from None
    if not least <= size <= 512:
        raise ValueError(f'{what} must be {least} to 512 bytes of UTF-8, got {size}')
