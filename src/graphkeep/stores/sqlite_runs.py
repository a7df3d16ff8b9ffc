"""What a SQLite store does to its tables. Synchronous: this runs in the threads of the store."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..errors import (
    DamagedRunError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from ..runs import (
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
from ..store import busy, not_claimable, refused_claim
from .sqlite_connections import Reader, Writer
from .sqlite_file import SQLiteFile
from .sqlite_requests import SQLiteRequests
from .sqlite_rows import clock, micros, run_of, snapshots_of, stamp, to_json

__all__ = ('SQLiteRuns',)

logger = logging.getLogger('graphkeep')

_LAST = 2**63 - 1
"""The highest seq, and the latest time, that SQLite can store."""
_REFUSED = (sqlite3.Error, OverflowError)
"""What Python's driver raises; `OverflowError` for what is bigger than SQLite's own limit."""


class SQLiteRuns:
    """The tables of one store. The methods are the hooks of `Store`, which says what each does."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._sql = file.statements
        self._requests = SQLiteRequests(file)

    # --- writing ----------------------------------------------------------------------------------

    def create(self, writer: Writer, run: NewRun, draft: Draft) -> Run:
        """As `Store._create`."""
        with writer.transaction(size=len(draft.data)) as connection:
            now = clock()
            values = {
                'run_id': run.run_id,
                'graph': run.graph,
                'status': 'ready' if run.owner is None else 'running',
                'seq': draft.seq,
                'now': now,
                'owner': run.owner,
                'lease_until': None if run.owner is None else now + micros(run.ttl),
                'nonce': run.nonce,
                'labels': to_json(dict(run.labels)),
                'parent_run_id': run.parent_run_id,
                'parent_seq': run.parent_seq,
            }
            if connection.execute(self._sql['create_run'], values).rowcount == 1:
                self._insert(connection, run.run_id, draft, now)
            elif self._nonce(connection, run.run_id) != run.nonce:
                there = self._run(connection, run.run_id, now)
                raise RunExistsError(run_id=run.run_id, status=there.status)
            return self._run(connection, run.run_id, now)

    def claim(self, writer: Writer, request: ClaimRequest) -> Claimed:
        """As `Store._claim`."""
        run_id = request.run_id
        with writer.transaction() as connection:
            now = clock()
            values = {
                'run_id': run_id,
                'owner': request.owner,
                'lease_until': now + micros(request.ttl),
                'nonce': request.nonce,
                'now': now,
                'expected_seq': request.expected_seq,
                'expected_epoch': request.expected_epoch,
                'allow': json.dumps(request.allow),
            }
            taken = connection.execute(self._sql['claim'], values).rowcount == 1
            run = self.find_one(connection, run_id, now)
            if run is None or not (
                taken
                or (run.status == 'running' and self._nonce(connection, run_id) == request.nonce)
            ):
                raise refused_claim(request, run)
            snapshots: tuple[Snapshot, ...] = ()
            if request.expected_seq is None:
                snapshots = self._snapshots(connection, run_id, run.full_seq, run.seq)
        claim = Claim(run_id=run_id, owner=request.owner, epoch=run.epoch)
        # With a lease of zero it has passed already: its holder sees it as it was given.
        return Claimed(claim=claim, run=replace(run, interrupted=False), snapshots=snapshots)

    def append(self, writer: Writer, commits: Sequence[Commit]) -> list[BaseException | None]:
        """As `Store._append`."""
        try:
            return self._append_together(writer, commits)
        except _REFUSED as e:
            # Where nothing can be written now the batch is tried again as a whole: the nonces tell
            # what went through meanwhile.
            if isinstance(self._file.explain(e), StoreUnavailableError):
                raise
            if len(commits) == 1:
                return [self._refusal(commits[0], e)]
        # The whole batch is undone, by a full disk for instance. Each alone: some may have room.
        return [self.append(writer, (commit,))[0] for commit in commits]

    def _append_together(
        self, writer: Writer, commits: Sequence[Commit]
    ) -> list[BaseException | None]:
        size = sum([len(commit.draft.data) for commit in commits])
        with writer.transaction(size=size) as connection:
            now = clock()
            if len(commits) == 1:
                return [self._append_one(connection, commits[0], now)]
            results: list[BaseException | None] = []
            for commit in commits:
                connection.execute('SAVEPOINT one')
                try:
                    results.append(self._append_one(connection, commit, now))
                except _REFUSED as e:
                    if not connection.in_transaction:
                        # SQLite has rolled back everything, also the commits before this one.
                        raise
                    connection.execute('ROLLBACK TO one')
                    results.append(self._refusal(commit, e))
                connection.execute('RELEASE one')
            return results

    def _append_one(
        self, connection: sqlite3.Connection, commit: Commit, now: int
    ) -> LeaseLostError | None:
        claim, draft = commit.claim, commit.draft
        stays = commit.status == 'running'
        values = {
            'run_id': claim.run_id,
            'epoch': claim.epoch,
            'before': draft.seq - 1,
            'seq': draft.seq,
            'kind': draft.kind,
            'nonce': commit.nonce,
            'error': None if draft.error is None else to_json(draft.error),
            'now': now,
            'lease_until': now + micros(commit.ttl),
            'status': commit.status,
        }
        statement = self._sql['append_running' if stays else 'append_leaving']
        if connection.execute(statement, values).rowcount == 0:
            if self._nonce(connection, claim.run_id) == commit.nonce:
                return None
            return LeaseLostError(run_id=claim.run_id, epoch=claim.epoch)
        self._insert(connection, claim.run_id, draft, now)
        if not commit.plain:
            self._requests.write(connection, commit, now)
        if commit.history == 'latest' and draft.kind == 'full':
            connection.execute(self._sql['drop_older'], {'run_id': claim.run_id, 'seq': draft.seq})
        return None

    def _refusal(
        self, commit: Commit, error: sqlite3.Error | OverflowError
    ) -> StoreError | DamagedRunError:
        if isinstance(error, sqlite3.IntegrityError):
            return DamagedRunError(
                run_id=commit.claim.run_id,
                seq=commit.draft.seq,
                reason=f'it was to be written now, and its place is taken ({error})',
            )
        return self._file.explain(error)

    def renew(
        self, writer: Writer, claims: Sequence[Claim], ttl: float
    ) -> list[BaseException | None]:
        """As `Store._renew`."""
        with writer.transaction() as connection:
            until = clock() + micros(ttl)
            results: list[BaseException | None] = []
            for claim in claims:
                values = {'run_id': claim.run_id, 'epoch': claim.epoch, 'lease_until': until}
                held = connection.execute(self._sql['renew'], values).rowcount == 1
                lost = LeaseLostError(run_id=claim.run_id, epoch=claim.epoch)
                results.append(None if held else lost)
            return results

    def release(self, writer: Writer, claim: Claim) -> None:
        """As `Store._release`."""
        with writer.transaction() as connection:
            values = {'run_id': claim.run_id, 'epoch': claim.epoch, 'now': clock()}
            connection.execute(self._sql['release'], values)

    def cancel(self, writer: Writer, run_id: str) -> Run:
        """As `Store._cancel`."""
        with writer.transaction() as connection:
            now = clock()
            values = {'run_id': run_id, 'now': now}
            if connection.execute(self._sql['cancel'], values).rowcount == 1:
                connection.execute(self._sql['close_requests'], values)
            run = self._run(connection, run_id, now)
            if run.status == 'done':
                raise not_claimable(run)
            return run

    def delete(self, writer: Writer, run_id: str, *, force: bool) -> None:
        """As `Store._delete`."""
        with writer.transaction() as connection:
            now = clock()
            values = {'run_id': run_id, 'now': now, 'force': force}
            if connection.execute(self._sql['delete_run'], values).rowcount == 0:
                run = self._run(connection, run_id, now)
                raise busy(run)
            connection.execute(self._sql['delete_snapshots'], {'run_id': run_id})
            connection.execute(self._sql['delete_requests'], {'run_id': run_id})

    def _insert(self, connection: sqlite3.Connection, run_id: str, draft: Draft, now: int) -> None:
        values = {
            'run_id': run_id,
            'seq': draft.seq,
            'kind': draft.kind,
            'event': draft.event,
            'data': draft.data,
            'node': draft.node,
            'task': draft.task,
            'started_at': None if draft.started_at is None else stamp(draft.started_at),
            'duration': draft.duration,
            'error': None if draft.error is None else to_json(draft.error),
            'now': now,
        }
        connection.execute(self._sql['insert_snapshot'], values)

    # --- reading ----------------------------------------------------------------------------------

    def header(self, reader: Reader, run_id: str) -> Run | None:
        """As `Store._header`."""
        return self.find_one(reader.connection, run_id, clock())

    def read(
        self, reader: Reader, run_id: str, at: int | None
    ) -> tuple[Run, list[SnapshotData]] | None:
        """As `Store._read`."""
        with reader.snapshot() as connection:
            run = self.find_one(connection, run_id, clock())
            if run is None:
                return None
            last = run.seq if at is None else at
            first = run.full_seq
            if last < first:
                upto = {'run_id': run_id, 'last': last}
                row = connection.execute(self._sql['select_full_seq'], upto).fetchone()
                if row[0] is None:
                    return run, []
                first = row[0]
            values = {'run_id': run_id, 'first': first, 'last': last}
            rows = connection.execute(self._sql['select_data'], values)
            return run, [SnapshotData._make(row) for row in rows.fetchall()]

    def history(self, reader: Reader, run_id: str, after: int, limit: int) -> tuple[Snapshot, ...]:
        """As `Store._history`."""
        return self._snapshots(reader.connection, run_id, after + 1, _LAST, limit)

    def find(self, reader: Reader, query: RunQuery) -> list[Run]:
        """As `Store._find`."""
        now = clock()
        created_at, run_id = query.after or (None, '')
        before = query.updated_before
        values = {
            'created_at': _LAST if created_at is None else stamp(created_at),
            'run_id': run_id,
            'status': json.dumps(query.status) if query.status else None,
            'graph': query.graph,
            'parent_run_id': query.parent_run_id,
            'updated_before': None if before is None else stamp(before),
            'interrupted': query.interrupted,
            'now': now,
            'labels': to_json(dict(query.labels)) if query.labels else None,
        }
        unfinished = query.interrupted or (query.status and 'done' not in query.status)
        statement = self._sql['find_unfinished' if unfinished else 'find_runs']
        found: list[Run] = []
        with closing(reader.connection.execute(statement, values)) as rows:
            for run in _readable(rows, now):
                found.append(run)
                if len(found) == query.limit:
                    break
        return found

    def candidates(self, reader: Reader, graphs: Sequence[str], limit: int) -> list[Run]:
        """As `Store._candidates`."""
        now = clock()
        values = {'now': now, 'graphs': json.dumps(list(graphs)), 'limit': limit}
        rows = reader.connection.execute(self._sql['find_candidates'], values).fetchall()
        return list(_readable(rows, now))

    def find_one(self, connection: sqlite3.Connection, run_id: str, now: int) -> Run | None:
        """The header of a run."""
        row = connection.execute(self._sql['select_run'], {'run_id': run_id}).fetchone()
        return None if row is None else run_of(row, now)

    def _run(self, connection: sqlite3.Connection, run_id: str, now: int) -> Run:
        run = self.find_one(connection, run_id, now)
        if run is None:
            raise RunNotFoundError(run_id=run_id)
        return run

    def _nonce(self, connection: sqlite3.Connection, run_id: str) -> str | None:
        row = connection.execute(self._sql['select_nonce'], {'run_id': run_id}).fetchone()
        return None if row is None else row[0]

    def _snapshots(
        self, connection: sqlite3.Connection, run_id: str, first: int, last: int, limit: int = -1
    ) -> tuple[Snapshot, ...]:
        values = {'run_id': run_id, 'first': first, 'last': last, 'limit': limit}
        rows = connection.execute(self._sql['select_snapshots'], values).fetchall()
        return snapshots_of(run_id, rows)


def _readable(rows: Iterable[tuple[Any, ...]], now: int) -> Iterator[Run]:
    """The headers in rows: one that is damaged does not hide the others."""
    for row in rows:
        try:
            yield run_of(row, now)
        except DamagedRunError as e:
            logger.warning('left out of a list of runs: %s', e)
