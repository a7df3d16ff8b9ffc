"""What a Postgres store does to its table of requests, and who hears of answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ..errors import DamagedRunError, StoreError, StoreUnavailableError
from ..requests import Request, RequestQuery
from .postgres_errors import DRIVER_ERRORS, asyncpg, is_damage
from .postgres_find import finding_requests
from .postgres_pool import Connection, Connections, Listener
from .postgres_rows import request_of

__all__ = ('PostgresRequests',)

logger = logging.getLogger('graphkeep')

_CREATED_AT, _RUN_ID, _REQUEST_ID = 10, 0, 1
"""Columns of a request."""
_CHECK = 20.0
"""Seconds between two looks whether a connection that only listens is still there."""
_CHECK_TIMEOUT = 10.0
"""Seconds that such a look may take."""


class PostgresRequests:
    """The requests of one store. The methods are hooks of `Store`, which says what each does."""

    def __init__(self, db: Connections, sql: Mapping[str, str]) -> None:
        self._db = db
        self._sql = sql

    async def answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        """As `Store._answer`."""
        wanted = RequestQuery(run_id=run_id, request_id=request_id, limit=1)
        async with (
            self._db.acquire(writes=True) as connection,
            # Whatever the database's default: each statement sees what was committed before it.
            connection.transaction(isolation='read_committed'),
        ):
            if await connection.fetchval(self._sql['lock_run'], run_id) is None:
                return None
            await connection.execute(self._sql['answer_request'], run_id, request_id, answer, by)
            return next(iter(await self._fetch(connection, wanted)), None)

    async def expire(self, run_id: str) -> None:
        """As `Store._expire`."""
        async with self._db.acquire(writes=True) as connection:
            await connection.execute(self._sql['expire_requests'], run_id)

    async def find(self, query: RequestQuery) -> list[Request]:
        """As `Store._requests`."""
        try:
            async with self._db.acquire(writes=False) as connection:
                return await self._fetch(connection, query)
        except StoreError as e:
            if query.run_id is None or not is_damage(e):
                raise
            reason = f'one of its requests: {e.__cause__}'
            raise DamagedRunError(run_id=query.run_id, seq=None, reason=reason) from e

    async def _fetch(self, connection: Connection, query: RequestQuery) -> list[Request]:
        found: list[Request] = []
        wanted = query.limit
        while True:
            sql, values = finding_requests(self._sql, query)
            rows = await connection.fetch(sql, *values)
            for row in rows:
                try:
                    found.append(request_of(row))
                except DamagedRunError as e:
                    if query.run_id is not None:
                        raise
                    # One that is damaged does not hide the others.
                    logger.warning('left out of a list of requests: %s', e)
            if wanted is None or len(rows) < (query.limit or 0) or len(found) == wanted:
                return found
            after = rows[-1][_CREATED_AT], rows[-1][_RUN_ID], rows[-1][_REQUEST_ID]
            query = replace(query, limit=wanted - len(found), after=after)

    async def watch(self, heard: Callable[[str | None], None]) -> None:
        """As `Store._watch`."""
        async with self._db.listening() as connection:
            if connection is None:
                return
            channel, process = await connection.fetchrow(self._sql['answers_channel']) or ('', 0)
            if process != connection.get_server_pid():
                # A pooler stands in between: it would take the LISTEN, and tell nobody.
                return
            try:
                await _listen(connection, channel, heard)
            except asyncpg.ReadOnlySQLTransactionError:
                # A hot standby cannot.
                return
        raise StoreUnavailableError(
            f'The connection that listened for answers at {self._db.where} was lost.'
        )


async def _listen(connection: Listener, channel: str, heard: Callable[[str | None], None]) -> None:
    """Pass on what is told on a channel, until the connection is lost."""
    lost = asyncio.Event()
    listens = True

    def told(_connection: object, _process: int, _channel: str, run_id: str) -> None:
        # What had arrived when we left is still handed over after it.
        if listens:
            heard(run_id)

    def ended(_connection: object) -> None:
        lost.set()

    connection.add_termination_listener(ended)
    try:
        await connection.add_listener(channel, told)
        heard(None)
        while not lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK):
                    await lost.wait()
            if not lost.is_set():
                # A server that is gone without a word, and a firewall that forgets who is silent.
                async with asyncio.timeout(_CHECK_TIMEOUT):
                    await connection.execute('SELECT 1')
    finally:
        listens = False
        # One that was lost has gone already, with all its listeners.
        with suppress(*DRIVER_ERRORS):
            connection.remove_termination_listener(ended)
            await connection.remove_listener(channel, told)
