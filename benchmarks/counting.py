"""What databases did, counted at the database: write transactions, and the bytes that lie there."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.bench import Bench

__all__ = ('Rows', 'rows_of', 'sqlite_path', 'transactions_of')

Rows = list[tuple[object, ...]]


def sqlite_path(url: str) -> Path:
    """The file that a URL of ours names."""
    return Path(urlsplit(url).path[1:])


def transactions_of(bench: Bench, name: str, url: str) -> Callable[[], int]:
    """A counter of the write transactions of a database: only its differences mean something."""
    if name == 'sqlite':
        wal = Path(f'{sqlite_path(url)}-wal')
        return lambda: _wal_commits(wal.read_bytes())
    if name == 'postgres':
        server = bench.postgres
        assert server is not None
        # Only a transaction that writes gets an id; asking does not take one.
        sql = 'SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint'
        return lambda: int(server.fetch(sql)[0][0])
    return lambda: _scripts(bench)


def _wal_commits(wal: bytes) -> int:
    """Transactions in a write-ahead log: sqlite.org/fileformat2.html#walformat.

    The last frame of each says how large the database is after it; in the others that is 0. Frames
    of an earlier round of the log carry other salts.
    """
    if len(wal) < 32:
        return 0
    page_size, salts = struct.unpack_from('>I', wal, 8)[0], wal[16:24]
    commits = 0
    for at in range(32, len(wal) - 24 - page_size + 1, 24 + page_size):
        if wal[at + 8 : at + 16] != salts:
            break
        commits += struct.unpack_from('>I', wal, at + 4)[0] > 0
    return commits


def _scripts(bench: Bench) -> int:
    """Scripts that Redis ran, reading ones included: each is a transaction."""
    assert bench.redis is not None
    stats = bench.redis.command('INFO', 'commandstats')
    found = 0
    for command in ('eval', 'evalsha'):
        entry = stats.get(f'cmdstat_{command}', {'calls': 0})
        found += int(entry['calls'])
    return found


def rows_of(bench: Bench, name: str, url: str, table: str) -> Rows:
    """All values of a table (in Redis: of all keys of a kind), as they lie there."""
    if name == 'sqlite':
        with closing(sqlite3.connect(sqlite_path(url))) as connection:
            return connection.execute(f'SELECT * FROM {table}').fetchall()
    assert name == 'postgres'
    assert bench.postgres is not None
    return bench.postgres.fetch(f'SELECT * FROM {table}', dbname=urlsplit(url).path[1:])
