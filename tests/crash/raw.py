"""Everything a store has of its runs, as the database tells it, past graphkeep."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import urlsplit

import asyncpg
import redis


async def everything(url: str, run_id: str) -> list[str]:
    """The rows or keys of one run, each as one text; two that are equal are equal to the byte."""
    scheme = urlsplit(url).scheme
    if scheme == 'sqlite':
        found = _sqlite(url, run_id)
    elif scheme == 'postgresql':
        found = await _postgres(url, run_id)
    else:
        found = _redis(url, run_id)
    assert len(found) > 1, 'header and snapshots'
    return found


def _sqlite(url: str, run_id: str) -> list[str]:
    with closing(sqlite3.connect(urlsplit(url).path[1:])) as connection:
        return [
            repr(row)
            for table in ('graphkeep_runs', 'graphkeep_snapshots')
            for row in connection.execute(f'SELECT * FROM {table} WHERE run_id = ?', (run_id,))
        ]


async def _postgres(url: str, run_id: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        return [
            row[0]
            for table in ('graphkeep_runs', 'graphkeep_snapshots')
            for row in await connection.fetch(
                f'SELECT t::text FROM {table} t WHERE run_id = $1 ORDER BY 1', run_id
            )
        ]
    finally:
        await connection.close()


def _redis(url: str, run_id: str) -> list[str]:
    found: list[str] = []
    for node in _nodes(url):
        with redis.Redis.from_url(node) as client:
            for key in sorted(client.scan_iter()):
                if run_id.encode() in key:
                    found.append(f'{key!r} {client.dump(key)!r}')
                elif client.type(key) == b'zset':
                    found.append(f'{key!r} {client.zscore(key, run_id)!r}')
    return found


def _nodes(url: str) -> list[str]:
    if not url.startswith('redis+cluster:'):
        return [url]
    with redis.Redis.from_url(url.replace('+cluster', '')) as client:
        return [f'redis://{address}' for address in client.cluster('nodes')]
