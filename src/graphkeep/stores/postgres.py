"""Runs in PostgreSQL 14 or newer, with asyncpg."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, Self

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from ..errors import (
    DamagedRunError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from ..requests import Request, RequestQuery
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
from ..store import Store, busy, not_claimable, refused_claim
from .postgres_conversations import PostgresConversations
from .postgres_errors import asyncpg, is_damage, refused
from .postgres_find import finding
from .postgres_pool import Connection, Connections, PoolOptions, check_url
from .postgres_requests import PostgresRequests
from .postgres_rows import (
    asking_row,
    commit_row,
    create_row,
    data_of,
    drops_older,
    run_of,
    snapshots_of,
)
from .postgres_schema import set_up
from .statements import load

__all__ = ('PostgresStore',)

logger = logging.getLogger('graphkeep')

_HEADER = -1
"""The column of the header in the first row of `claim_run` and `read_run`."""
_CREATED_AT, _NONCE = 13, -1
"""Columns of a header."""
_by_seq = itemgetter(0)


class PostgresStore(Store):
    """A store in a PostgreSQL database.

    What changes a run is one transaction each. Nothing depends on the session, but hearing of
    answers: where that cannot be had, it is looked for them.
    """

    _stretch = 512

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: asyncpg.Pool | None = None,
        table_prefix: str = 'graphkeep',
        min_size: int | None = None,
        max_size: int | None = None,
        statement_cache_size: int | None = None,
        command_timeout: float | None = None,
        **options: Any,
    ) -> None:
        """Describe a store; it connects at its first use.

        Args:
            url: `postgresql://user:password@host:5432/database?…`, with the parameters of asyncpg,
                such as `sslmode`, `target_session_attrs` and `search_path`.
            pool: Your own pool, instead of `url`: it is used as it is, and you close it, after the
                store. Each call takes a connection and gives it back; asyncpg then resets it, which
                costs a round trip more than a URL does. While somebody waits for answers, one
                connection is kept for hearing of them, unless it is the only one.
            table_prefix: The tables are `<table_prefix>_runs` and so on: 1 to 32 lower-case
                letters, digits and underscores.
            min_size: Connections that stay open; 0 if omitted.
            max_size: Most connections; 10 if omitted. While somebody waits for answers there is one
                more, for hearing of them.
            statement_cache_size: Prepared statements a connection; 100 if omitted. Must be 0 behind
                pgbouncer in transaction mode; answers are then looked for, not heard of.
            command_timeout: Seconds after which a statement without an answer counts as lost, and
                is tried again; 30 if omitted.
            **options: As for every store: `lease`, `heartbeat`, `history`, `retry`.

        Raises:
            ValueError: The URL or the prefix cannot be used.
            TypeError: Not exactly one of `url` and `pool` is given, or options of a pool of our own
                together with yours.
        """
        super().__init__(**options)
        given = {
            'min_size': min_size,
            'max_size': max_size,
            'statement_cache_size': statement_cache_size,
            'command_timeout': command_timeout,
        }
        own: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if (url is None) == (pool is None):
            raise TypeError('give PostgresStore a url or a pool')
        if pool is not None and own:
            raise TypeError(f'{", ".join(own)}: set these where your pool is made')
        self._prefix = table_prefix
        self._sql = load('postgres_runs.sql', prefix=table_prefix)
        append, older = self._sql['append_commit'], self._sql['append_older']
        self._append_sql = append.replace('{older}', '')
        self._append_dropping_sql = append.replace('{older}', older)
        self._append_asking_sql = self._sql['append_asking'].replace('{older}', older)
        self._db = Connections(
            url=None if url is None else check_url(url),
            pool=pool,
            options=PoolOptions(**own),
            prefix=table_prefix,
        )
        self._asked = PostgresRequests(self._db, self._sql)
        self._talks = PostgresConversations(self._db, prefix=table_prefix)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The store that `url` names. Arguments and errors as for the class."""
        return cls(url, **options)

    def __repr__(self) -> str:
        return f'<PostgresStore at {self._db.where}>'

    async def _open(self) -> None:
        await self._db.open()
        try:
            async with self._db.acquire(writes=False) as connection:
                if self._db.given:
                    name = await connection.fetchval(self._sql['select_database'])
                    self._db.where = f'{name} (the given pool)'
                await set_up(connection, prefix=self._prefix, where=self._db.where)
        except BaseException:
            await self._db.close()
            raise

    async def _close(self) -> None:
        await self._db.close()

    # --- writing ---------------------------------------------------------------------------------

    async def _create(self, run: NewRun, draft: Draft) -> Run:
        try:
            async with self._db.acquire(writes=True) as connection:
                values = create_row(run, draft)
                while True:
                    row = await connection.fetchrow(self._sql['create_run'], *values)
                    if row is not None:
                        return run_of(row)
                    row = await connection.fetchrow(self._sql['select_run'], run.run_id)
                    if row is not None and row[_NONCE] == run.nonce:
                        return run_of(row)
                    if row is not None:
                        raise RunExistsError(run_id=run.run_id, status=run_of(row).status)
        except StoreError as e:
            raise refused(e, run_id=run.run_id, seq=draft.seq) from e.__cause__

    async def _claim(self, request: ClaimRequest) -> Claimed:
        run_id = request.run_id
        async with self._reading(run_id, writes=True) as connection:
            while True:
                rows = await connection.fetch(
                    self._sql['claim_run'],
                    run_id,
                    request.owner,
                    request.ttl,
                    request.nonce,
                    request.expected_seq,
                    request.expected_epoch,
                    request.allow,
                )
                if rows:
                    rows.sort(key=_by_seq)
                    run, snapshots = run_of(rows[0][_HEADER]), snapshots_of(run_id, rows[1:])
                    break
                row = await connection.fetchrow(self._sql['select_run'], run_id)
                if row is None:
                    raise refused_claim(request, None)
                run, snapshots = run_of(row), []
                if row[_NONCE] == request.nonce and run.status == 'running':
                    break
                if not _may_claim(request, run):
                    raise refused_claim(request, run)
            if request.expected_seq is None and (not snapshots or snapshots[-1].seq != run.seq):
                # An earlier attempt of this call got the claim; or it waited for a commit, and then
                # has the new header with the old snapshots. Under the claim they do not change.
                sql = self._sql['select_snapshots']
                rows = await connection.fetch(sql, run_id, run.full_seq - 1, None)
                snapshots = [s for s in snapshots_of(run_id, rows) if s.seq <= run.seq]
        return Claimed(claim=run.claim(), run=run, snapshots=tuple(snapshots))

    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        try:
            written = await self._write(commits)
        except StoreUnavailableError:
            raise
        except StoreError as e:
            if len(commits) == 1:
                [commit] = commits
                return [refused(e, run_id=commit.claim.run_id, seq=commit.draft.seq)]
            # One that the server refuses takes all of its transaction with it.
            return [(await self._append([commit]))[0] for commit in commits]
        return [
            None
            if commit.nonce in written
            else LeaseLostError(run_id=commit.claim.run_id, epoch=commit.claim.epoch)
            for commit in commits
        ]

    async def _write(self, commits: Sequence[Commit]) -> set[str]:
        """The nonces of the commits that are written, by this call or by an earlier one."""
        sql, ordered = self._append_sql, sorted(commits, key=lambda c: c.claim.run_id)
        if all(commit.plain for commit in commits):
            rows = [commit_row(commit) for commit in ordered]
            if any(map(drops_older, commits)):
                sql = self._append_dropping_sql
                rows = [(*row, drops_older(c)) for row, c in zip(rows, ordered, strict=True)]
        else:
            # One statement for the whole batch: it is one round trip, and one order of its locks.
            sql = self._append_asking_sql
            rows = [asking_row(commit) for commit in ordered]
        async with self._db.for_commits() as connection:
            if len(rows) == 1:
                found = await connection.fetch(sql, *rows[0])
            else:
                found = await connection.fetchmany(sql, rows)
            written = {row[0] for row in found}
            refused = [c.claim.run_id for c in commits if c.nonce not in written]
            if refused:
                found = await connection.fetch(self._sql['select_nonces'], refused)
                written.update(row[0] for row in found)
        return written

    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        # In the order of their run ids, as commits are: neither waits for the other in a circle.
        rows = [(c.run_id, c.epoch, ttl) for c in sorted(claims, key=lambda c: c.run_id)]
        async with self._db.acquire(writes=True) as connection:
            found = await connection.fetchmany(self._sql['renew_claim'], rows)
        renewed = {(row[0], row[1]) for row in found}
        return [
            None
            if (claim.run_id, claim.epoch) in renewed
            else LeaseLostError(run_id=claim.run_id, epoch=claim.epoch)
            for claim in claims
        ]

    async def _release(self, claim: Claim) -> None:
        async with self._db.acquire(writes=True) as connection:
            await connection.execute(self._sql['release_claim'], claim.run_id, claim.epoch)

    async def _cancel(self, run_id: str) -> Run:
        async with self._db.acquire(writes=True) as connection:
            while True:
                async with connection.transaction(isolation='read_committed'):
                    row = await connection.fetchrow(self._sql['cancel_run'], run_id)
                    if row is not None:
                        await connection.execute(self._sql['close_requests'], run_id)
                        return run_of(row)
                row = await connection.fetchrow(self._sql['select_run'], run_id)
                if row is None:
                    raise RunNotFoundError(run_id=run_id)
                run = run_of(row)
                if run.status == 'cancelled':
                    return run
                if run.status == 'done':
                    raise not_claimable(run)

    async def _delete(self, run_id: str, force: bool) -> None:
        async with self._db.acquire(writes=True) as connection:
            while True:
                async with connection.transaction(isolation='read_committed'):
                    found = await connection.fetchval(self._sql['delete_run'], run_id, force)
                    if found is not None:
                        await connection.execute(self._sql['delete_snapshots'], run_id)
                        await connection.execute(self._sql['delete_requests'], run_id)
                        return
                row = await connection.fetchrow(self._sql['select_run'], run_id)
                if row is None:
                    raise RunNotFoundError(run_id=run_id)
                run = run_of(row)
                if run.status == 'running' and not run.interrupted:
                    raise busy(run)

    # --- reading ---------------------------------------------------------------------------------

    async def _header(self, run_id: str) -> Run | None:
        async with self._db.acquire(writes=False) as connection:
            row = await connection.fetchrow(self._sql['select_run'], run_id)
        return None if row is None else run_of(row)

    async def _read(self, run_id: str, at: int | None) -> tuple[Run, Sequence[SnapshotData]] | None:
        async with self._reading(run_id) as connection:
            rows = await connection.fetch(self._sql['read_run'], run_id, at)
        if not rows:
            return None
        rows.sort(key=_by_seq)
        return run_of(rows[0][_HEADER]), data_of(rows[1:])

    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        async with self._reading(run_id) as connection:
            rows = await connection.fetch(self._sql['select_snapshots'], run_id, after, limit)
        return snapshots_of(run_id, rows)

    async def _find(self, query: RunQuery) -> Sequence[Run]:
        found: list[Run] = []
        wanted = query.limit
        async with self._db.acquire(writes=False) as connection:
            while True:
                sql, values = finding(self._sql, query)
                rows = await connection.fetch(sql, *values)
                found += _readable(rows)
                if len(rows) < query.limit or len(found) == wanted:
                    return found
                after = rows[-1][_CREATED_AT], rows[-1][0]
                query = replace(query, limit=wanted - len(found), after=after)

    async def _candidates(self, graphs: Sequence[str], limit: int) -> Sequence[Run]:
        wanted = limit
        async with self._db.acquire(writes=False) as connection:
            while True:
                rows = await connection.fetch(self._sql['find_candidates'], graphs, wanted)
                found = _readable(rows)
                if len(found) >= limit or len(rows) < wanted:
                    return found[:limit]
                wanted += len(rows) - len(found)

    # --- requests --------------------------------------------------------------------------------

    async def _requests(self, query: RequestQuery) -> Sequence[Request]:
        return await self._asked.find(query)

    async def _answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        return await self._asked.answer(run_id, request_id, answer, by)

    async def _expire(self, run_id: str) -> None:
        await self._asked.expire(run_id)

    async def _watch(self, heard: Callable[[str | None], None]) -> None:
        await self._asked.watch(heard)

    # --- conversations ---------------------------------------------------------------------------

    async def _write_conversation(self, write: ConversationWrite) -> bool:
        return await self._talks.write(write)

    async def _delete_conversation(self, conversation_id: str, revision: str) -> bool:
        return await self._talks.delete(conversation_id, revision)

    async def _conversations(self, query: ConversationQuery) -> Sequence[StoredConversation]:
        return await self._talks.find(query)

    async def _entries(self, query: EntriesQuery) -> StoredEntries | None:
        return await self._talks.entries(query)

    # --- damage ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _reading(self, run_id: str, *, writes: bool = False) -> AsyncGenerator[Connection]:
        """A connection for reading snapshots: one that the server cannot read is named."""
        try:
            async with self._db.acquire(writes=writes) as connection:
                yield connection
        except StoreError as e:
            if not is_damage(e):
                raise
            seq = await self._first_damaged(run_id)
            raise DamagedRunError(run_id=run_id, seq=seq, reason=str(e.__cause__)) from e

    async def _first_damaged(self, run_id: str) -> int | None:
        async with self._db.acquire(writes=False) as connection:
            rows = await connection.fetch(self._sql['select_seqs'], run_id)
        for row in rows:
            try:
                async with self._db.acquire(writes=False) as connection:
                    await connection.fetch(self._sql['select_snapshots'], run_id, row[0] - 1, 1)
            except StoreError as e:
                if is_damage(e):
                    return row[0]
                raise
        return None


def _may_claim(request: ClaimRequest, run: Run) -> bool:
    """Whether `claim_run` would take the run as it is read now: if it changed meanwhile."""
    if request.expected_seq is not None and run.seq != request.expected_seq:
        return False
    if run.status == 'running':
        return run.interrupted or run.epoch == request.expected_epoch
    return run.due or run.status in request.allow


def _readable(rows: Sequence[Sequence[Any]]) -> list[Run]:
    """The headers in rows: one that is damaged does not hide the others."""
    found: list[Run] = []
    for row in rows:
        try:
            found.append(run_of(row))
        except DamagedRunError as e:
            logger.warning('left out of a list of runs: %s', e)
    return found
