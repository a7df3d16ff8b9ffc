"""How long a database itself works on what is asked, and how many queries that takes.

Postgres says so of the very statement that the store sends; SQLite is the driver in the thread that
reads; Redis counts the time that it spends in scripts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from benchmarks.bench import Bench
from benchmarks.counting import sqlite_path
from graphkeep import Store, open_store

__all__ = ('Look', 'Looker', 'looking')


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a call took: medians of some calls."""

    whole: float
    """Seconds of the caller."""
    database: float | None
    """Seconds of the database; `None` where there is none."""
    queries: int
    """How many queries, or scripts, one call took."""
    indexes: frozenset[str] = frozenset()
    """Which indexes were used, where the database says so."""


class Looker:
    """A store whose queries are seen."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def look(self, call: Callable[[], Awaitable[object]], *, times: int) -> Look:
        """Make a call, which only reads, some times."""
        await call()
        whole: list[float] = []
        database: list[float] = []
        queries = 0
        for _ in range(times):
            self.reset()
            started = perf_counter()
            await call()
            whole.append(perf_counter() - started)
            seconds, queries = await self.taken()
            if seconds is not None:
                database.append(seconds)
        return Look(
            whole=median(whole),
            database=median(database) if database else None,
            queries=queries,
            indexes=self.indexes,
        )

    @property
    def indexes(self) -> frozenset[str]:
        """Those that the last call used."""
        return frozenset()

    def reset(self) -> None:
        """A call begins."""

    async def taken(self) -> tuple[float | None, int]:
        """Since then: seconds of the database, and queries."""
        return None, 0


@asynccontextmanager
async def looking(bench: Bench, name: str, url: str) -> AsyncGenerator[Looker]:
    """A store over an existing database, and what it takes there."""
    make = {'sqlite': _sqlite, 'postgres': _postgres, 'redis': _redis}[name]
    async with make(bench, url) as looker:
        yield looker


# --- SQLite: a connection that looks at the clock -------------------------------------------------


class _Cursor(sqlite3.Cursor):
    """Notes how long the driver is in SQLite."""

    def execute(self, *args: Any) -> Any:
        with self._timed(args[0]):
            return super().execute(*args)

    def fetchall(self) -> Any:
        with self._timed(None):
            return super().fetchall()

    @contextmanager
    def _timed(self, statement: str | None) -> Generator[None]:
        started = perf_counter()
        yield
        _Connection.seen.append((statement, perf_counter() - started))


class _Connection(sqlite3.Connection):
    seen: list[tuple[str | None, float]] = []  # noqa: RUF012 - one for all of them

    def execute(self, *args: Any) -> Any:
        return self.cursor(_Cursor).execute(*args)


class _SQLiteLooker(Looker):
    def __init__(self, store: Store, path: str) -> None:
        super().__init__(store)
        self._path = path
        self._statement = ''

    def reset(self) -> None:
        _Connection.seen.clear()

    async def taken(self) -> tuple[float | None, int]:
        statements = [statement for statement, _ in _Connection.seen if statement is not None]
        self._statement = statements[-1]
        return sum(seconds for _, seconds in _Connection.seen), len(statements)

    @property
    def indexes(self) -> frozenset[str]:
        connection = sqlite3.connect(self._path)
        try:
            # Of parameters without values, which here are as good as any.
            plan = connection.execute(f'EXPLAIN QUERY PLAN {self._statement}', _Anything())
            words = [word for row in plan for word in row[-1].split()]
        finally:
            connection.close()
        return frozenset(word for word in words if 'graphkeep_' in word)


class _Anything(dict[str, None]):
    def __missing__(self, key: str) -> None:
        return None


@asynccontextmanager
async def _sqlite(bench: Bench, url: str) -> AsyncGenerator[Looker]:
    timed = partial(sqlite3.connect, factory=_Connection)
    with patch('sqlite3.connect', timed):
        store = open_store(url)
        await store.open()
    async with store:
        yield _SQLiteLooker(store, str(sqlite_path(url)))


# --- Postgres: what the store sends, explained ----------------------------------------------------


class _PostgresLooker(Looker):
    def __init__(self, store: Store, connection: Any, seen: list[tuple[str, Any]]) -> None:
        super().__init__(store)
        self._connection = connection
        self._indexes: set[str] = set()
        self._seen = seen

    @property
    def indexes(self) -> frozenset[str]:
        return frozenset(self._indexes)

    def reset(self) -> None:
        self._seen.clear()

    async def taken(self) -> tuple[float | None, int]:
        # Without what asyncpg itself says to a connection that comes back.
        seen = [(sql, args) for sql, args in self._seen if 'pg_advisory_unlock_all' not in sql]
        seconds = 0.0
        for sql, args in seen:
            # With what makes the rows into what is sent, where the server can measure that.
            whole = self._connection.get_server_version()[0] >= 17
            options = 'ANALYZE, FORMAT JSON' + (', SERIALIZE BINARY' if whole else '')
            found = await self._connection.fetchval(f'EXPLAIN ({options}) {sql}', *args)
            [explained] = json.loads(found)
            seconds += (explained['Planning Time'] + explained['Execution Time']) / 1e3
            self._indexes = set(_indexes(explained['Plan']))
        return seconds, len(seen)


def _indexes(plan: dict[str, Any]) -> Generator[str]:
    if 'Index Name' in plan:
        yield plan['Index Name']
    for part in plan.get('Plans', ()):
        yield from _indexes(part)


@asynccontextmanager
async def _postgres(bench: Bench, url: str) -> AsyncGenerator[Looker]:
    import asyncpg

    from graphkeep.stores.postgres import PostgresStore

    seen: list[tuple[str, Any]] = []

    async def first(connection: Any) -> None:
        connection.add_query_logger(lambda record: seen.append((record.query, record.args)))

    async with (
        asyncpg.create_pool(url, min_size=0, max_size=4, init=first) as pool,
        PostgresStore(pool=pool) as store,
    ):
        connection: Any = await asyncpg.connect(url)
        try:
            yield _PostgresLooker(store, connection, seen)
        finally:
            await connection.close()


# --- Redis: what it counts of its scripts ---------------------------------------------------------


class _RedisLooker(Looker):
    def __init__(self, store: Store, bench: Bench) -> None:
        super().__init__(store)
        self._bench = bench
        self._before = (0, 0.0)

    def _scripts(self) -> tuple[int, float]:
        assert self._bench.redis is not None
        stats = self._bench.redis.command('INFO', 'commandstats')
        # Lists read with a script and with HMGET; no script that is used here calls that.
        found = [stats[name] for name in ('cmdstat_evalsha', 'cmdstat_hmget') if name in stats]
        return sum(int(s['calls']) for s in found), sum(int(s['usec']) for s in found) / 1e6

    def reset(self) -> None:
        self._before = self._scripts()

    async def taken(self) -> tuple[float | None, int]:
        calls, seconds = self._scripts()
        return seconds - self._before[1], calls - self._before[0]


@asynccontextmanager
async def _redis(bench: Bench, url: str) -> AsyncGenerator[Looker]:
    async with open_store(url) as store:
        yield _RedisLooker(store, bench)
