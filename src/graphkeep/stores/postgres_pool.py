"""Connections to Postgres: a pool of our own, or the user's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from ..errors import StoreClosedError, StoreError
from ..urls import safe_url
from .postgres_errors import DRIVER_ERRORS, meaning

__all__ = ('Connection', 'Connections', 'Listener', 'PoolOptions', 'check_url')

logger = logging.getLogger('graphkeep')

_CONNECT_TIMEOUT = 10.0
"""Seconds to connect, or to get a free connection."""
_CLOSE_TIMEOUT = 5.0
"""Seconds that closing waits for a connection to end in order."""
_IDLE = 60.0
"""Seconds after which a connection of ours that nobody uses is closed: firewalls forget sooner than
servers, and the next commit would wait for an answer that cannot come."""


class Connection(Protocol):
    """The part of an asyncpg connection that is used; asyncpg itself is not typed."""

    async def execute(self, query: str, *args: object) -> str:
        """Run a statement; gives its command tag."""
        ...

    async def fetch(self, query: str, *args: object) -> list[Sequence[Any]]:
        """All rows of a statement."""
        ...

    async def fetchrow(self, query: str, *args: object) -> Sequence[Any] | None:
        """The first row."""
        ...

    async def fetchval(self, query: str, *args: object) -> Any:
        """The first value of the first row."""
        ...

    async def fetchmany(self, query: str, args: Iterable[Sequence[object]]) -> list[Sequence[Any]]:
        """Run a statement for each set of arguments, in one transaction and one round trip."""
        ...

    def transaction(self, *, isolation: str | None = None) -> AbstractAsyncContextManager[object]:
        """Around statements that are one transaction."""
        ...

    def is_closed(self) -> bool:
        """Whether it is known to be closed."""
        ...

    def terminate(self) -> None:
        """Close it at once."""
        ...

    def get_server_version(self) -> tuple[int, ...]:
        """The version of the server; the first number is the major one."""
        ...

    def get_settings(self) -> Any:
        """What the server reported of itself, as attributes."""
        ...


class Listener(Connection, Protocol):
    """The part of a connection that is used for listening."""

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Call back with connection, process, channel and payload of what is told on a channel."""
        ...

    async def remove_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Stop that."""
        ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None:
        """Call back, with the connection, when it has ended."""
        ...

    def remove_termination_listener(self, callback: Callable[..., None]) -> None:
        """Stop that."""
        ...

    def get_server_pid(self) -> int:
        """The process that the server named when the connection was made."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """Close it in order; at once where that fails or takes longer."""
        ...


class _Pool(Protocol):
    def acquire(self) -> Awaitable[Listener]: ...
    def get_max_size(self) -> int: ...
    async def release(self, connection: Connection) -> None: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...
    def __await__(self) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOptions:
    """How to make a pool of our own."""

    min_size: int = 0
    max_size: int = 10
    statement_cache_size: int = 100
    command_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_size <= self.max_size or self.max_size < 1:
            raise ValueError(
                f'min_size must be at least 0 and max_size at least 1 and not below it, got '
                f'{self.min_size} and {self.max_size}'
            )
        if self.statement_cache_size < 0 or not self.command_timeout > 0:
            raise ValueError(
                'statement_cache_size must not be negative and command_timeout be above 0, got '
                f'{self.statement_cache_size} and {self.command_timeout}'
            )


class Connections:
    """A pool, and what its errors mean.

    Nothing here depends on a session, but listening: a connection may be another one in each
    transaction.
    """

    def __init__(
        self, *, url: str | None, pool: asyncpg.Pool | None, options: PoolOptions, prefix: str
    ) -> None:
        """Describe the connections; nothing is opened.

        Args:
            url: Where to connect to, with a pool of our own.
            pool: The user's pool, instead of `url`. It is never closed.
            options: Of our own pool.
            prefix: What our tables' names begin with, for messages.
        """
        self.where = 'the given pool' if url is None else safe_url(url)
        """The server and database as they may be shown."""
        self.given = pool is not None
        """Whether the pool is the user's."""
        self._url = url
        self._given = cast('_Pool | None', pool)
        self._options = options
        self._prefix = prefix
        self._pool: _Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: tuple[Connection, float] | None = None
        """A connection between two commits, and since when."""
        self._releases: set[asyncio.Task[None]] = set()
        self._listening: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Make the pool, if it is not the user's. Nothing stays open when this fails."""
        self._loop = asyncio.get_running_loop()
        if self._given is not None:
            self._pool = self._given
            return
        options = self._options
        pool = cast(
            '_Pool',
            asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType]
                self._url,
                min_size=options.min_size,
                max_size=options.max_size,
                statement_cache_size=options.statement_cache_size,
                command_timeout=options.command_timeout,
                timeout=_CONNECT_TIMEOUT,
                max_inactive_connection_lifetime=_IDLE,
                server_settings=_server_settings(self._url or ''),
                # We leave nothing in a session, so there is nothing to reset: a round trip saved.
                reset=_leave,
            ),
        )
        try:
            await pool
        except BaseException as e:
            with suppress(asyncpg.InterfaceError):
                pool.terminate()
            if isinstance(e, DRIVER_ERRORS):
                raise self._meaning(e, writes=False) from e
            raise
        self._pool = pool

    @asynccontextmanager
    async def acquire(self, *, writes: bool) -> AsyncGenerator[Connection]:
        """A connection for one call. Errors of the driver leave here as errors of graphkeep."""
        pool = self._open_pool()
        try:
            connection = await self._acquire(pool)
            try:
                yield connection
            except asyncpg.InternalClientError:
                _end(connection)
                raise
            finally:
                await pool.release(connection)
        except StoreError:
            raise
        except DRIVER_ERRORS as e:
            raise self._meaning(e, writes=writes) from e

    @asynccontextmanager
    async def for_commits(self) -> AsyncGenerator[Connection]:
        """As `acquire`, for commits, which do not wait for the connection to be given back.

        That costs a round trip in a user's pool. From a pool of our own, the connection is kept for
        the next commit.
        """
        pool = self._open_pool()
        try:
            connection = await self._take_kept(pool)
            try:
                yield connection
            except BaseException as e:
                if isinstance(e, asyncpg.InternalClientError):
                    _end(connection)
                await pool.release(connection)
                raise
            # The last free connection is not kept: the other calls need one.
            if self._given is None and self._kept is None and self._options.max_size > 1:
                self._kept = connection, monotonic()
            else:
                self._release_meanwhile(pool, connection)
        except StoreError:
            raise
        except DRIVER_ERRORS as e:
            raise self._meaning(e, writes=True) from e

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Listener | None]:
        """A connection to listen on, for long: none of our pool, but one of the user's, who knows
        of no other.

        `None` where there is none: if it were the only one of a pool, or if no statements are
        prepared, as behind pgbouncer in transaction mode, which gives no session to listen in.
        """
        pool, task = self._open_pool(), asyncio.current_task()
        spare = self._options.statement_cache_size > 0
        if not (spare if self._given is None else pool.get_max_size() > 1):
            yield None
            return
        assert task is not None
        self._listening.add(task)
        try:
            async with self._of_its_own() if self._given is None else self._taken(pool) as listener:
                yield listener
        except DRIVER_ERRORS as e:
            raise self._meaning(e, writes=False) from e
        finally:
            self._listening.discard(task)

    @asynccontextmanager
    async def _of_its_own(self) -> AsyncGenerator[Listener]:
        options = self._options
        # pyright takes a time-out for a whole number, and the connection for anything.
        connect = cast('Callable[..., Awaitable[Listener]]', asyncpg.connect)  # pyright: ignore[reportUnknownMemberType]
        connection = await connect(
            self._url,
            statement_cache_size=options.statement_cache_size,
            command_timeout=options.command_timeout,
            timeout=_CONNECT_TIMEOUT,
            server_settings=_server_settings(self._url or ''),
        )
        try:
            yield connection
        finally:
            # What fails here has cut the connection.
            with suppress(*DRIVER_ERRORS):
                await connection.close(timeout=_CLOSE_TIMEOUT)

    @asynccontextmanager
    async def _taken(self, pool: _Pool) -> AsyncGenerator[Listener]:
        connection = await self._acquire(pool)
        try:
            yield connection
        except DRIVER_ERRORS:
            _end(connection)
            raise
        finally:
            with suppress(*DRIVER_ERRORS):
                await pool.release(connection)

    async def close(self) -> None:
        """Close the pool if it is ours, within a few seconds."""
        pool, self._pool = self._pool, None
        kept, self._kept = self._kept, None
        # Those who listened are cancelled by now, and are giving their connections back.
        leaving = (*self._releases, *self._listening)
        if leaving and self._loop is asyncio.get_running_loop():
            await asyncio.wait(leaving, timeout=_CLOSE_TIMEOUT)
        if pool is None or self._given is not None:
            return
        if self._loop is not asyncio.get_running_loop():
            # Its loop may be gone: sockets are all that can be ended from here.
            with suppress(RuntimeError, asyncpg.InterfaceError):
                pool.terminate()
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                if kept is not None:
                    await pool.release(kept[0])
                await pool.close()
        except TimeoutError:
            logger.warning('connections to %s did not end in order and were cut', self.where)
            pool.terminate()
        except DRIVER_ERRORS:
            # A connection that is broken already cannot end in order, and need not.
            pool.terminate()
        except BaseException:
            pool.terminate()
            raise

    async def _take_kept(self, pool: _Pool) -> Connection:
        if self._kept is not None:
            (connection, since), self._kept = self._kept, None
            # One that was lost has gone back to the pool by itself, and answers nothing any more.
            with suppress(asyncpg.InterfaceError):
                if not connection.is_closed() and monotonic() - since < _IDLE:
                    return connection
            _end(connection)
        return await self._acquire(pool)

    def _release_meanwhile(self, pool: _Pool, connection: Connection) -> None:
        async def release() -> None:
            # What fails here failed after the commit, and the pool has let the connection go.
            with suppress(*DRIVER_ERRORS):
                await pool.release(connection)

        task = asyncio.create_task(release(), name='graphkeep-release')
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _acquire(self, pool: _Pool) -> Listener:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            return await pool.acquire()

    def _open_pool(self) -> _Pool:
        if self._pool is None:
            raise StoreClosedError(f'the connections to {self.where} have been closed')
        return self._pool

    def _meaning(self, error: Exception, *, writes: bool) -> StoreError:
        return meaning(error, where=self.where, prefix=self._prefix, writes=writes)


def check_url(url: str) -> str:
    """Refuse what is no Postgres URL, before a driver could show parts of its password.

    Raises:
        ValueError: It cannot be read. The message does not show it.
    """
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition('@')[2].split(',')
        ports = [host.rpartition(']')[2].partition(':')[2] for host in hosts]
        # A password with an unescaped / # or ? in it puts the rest, with its @, behind the host.
        rest = f'{parts.path}#{parts.fragment}'
        cut = '@' in (rest if '@' in parts.netloc else rest + parts.query)
        good = parts.scheme in ('postgresql', 'postgres') and not cut
        good = good and all(not port or (port.isascii() and port.isdecimal()) for port in ports)
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            'this is not a Postgres URL: expected postgresql://user:password@host:5432/database, '
            'with special characters in the password percent-encoded'
        ) from None
    return url


def _end(connection: Connection) -> None:
    """Cut a connection that nobody can use any more, before it goes back to its pool."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def _server_settings(url: str) -> dict[str, str]:
    return {} if 'application_name=' in url else {'application_name': 'graphkeep'}


async def _leave(connection: object) -> None:
    pass
