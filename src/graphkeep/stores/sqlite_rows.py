"""Rows of a SQLite file as records. Damage that a foreign hand did is found here, and named."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args

from ..conversations import (
    BlobPlace,
    Line,
    StoredConversation,
    places_of,
    unpacked_id,
    uuid_text,
)
from ..errors import DamagedConversationError, DamagedRunError
from ..requests import Request, RequestStatus
from ..runs import Event, Run, Snapshot, SnapshotKind, Status

__all__ = (
    'clock',
    'conversation_of',
    'entry_id_of',
    'hashes_of',
    'line_of',
    'micros',
    'request_of',
    'run_of',
    'snapshots_of',
    'stamp',
    'tips_of',
    'to_json',
)

logger = logging.getLogger('graphkeep')

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


def conversation_of(row: tuple[Any, ...]) -> StoredConversation:
    """The conversation in a row of `find_conversations`.

    Raises:
        DamagedConversationError: It is not as we write it.
    """
    conversation_id, revision, scope, updated_at, tips, data = row
    try:
        _object(data)
        return StoredConversation(
            conversation_id=conversation_id,
            revision=_string(revision),
            scope=None if scope is None else _string(scope),
            # Exact for every clock that a writer may have.
            updated_at=_EPOCH + timedelta(microseconds=_integer(updated_at)),
            tips=tips_of(tips),
            data=data,
        )
    except _UNREADABLE as e:
        reason = f'its row has {e}'
        raise DamagedConversationError(conversation_id=conversation_id, reason=reason) from e


def tips_of(text: object) -> tuple[str, ...]:
    """The tips in a row.

    Raises:
        ValueError: They are not as we write them.
    """
    try:
        tips = json.loads(_string(text))
        if type(tips) is list:
            return tuple([_string(tip) for tip in cast('list[object]', tips)])
    except _UNREADABLE:
        pass
    raise ValueError(f'{text!r:.80} for its tips')


def line_of(row: tuple[Any, ...]) -> Line:
    """The entries in the row of `select_line`; the one before them is left out.

    Raises:
        DamagedConversationError: One of them is not as we write it; names it.
    """
    # In the row the last one is first.
    position: int = row[0]
    ids_text, libraries, places_text, sizes, data = cast('tuple[bytes, ...]', row[3:])
    ids = [_entry_id_in(text) for text in ids_text.decode().lower().split(' ')]
    last = len(ids) - 1
    versions: dict[bytes, str] = {}
    messages: list[bytes] = []
    places: dict[int, tuple[BlobPlace, ...]] = {}
    names = libraries.split(b' ')
    end = 0
    damaged: int | None = None
    try:
        for name, size in zip(names, sizes.split(b' '), strict=True):
            if size == b'-':
                raise TypeError('no message')
            if name not in versions:
                versions[name] = bytes.fromhex(name.decode()).decode()
            begin, end = end, end + int(size)
            messages.append(data[begin:end])
        for word in (places_text or b'').decode().split():
            at, _, text = word.partition(':')
            index = int(at) - position
            damaged = last - index
            places[index] = places_of(bytes.fromhex(text))
            _packed(each.hash for each in places[index])
    except _UNREADABLE as e:
        entry_id = ids[len(messages) if damaged is None else damaged]
        raise DamagedConversationError(entry_id=entry_id, reason=f'its row has {e}') from e
    of = [versions[name] for name in reversed(names)]
    return Line(ids[::-1], messages[::-1], of, places, None, position)


def _entry_id_in(text: str) -> str:
    """`entry_id_of`, of hex digits."""
    return uuid_text(text) if len(text) == 32 else entry_id_of(bytes.fromhex(text))


def entry_id_of(packed: object) -> str:
    """The id of an entry.

    Raises:
        DamagedConversationError: It is not as we write it.
    """
    try:
        if type(packed) is not bytes:
            raise ValueError(f'{packed!r:.80} is no id of an entry')
        return unpacked_id(packed)
    except ValueError as e:
        raise DamagedConversationError(entry_id=repr(packed), reason=str(e)) from e


def hashes_of(entry: int, places: bytes | None) -> list[bytes]:
    """The blobs of an entry that is removed: damage must not stop that."""
    if places is None:
        return []
    try:
        return _packed({place.hash for place in places_of(places)})
    except ValueError as e:
        logger.warning('the blobs of entry %d stay: %s', entry, e)
        return []


def _packed(hashes: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(name) for name in hashes]


def _time(value: int) -> datetime:
    # A float of seconds is exact to the microsecond until the year 2242.
    return datetime.fromtimestamp(value / 1_000_000, UTC)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f'{value!r} for an integer')
    return value


def _string(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f'{value!r:.80} for a text')
    return value


def _object(text: str | bytes) -> Mapping[str, Any]:
    value = json.loads(text)
    if type(value) is not dict:
        raise TypeError(f'{text!r} for an object')
    return cast('dict[str, Any]', value)
