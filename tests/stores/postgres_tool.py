"""A Postgres database as another program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

__all__ = ('name_of', 'rows', 'run_sql', 'tool')


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
