"""What databases did, counted at the database: write transactions, and the bytes that lie there."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bench import Bench

__all__ = (
    'Rows',
    'bytes_of',
    'redis_bytes',
    'redis_rows',
    'rows_of',
    'sqlite_path',
    'transactions_of',
    'writes_of',
)

_WRITING = ('answer', 'append', 'ask', 'cancel', 'claim', 'create', 'expire', 'release', 'renew')

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


@contextmanager
def writes_of(bench: Bench, name: str, url: str) -> Generator[Callable[[], int]]:
    """As `transactions_of`, but of Redis only the scripts that write."""
    if name != 'redis':
        yield transactions_of(bench, name, url)
        return
    from graphkeep.stores.redis_client import script

    server = bench.redis
    assert server is not None
    writing = {script(name).sha for name in _WRITING}

    def count() -> int:
        commands = [entry[3] for entry in server.command('SLOWLOG', 'GET', -1)]
        return sum(len(command) > 1 and command[1] in writing for command in commands)

    slow = 'slowlog-log-slower-than'
    before = server.setting(slow), server.setting('slowlog-max-len')
    # The server says there which scripts it ran, if every one of them counts as slow.
    server.command('CONFIG', 'SET', slow, 0, 'slowlog-max-len', 100_000)
    server.command('SLOWLOG', 'RESET')
    try:
        yield count
    finally:
        server.command('CONFIG', 'SET', slow, before[0], 'slowlog-max-len', before[1])


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


def rows_of(bench: Bench, name: str, place: str | Path, table: str) -> Rows:
    """All rows of a table: of a SQLite file, or of the Postgres database that a URL names."""
    if name == 'sqlite':
        with closing(sqlite3.connect(place)) as connection:
            return connection.execute(f'SELECT * FROM {table}').fetchall()
    assert bench.postgres is not None
    return bench.postgres.fetch(f'SELECT * FROM {table}', dbname=urlsplit(str(place)).path[1:])


def bytes_of(rows: Rows) -> int:
    """Bytes of all values of these rows, numbers and times as they are written out."""
    return sum(
        len(value if isinstance(value, bytes) else str(value).encode())
        for row in rows
        for value in row
        if value is not None
    )


def redis_bytes(bench: Bench) -> int:
    """Bytes that clients have sent to Redis, of all commands: only differences mean something."""
    assert bench.redis is not None
    return int(bench.redis.command('INFO', 'stats')['total_net_input_bytes'])


async def redis_rows(url: str, run_id: str) -> Rows:
    """What lies in Redis of one run: its header, and every entry of its log."""
    from redis.asyncio import Redis

    client = Redis.from_url(url)
    try:
        [log] = [key async for key in client.scan_iter(match=f'*:log:{run_id}')]
        entries: Any = await client.xrange(log)
        header = await client.hgetall(log.replace(b':log:', b':run:'))
    finally:
        await client.aclose()
    rows: Rows = [(entry, *fields, *fields.values()) for entry, fields in entries]
    return [*rows, (*header, *header.values())]
