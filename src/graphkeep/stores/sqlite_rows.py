"""Rows of a SQLite file as records. Damage that a foreign hand did is found here, and named."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args

from ..errors import DamagedRunError
from ..requests import Request, RequestStatus
from ..runs import Event, Run, Snapshot, SnapshotKind, Status

__all__ = ('clock', 'micros', 'request_of', 'run_of', 'snapshots_of', 'stamp', 'to_json')

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_STATUSES = frozenset(get_args(Status))
_KINDS = frozenset(get_args(SnapshotKind))
_EVENTS = frozenset(get_args(Event))
_REQUEST_STATUSES = frozenset(get_args(RequestStatus))
_UNREADABLE = (TypeError, ValueError, OverflowError, OSError, RecursionError)


def clock() -> int:
    """The time in microseconds since 1970, by the database's clock.

    SQLite has no clock of its own. It reads the machine's, to the millisecond; so do we, exactly.
    """
    return time.time_ns() // 1_000


def micros(seconds: float) -> int:
    """Seconds as they are stored."""
    return round(seconds * 1_000_000)


def stamp(at: datetime) -> int:
    """An aware datetime as it is stored."""
    return (at - _EPOCH) // _MICROSECOND


def to_json(value: object) -> str:
    """JSON in ASCII: an error message may hold what is not UTF-8."""
    return json.dumps(value, separators=(',', ':'))


def run_of(row: tuple[Any, ...], at: int) -> Run:
    """The header in a row, as a reader sees it at a time.

    Raises:
        DamagedRunError: It is not as we write it.
    """
    (run_id, graph, status, seq, full_seq, epoch, owner, lease, labels, error, *rest) = row
    parent_run_id, parent_seq, created_at, updated_at, answered, wake_at = rest
    try:
        if status not in _STATUSES:
            raise ValueError(f'status {status!r}')
        return Run(
            run_id=run_id,
            graph=graph,
            status=status,
            seq=_integer(seq),
            full_seq=_integer(full_seq),
            epoch=_integer(epoch),
            owner=owner,
            lease_until=None if lease is None else _time(lease),
            interrupted=status == 'running' and (lease is None or lease <= at),
            answered=_integer(answered),
            wake_at=None if wake_at is None else _time(wake_at),
            due=status == 'paused' and wake_at is not None and wake_at <= at,
            labels=_object(labels),
            error=None if error is None else _object(error),
            parent_run_id=parent_run_id,
            parent_seq=parent_seq,
            created_at=_time(created_at),
            updated_at=_time(updated_at),
        )
    except _UNREADABLE as e:
        raise DamagedRunError(run_id=run_id, seq=None, reason=f'its header has {e}') from e


def snapshots_of(run_id: str, rows: Iterable[tuple[Any, ...]]) -> tuple[Snapshot, ...]:
    """The snapshots in rows.

    Raises:
        DamagedRunError: One of them is not as we write it; names it.
    """
    return tuple([_snapshot(run_id, row) for row in rows])


def _snapshot(run_id: str, row: tuple[Any, ...]) -> Snapshot:
    seq, kind, event, data, node, task, started_at, duration, error, created_at = row
    try:
        if kind not in _KINDS or event not in _EVENTS:
            raise ValueError(f'kind {kind!r} and event {event!r}')
        if type(data) is not bytes:
            raise TypeError('no data')
        return Snapshot(
            seq=seq,
            kind=kind,
            event=event,
            data=data,
            node=node,
            task=task,
            started_at=None if started_at is None else _time(started_at),
            duration=duration,
            error=None if error is None else _object(error),
            created_at=_time(created_at),
        )
    except _UNREADABLE as e:
        raise DamagedRunError(run_id=run_id, seq=seq, reason=f'its row has {e}') from e


def request_of(row: tuple[Any, ...]) -> Request:
    """The request in a row of `find_requests`.

    Raises:
        DamagedRunError: It is not as we write it.
    """
    run_id, request_id, name, node, task, status, prompt, payload, schema, deadline, *rest = row
    created_at, answer, answered_by, answered_at, closed_at, error, graph, labels = rest
    try:
        if status not in _REQUEST_STATUSES:
            raise ValueError(f'status {status!r}')
        return Request(
            run_id=run_id,
            request_id=request_id,
            name=name,
            node=node,
            task=task,
            status=status,
            prompt=None if prompt is None else json.loads(prompt),
            payload_json=payload,
            schema_json=schema,
            deadline=None if deadline is None else _time(deadline),
            created_at=_time(created_at),
            answer_json=answer,
            answered_by=answered_by,
            answered_at=None if answered_at is None else _time(answered_at),
            closed_at=None if closed_at is None else _time(closed_at),
            error=None if error is None else json.loads(error),
            graph=graph,
            labels=_object(labels),
        )
    except _UNREADABLE as e:
        reason = f'its request {request_id!r} has {e}'
        raise DamagedRunError(run_id=run_id, seq=None, reason=reason) from e


def _time(value: int) -> datetime:
    # A float of seconds is exact to the microsecond until the year 2242.
    return datetime.fromtimestamp(value / 1_000_000, UTC)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f'{value!r} for an integer')
    return value


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if type(value) is not dict:
        raise TypeError(f'{text!r} for an object')
    return cast('dict[str, Any]', value)
