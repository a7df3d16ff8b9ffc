"""The databases that are spoken to in SQL, as another program sees them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import pytest

from graphkeep import Store
from graphkeep.stores import postgres_schema, sqlite_connections
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.stores.statements import migrations
from graphkeep.testing import Worker
from tests.stores.postgres_tool import rows, run_sql

__all__ = (
    'PostgresDatabase',
    'SQLDatabase',
    'SQLiteDatabase',
    'in_both',
    'in_each',
    'sqlite_schema',
    'two_runs',
    'with_a_step',
)


class SQLDatabase(Protocol):
    """What the tests that hold for both ask for."""

    sets_up: ClassVar[ModuleType]
    """The module that sets up the tables."""

    def store(self) -> Store:
        """A new store over it."""
        ...

    async def run(self, sql: str) -> None:
        """Run statements as another program."""
        ...

    async def schema(self) -> list[Any]:
        """Everything in the catalogue that has our names."""
        ...

    async def content(self) -> object:
        """All of it where that can be had, else its schema."""
        ...


@dataclass(frozen=True)
class SQLiteDatabase:
    """A file."""

    path: Path
    sets_up: ClassVar[ModuleType] = sqlite_connections

    def store(self) -> SQLiteStore:
        return SQLiteStore(self.path)

    async def run(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=0)) as connection:
            connection.execute(sql)

    async def schema(self) -> list[Any]:
        return sqlite_schema(self.path)

    async def content(self) -> object:
        return self.path.read_bytes()


@dataclass(frozen=True)
class PostgresDatabase:
    """A database of a server."""

    url: str
    sets_up: ClassVar[ModuleType] = postgres_schema

    def store(self) -> PostgresStore:
        return PostgresStore(self.url)

    async def run(self, sql: str) -> None:
        await run_sql(self.url, sql)

    async def schema(self) -> list[Any]:
        columns = await rows(
            self.url,
            """
            SELECT relname, relkind::text, reloptions::text, attname,
                   format_type(atttypid, atttypmod), attnotnull, attcompression::text, collname,
                   pg_get_expr(adbin, adrelid) AS default
            FROM pg_class JOIN pg_attribute ON pg_class.oid = attrelid
            LEFT JOIN pg_collation ON pg_collation.oid = attcollation
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE relname LIKE 'graphkeep%' AND attnum > 0
            ORDER BY relname, attnum
            """,
        )
        indexes = await rows(
            self.url,
            "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'graphkeep%' ORDER BY indexdef",
        )
        return columns + indexes

    async def content(self) -> object:
        return await self.schema()


def sqlite_schema(path: Path) -> list[tuple[str, str]]:
    """What each table and index of a file was made with."""
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute('SELECT name, sql FROM sqlite_master'))


_MARKS = {'sqlite': (), 'postgres': (pytest.mark.postgres,)}


def in_each(name: str, /, **values: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrizes `sql` and `name`, with other values for each database."""
    return pytest.mark.parametrize(
        ('sql', name),
        [
            pytest.param(database, value, marks=_MARKS[database])
            for database, own in values.items()
            for value in own
        ],
        indirect=['sql'],
    )


in_both = pytest.mark.parametrize(
    'sql', [pytest.param(name, marks=marks) for name, marks in _MARKS.items()], indirect=True
)
"""Parametrizes `sql`."""


async def two_runs(store: Store) -> Worker:
    """`damaged` with three snapshots, and another run, which is returned."""
    worker = Worker(store, 'damaged')
    await worker.create()
    await worker.step()
    await worker.step()
    other = Worker(store, 'other')
    await other.create()
    return other


def with_a_step(monkeypatch: pytest.MonkeyPatch, sets_up: ModuleType, *statements: str) -> None:
    """A graphkeep that knows one schema version more."""

    def newer(database: str, *, prefix: str) -> dict[int, tuple[str, ...]]:
        known = dict(migrations(database, prefix=prefix))
        return {**known, max(known) + 1: statements}

    monkeypatch.setattr(sets_up, 'migrations', newer)
