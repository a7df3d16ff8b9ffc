"""A Postgres database as another program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ('at', 'connections', 'name_of', 'no_connection', 'rows', 'run_sql', 'tool')


@asynccontextmanager
async def tool(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of another program."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=20)


async def rows(url: str, sql: str, *values: object) -> list[dict[str, Any]]:
    async with tool(url) as connection:
        return [dict(row) for row in await connection.fetch(sql, *values)]


async def run_sql(url: str, sql: str) -> None:
    async with tool(url) as connection:
        await connection.execute(sql)


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


def at(url: str, place: str) -> str:
    """`url` with another host and port."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition('@')[0]
    return urlunsplit(parts._replace(netloc=f'{user}@{place}' if user else place))


async def connections(url: str) -> int:
    """How many of a store's connections the server has."""
    sql = (
        'SELECT count(*) FROM pg_stat_activity '
        "WHERE datname = current_database() AND application_name = 'graphkeep'"
    )
    return (await rows(url, sql))[0]['count']


def no_connection(url: str) -> Callable[[], Any]:
    async def none() -> bool:
        return await connections(url) == 0

    return none
