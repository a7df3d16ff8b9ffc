"""Databases as other programs see them, and what a server is put behind."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from tests.stores.postgres_tool import at
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


@pytest.fixture
def bouncer(fresh_postgres_url: str, free_port: int, tmp_path: Path) -> Iterator[str]:
    """A URL of the database through pgbouncer in transaction mode, with two server connections."""
    program = shutil.which('pgbouncer', path=f'{os.environ["PATH"]}:/usr/sbin')
    if program is None:
        pytest.skip('pgbouncer is not installed')
    parts = urlsplit(fresh_postgres_url)
    if parts.password is not None:
        pytest.skip('the server wants a password')
    name = parts.path[1:]
    settings = tmp_path / 'pgbouncer.ini'
    settings.write_text(
        f'[databases]\n{name} = host={parts.hostname} port={parts.port} user={parts.username}\n'
        f'[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {free_port}\nunix_socket_dir =\n'
        'auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n'
    )
    account = ['-u', 'nobody'] if os.geteuid() == 0 else []
    log = (tmp_path / 'log').open('wb')
    process = subprocess.Popen([program, *account, settings], stdout=log, stderr=log)
    try:
        yield at(fresh_postgres_url, f'127.0.0.1:{free_port}')
    finally:
        process.terminate()
        process.wait(20)
        log.close()
