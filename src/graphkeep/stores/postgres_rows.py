"""Rows of Postgres as the records of the port, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..runs import Commit, Draft, NewRun, Run, Snapshot, SnapshotData

__all__ = ('commit_row', 'create_row', 'data_of', 'run_of', 'snapshots_of')


def run_of(row: Sequence[Any]) -> Run:
    """A header. The columns are those of `select_run`, whose last is the nonce."""
    labels, error = row[9], row[10]
    return Run(
        run_id=row[0],
        graph=row[1],
        status=row[2],
        seq=row[3],
        full_seq=row[4],
        epoch=row[5],
        owner=row[6],
        lease_until=row[7],
        interrupted=bool(row[8]),
        labels={} if labels == '{}' else json.loads(labels),
        error=None if error is None else json.loads(error),
        parent_run_id=row[11],
        parent_seq=row[12],
        created_at=row[13],
        updated_at=row[14],
    )


def data_of(rows: Iterable[Sequence[Any]]) -> list[SnapshotData]:
    """The rows of `read_run` after its header."""
    return [SnapshotData(row[0], row[1], row[2]) for row in rows]


def snapshots_of(rows: Iterable[Sequence[Any]]) -> list[Snapshot]:
    """The rows of `select_snapshots`, or those of `claim_run` after its header."""
    return [
        Snapshot(
            seq=row[0],
            kind=row[1],
            event=row[2],
            data=row[3],
            node=row[4],
            task=row[5],
            started_at=row[6],
            duration=row[7],
            error=None if row[8] is None else json.loads(row[8]),
            created_at=row[9],
        )
        for row in rows
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
        commit.history == 'latest' and draft.kind == 'full',
    )


def _error_text(draft: Draft) -> str | None:
    return None if draft.error is None else json.dumps(dict(draft.error))
