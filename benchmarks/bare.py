"""What a commit is compared with: the same payload, written by hand with nothing around it."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ('Write', 'bare_writer')

Write = Callable[[], Awaitable[object]]


@asynccontextmanager
async def bare_writer(name: str, url: str, payload: bytes) -> AsyncGenerator[tuple[str, Write]]:
    """What a bare write is, and a function that makes one.

    Args:
        name: The kind of database.
        url: An empty one; for SQLite the path of a file that does not exist.
        payload: What each write carries.
    """
    writer = {'sqlite': _sqlite, 'postgres': _postgres, 'redis': _redis}[name]
    async with writer(url, payload) as write:
        yield _WHAT[name], write


_WHAT = {
    'sqlite': 'two statements in a thread',
    'postgres': 'autocommit INSERT',
    'redis': 'XADD',
}


@asynccontextmanager
async def _sqlite(path: str, payload: bytes) -> AsyncGenerator[Write]:
    """A transaction of two statements in a thread of its own, as durable as ours."""
    with ThreadPoolExecutor(1) as thread:
        loop = asyncio.get_running_loop()
        writer = await loop.run_in_executor(thread, _SQLiteWriter, Path(path), payload)
        try:
            yield lambda: loop.run_in_executor(thread, writer.write)
        finally:
            await loop.run_in_executor(thread, writer.connection.close)


class _SQLiteWriter:
    def __init__(self, path: Path, payload: bytes) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute('PRAGMA journal_mode = WAL').close()
        self.connection.execute('PRAGMA synchronous = FULL').close()
        self.connection.execute('CREATE TABLE head (run_id TEXT PRIMARY KEY, seq INTEGER)')
        self.connection.execute(
            'CREATE TABLE bare (run_id TEXT, seq INTEGER, data TEXT, PRIMARY KEY (run_id, seq))'
        )
        self.connection.execute("INSERT INTO head VALUES ('bare', 0)")
        self._payload = payload.decode()
        self._seq = 0

    def write(self) -> None:
        self._seq += 1
        self.connection.execute('BEGIN IMMEDIATE')
        self.connection.execute("UPDATE head SET seq = ? WHERE run_id = 'bare'", (self._seq,))
        self.connection.execute(
            "INSERT INTO bare VALUES ('bare', ?, ?)", (self._seq, self._payload)
        )
        self.connection.execute('COMMIT')


@asynccontextmanager
async def _postgres(url: str, payload: bytes) -> AsyncGenerator[Write]:
    """One INSERT on a connection that is open, committed by itself."""
    import asyncpg

    connection: Any = await asyncpg.connect(url)
    text, seq = payload.decode(), itertools.count(1)
    sql = 'INSERT INTO bare (run_id, seq, data) VALUES ($1, $2, $3)'
    try:
        await connection.execute(
            'CREATE TABLE bare (run_id text, seq bigint, data json, PRIMARY KEY (run_id, seq))'
        )
        yield lambda: connection.execute(sql, 'bare', next(seq), text)
    finally:
        await connection.close()


@asynccontextmanager
async def _redis(url: str, payload: bytes) -> AsyncGenerator[Write]:
    """One XADD."""
    from redis.asyncio import Redis

    client = Redis.from_url(url)
    try:
        yield lambda: client.xadd('bare', {'data': payload})
    finally:
        await client.aclose()
