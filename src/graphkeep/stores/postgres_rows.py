"""Rows of Postgres as the records of the port, and the other way round."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast, get_args

from ..conversations import (
    BlobPlace,
    ConversationWrite,
    Line,
    StoredConversation,
    StoredEntry,
    packed_id,
    places_json,
    places_of,
    unpacked_id,
)
from ..errors import DamagedConversationError, DamagedRunError
from ..requests import Request, RequestStatus
from ..runs import (
    Commit,
    Draft,
    Event,
    NewRun,
    Run,
    Snapshot,
    SnapshotData,
    SnapshotKind,
    Status,
)

__all__ = (
    'asking_row',
    'blob_columns',
    'commit_row',
    'conversation_of',
    'conversation_row',
    'create_row',
    'data_of',
    'drops_older',
    'entry_columns',
    'line_of',
    'request_of',
    'run_of',
    'snapshots_of',
)

_STATUSES = frozenset(get_args(Status))
_KINDS = frozenset(get_args(SnapshotKind))
_EVENTS = frozenset(get_args(Event))
_REQUEST_STATUSES = frozenset(get_args(RequestStatus))
_UNREADABLE = (TypeError, ValueError, RecursionError)


def run_of(row: Sequence[Any]) -> Run:
    """A header. The columns are those of `select_run`, whose last is the nonce.

    Raises:
        DamagedRunError: It is not as we write it.
    """
    labels, error = row[9], row[10]
    try:
        if row[2] not in _STATUSES:
            raise ValueError(f'status {row[2]!r}')
        return Run(
            run_id=row[0],
            graph=row[1],
            status=row[2],
            seq=row[3],
            full_seq=row[4],
            epoch=row[5],
            owner=row[6],
            lease_until=row[7],
            interrupted=row[8],
            answered=row[15],
            wake_at=row[16],
            due=row[17],
            labels={} if labels == '{}' else _object(labels),
            error=None if error is None else _object(error),
            parent_run_id=row[11],
            parent_seq=row[12],
            created_at=row[13],
            updated_at=row[14],
        )
    except _UNREADABLE as e:
        raise DamagedRunError(run_id=row[0], seq=None, reason=f'its header has {e}') from e


def data_of(rows: Iterable[Sequence[Any]]) -> list[SnapshotData]:
    """The rows of `read_run` after its header."""
    return [SnapshotData(row[0], row[1], row[2]) for row in rows]


def snapshots_of(run_id: str, rows: Iterable[Sequence[Any]]) -> list[Snapshot]:
    """The rows of `select_snapshots`, or those of `claim_run` after its header.

    Raises:
        DamagedRunError: One of them is not as we write it; names it.
    """
    return [_snapshot(run_id, row) for row in rows]


def _snapshot(run_id: str, row: Sequence[Any]) -> Snapshot:
    kind, event, error = row[1], row[2], row[8]
    try:
        if kind not in _KINDS or event not in _EVENTS:
            raise ValueError(f'kind {kind!r} and event {event!r}')
        return Snapshot(
            seq=row[0],
            kind=kind,
            event=event,
            data=row[3],
            node=row[4],
            task=row[5],
            started_at=row[6],
            duration=row[7],
            error=None if error is None else _object(error),
            created_at=row[9],
        )
    except _UNREADABLE as e:
        raise DamagedRunError(run_id=run_id, seq=row[0], reason=f'its row has {e}') from e


def request_of(row: Sequence[Any]) -> Request:
    """A row of `find_requests`.

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
            prompt=_string(prompt),
            payload_json=payload,
            schema_json=schema,
            deadline=deadline,
            created_at=created_at,
            answer_json=answer,
            answered_by=answered_by,
            answered_at=answered_at,
            closed_at=closed_at,
            error=_string(error),
            graph=graph,
            labels=_object(labels),
        )
    except _UNREADABLE as e:
        reason = f'its request {request_id!r} has {e}'
        raise DamagedRunError(run_id=run_id, seq=None, reason=reason) from e


def conversation_of(row: Sequence[Any]) -> StoredConversation:
    """A row of `find_conversations`.

    Raises:
        DamagedConversationError: It is not as we write it.
    """
    conversation_id, revision, scope, updated_at, tips, data = row
    try:
        if not data.startswith(b'{'):
            raise ValueError(f'{data!r:.80} for an object')
        return StoredConversation(
            conversation_id=conversation_id,
            revision=revision,
            scope=scope,
            updated_at=updated_at,
            tips=tuple(map(unpacked_id, tips)),
            data=data,
        )
    except (*_UNREADABLE, AttributeError) as e:
        reason = f'its row has {e}'
        raise DamagedConversationError(conversation_id=conversation_id, reason=reason) from e


def line_of(rows: Sequence[Sequence[Any]], parent: bytes | None) -> Line:
    """The rows of `read_entries`, but the one with a `lowest`.

    Args:
        rows: The rows, in any order, without gaps.
        parent: The id of the entry before them, packed.

    Raises:
        DamagedConversationError: One of them is not as we write it; names it.
    """
    if not rows:
        return Line()
    in_order = sorted(rows, key=itemgetter(2))
    packed, _, positions, _, libraries, texts, messages = zip(*in_order, strict=True)
    ids = [*map(_entry_id_of, packed)]
    parent_id = None if parent is None else _entry_id_of(parent)
    places: dict[int, tuple[BlobPlace, ...]] = {}
    for at, text in enumerate(texts):
        if text is None:
            continue
        try:
            places[at] = places_of(text)
            for place in places[at]:
                bytes.fromhex(place.hash)
        except _UNREADABLE as e:
            raise DamagedConversationError(entry_id=ids[at], reason=f'its row has {e}') from e
    return Line(ids, messages, libraries, places, parent_id, positions[0])


def _entry_id_of(packed: bytes) -> str:
    """The id of an entry.

    Raises:
        DamagedConversationError: It is not as we write it.
    """
    try:
        return unpacked_id(packed)
    except ValueError as e:
        raise DamagedConversationError(entry_id=f'{packed!r:.80}', reason=f'{e}') from e


def conversation_row(write: ConversationWrite) -> tuple[object, ...]:
    """The parameters of `insert_conversation` and `replace_conversation`."""
    row = write.conversation
    return (
        row.conversation_id,
        row.revision,
        row.scope,
        row.updated_at,
        write.ttl,
        [packed_id(tip) for tip in row.tips],
        row.data,
    )


def entry_columns(entries: Sequence[StoredEntry], refs: Mapping[str, int]) -> list[list[object]]:
    """The parameters of `insert_entries`.

    Args:
        entries: Each after its parent.
        refs: How often each is referred to by the others and as a tip.
    """
    # The position of an entry is known only from the stored one that it leads back to.
    steps: dict[str, tuple[str | None, int]] = {}
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        parent = entry.parent_id
        base, ahead = (None, 0) if parent is None else steps.get(parent, (parent, 0))
        steps[entry.entry_id] = base, ahead + 1
        rows.append(
            (
                packed_id(entry.entry_id),
                None if parent is None else packed_id(parent),
                None if base is None else packed_id(base),
                ahead + 1,
                refs[entry.entry_id],
                entry.library,
                places_json(entry.places),
                entry.data,
            )
        )
    return [[row[n] for row in rows] for n in range(8)]


def blob_columns(entries: Iterable[StoredEntry], blobs: Mapping[str, bytes]) -> list[list[object]]:
    """The last parameters of `write_conversation`, for the blobs that these entries need."""
    uses = Counter(name for entry in entries for name in entry.hashes)
    names = sorted(uses)
    return [
        [bytes.fromhex(name) for name in names],
        [uses[name] for name in names],
        [blobs[name] for name in names],
    ]


def create_row(run: NewRun, draft: Draft) -> tuple[object, ...]:
    """The parameters of `create_run`."""
    return (
        run.run_id,
        run.graph,
        run.owner,
        run.ttl,
        run.nonce,
        json.dumps(dict(run.labels)),
        run.parent_run_id,
        run.parent_seq,
        draft.seq,
        draft.kind,
        draft.event,
        draft.data,
        draft.node,
        draft.task,
        draft.started_at,
        draft.duration,
        _error_text(draft),
    )


def commit_row(commit: Commit) -> tuple[object, ...]:
    """The parameters of `append_commit`."""
    claim, draft = commit.claim, commit.draft
    return (
        claim.run_id,
        claim.epoch,
        draft.seq,
        draft.kind,
        draft.event,
        draft.data,
        draft.node,
        draft.task,
        draft.started_at,
        _error_text(draft),
        commit.nonce,
        commit.status,
        commit.ttl,
        draft.duration,
    )


def asking_row(commit: Commit) -> tuple[object, ...]:
    """The parameters of `append_asking`: those of `append_commit` come first."""
    asks = commit.asks
    return (
        *commit_row(commit),
        drops_older(commit),
        commit.answered,
        commit.wake_at,
        [new.request_id for new in asks],
        [new.name for new in asks],
        [new.node for new in asks],
        [new.task for new in asks],
        [_string_text(new.prompt) for new in asks],
        [new.payload for new in asks],
        [new.schema for new in asks],
        [new.timeout for new in asks],
        [_string_text(new.error) for new in asks],
        commit.closes,
    )


def drops_older(commit: Commit) -> bool:
    """Whether the snapshots before it go with a commit."""
    return commit.history == 'latest' and commit.draft.kind == 'full'


def _error_text(draft: Draft) -> str | None:
    return None if draft.error is None else json.dumps(dict(draft.error))


def _string_text(value: str | None) -> str | None:
    # In ASCII: it may hold a NUL or a lone surrogate.
    return None if value is None else json.dumps(value)


def _string(text: str | None) -> str | None:
    value = None if text is None else json.loads(text)
    if text is not None and type(value) is not str:
        raise TypeError(f'{text!r} for a string')
    return value


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if type(value) is not dict:
        raise TypeError(f'{text!r} for an object')
    return cast('dict[str, Any]', value)
