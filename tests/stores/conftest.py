"""Databases as other programs see them, and what a server is put behind."""

from __future__ import annotations

import gc
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tests.stores.sql_databases import PostgresDatabase, SQLDatabase, SQLiteDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The SQLite file of the test."""
    return tmp_path / 'runs.db'


@pytest.fixture
def tool(path: Path) -> Iterator[sqlite3.Connection]:
    """The SQLite file as another program sees it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


@pytest.fixture
def sql(request: pytest.FixtureRequest) -> SQLDatabase:
    """An empty database for this test alone: SQLite or Postgres, as its mark says."""
    if request.param == 'sqlite':
        return SQLiteDatabase(request.getfixturevalue('path'))
    return PostgresDatabase(request.getfixturevalue('fresh_postgres_url'))


@pytest.fixture
def cli(redis_url: str) -> Iterator[redis.Redis]:
    """The Redis database as redis-cli sees it."""
    with redis.Redis.from_url(redis_url, protocol=2, socket_timeout=20) as client:
        yield client


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


@pytest.fixture
def collected() -> Iterator[None]:
    """What a test leaves to the collector warns in that test."""
    yield
    gc.collect()
