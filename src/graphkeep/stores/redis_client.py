"""Speaking to Redis: a client, and our scripts through it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, cast

from ..errors import MissingDriverError, StoreError
from .redis_deadlines import Deadlines

try:
    import redis.asyncio as redis_asyncio
    from redis import exceptions as raised
    from redis.asyncio.connection import AbstractConnection
    from redis.client import NEVER_DECODE
    from redis.exceptions import NoScriptError

    from .redis_errors import CAUGHT, meaning
except ModuleNotFoundError as e:
    if e.name != 'redis':
        raise
    raise MissingDriverError(driver='redis', extra='redis') from None

__all__ = ('Call', 'Client', 'Link', 'packed', 'script')

Client = redis_asyncio.Redis | redis_asyncio.RedisCluster

_PARTS: Mapping[str, tuple[str, ...]] = {
    'answer': ('clock', 'index', 'request', 'shown'),
    'append': ('clock', 'index', 'commit'),
    'ask': ('clock', 'index', 'request', 'commit'),
    'cancel': ('clock', 'header', 'index', 'request'),
    'candidates': ('clock', 'header'),
    'claim': ('clock', 'header', 'index', 'log'),
    'create': ('clock', 'header', 'index', 'request'),
    'delete': ('clock', 'header', 'index', 'request'),
    'expire': ('clock', 'index', 'request'),
    'history': ('log',),
    'latest': (),
    'listed': ('filter',),
    'listing': ('clock',),
    'match': ('clock', 'header'),
    'one': ('clock', 'header'),
    'read': ('clock', 'header', 'log'),
    'release': ('clock', 'index'),
    'renew': ('clock',),
    'requests': ('clock', 'request', 'filter', 'shown'),
    'setup': (),
    'talk_blobs': (),
    'talk_delete': ('clock', 'talk', 'talk_counts'),
    'talk_entries': ('talk',),
    'talk_find': ('clock', 'talk'),
    'talk_row': ('clock',),
    'talk_write': ('clock', 'talk', 'talk_counts'),
    'upgrade': (),
    'waiting': (),
}
"""Every script, and the parts that go before it."""
_READING = frozenset(
    {
        'candidates',
        'history',
        'latest',
        'listed',
        'listing',
        'match',
        'one',
        'read',
        'requests',
        'talk_blobs',
        'talk_entries',
        'talk_find',
        'talk_row',
        'waiting',
    }
)
_AT_ONCE = 64
"""Most commands of one store at a time: below what the pools of a client hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One Lua script."""

    source: bytes
    sha: bytes
    writes: bool


@cache
def script(name: str) -> Script:
    """A script from `lua/`, put together with its parts."""
    folder = files(__spec__.parent).joinpath('lua')
    parts = [folder.joinpath(f'{part}.lua').read_bytes() for part in (*_PARTS[name], name)]
    source = b'\n'.join(parts)
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(source=source, sha=sha, writes=name not in _READING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a script is called with. Every key that it touches is in `keys`."""

    keys: Sequence[bytes]
    args: Sequence[bytes | str | int]


class _Executes(Protocol):
    """What is used of a client or a pipeline: redis-py types it for other ways of using it."""

    def execute_command(self, *args: object, **options: object) -> Awaitable[Any]: ...


class Link:
    """One client, and how graphkeep speaks through it.

    Replies are bytes, whatever the client decodes. Redis errors leave here as errors of graphkeep.
    """

    def __init__(self, client: Client, *, where: str, owned: bool, timeout: float) -> None:
        self.client = client
        self.where = where
        """The server's address as it may be shown."""
        self.cluster = isinstance(client, redis_asyncio.RedisCluster)
        self._owned = owned
        self._deadlines = Deadlines(timeout)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._kept: AbstractConnection | None = None
        """A connection of our own pool that nobody uses: giving it back and getting it again takes
        as long as preparing a commit.
        """

    async def call(self, name: str, call: Call) -> Any:
        """Run a script and give its reply."""
        [reply] = await self.call_each(name, (call,))
        if isinstance(reply, StoreError):
            raise reply
        return reply

    async def call_each(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script many times in one round trip; gives for each its reply or its error."""
        what = script(name)
        replies: list[Any]
        send = self._through_cluster if self.cluster else self._through_connection
        try:
            async with self._free:
                with self._deadlines.one():
                    replies = await send('EVALSHA', what.sha, calls)
                    missing = [i for i, r in enumerate(replies) if isinstance(r, NoScriptError)]
                    if missing:
                        # A new server, a flushed cache, a failover: EVAL runs it and loads it.
                        again = await send('EVAL', what.source, [calls[i] for i in missing])
                        for i, reply in zip(missing, again, strict=True):
                            replies[i] = reply
        except CAUGHT as e:
            replies = [e] * len(calls)
        return [
            meaning(reply, where=self.where, writes=what.writes)
            if isinstance(reply, Exception)
            else reply
            for reply in replies
        ]

    async def _through_connection(
        self, command: str, what: bytes, calls: Sequence[Call]
    ) -> list[Any]:
        """What `execute_command` and a pipeline do, in half of their time."""
        parts: list[bytes] = []
        for call in calls:
            parts += packed(command, what, len(call.keys), *call.keys, *call.args)
        replies: list[Any] = []
        connection = await self._take()
        try:
            await connection.send_packed_command(parts)
            for _ in calls:
                try:
                    replies.append(await connection.read_response(disable_decoding=True))
                except raised.ResponseError as e:
                    replies.append(e)
        except BaseException:
            # Whoever got this connection next would read replies that are not for them.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._give_back(connection)
        return replies

    async def _take(self) -> AbstractConnection:
        connection, self._kept = self._kept, None
        if connection is None:
            return await self._pool.get_connection()
        try:
            await self._pool.ensure_connection(connection)
        except BaseException:
            await self._pool.release(connection)
            raise
        return connection

    async def _give_back(self, connection: AbstractConnection) -> None:
        # Only newer versions of redis-py know connections that are to be replaced.
        to_be_replaced = getattr(connection, 'should_reconnect', None)
        if self._owned and self._kept is None and not (to_be_replaced and to_be_replaced()):
            self._kept = connection
        else:
            await self._pool.release(connection)

    @property
    def _pool(self) -> redis_asyncio.ConnectionPool:
        assert isinstance(self.client, redis_asyncio.Redis)
        return self.client.connection_pool

    async def _through_cluster(self, command: str, what: bytes, calls: Sequence[Call]) -> list[Any]:
        options: dict[str, object] = {NEVER_DECODE: True}
        if len(calls) == 1:
            # From a single command, unlike a pipeline, redis-py learns where a slot has gone.
            [call] = calls
            try:
                reply = await cast('_Executes', self.client).execute_command(
                    command, what, len(call.keys), *call.keys, *call.args, **options
                )
            except raised.ResponseError as e:
                return [e]
            return [reply]
        async with self.client.pipeline(transaction=False) as pipeline:
            add = cast('_Executes', pipeline).execute_command
            for call in calls:
                # Only noted here, whatever it returns.
                _ = add(command, what, len(call.keys), *call.keys, *call.args, **options)
            return await pipeline.execute(raise_on_error=False)

    async def fields(self, key: bytes, *names: str | bytes) -> list[bytes | None]:
        """Some fields of a hash, without a script."""
        options: dict[str, object] = {NEVER_DECODE: True}
        try:
            with self._deadlines.one():
                return await cast('_Executes', self.client).execute_command(
                    'HMGET', key, *names, **options
                )
        except CAUGHT as e:
            raise meaning(e, where=self.where, writes=False) from e

    async def info(self) -> list[Mapping[str, object]]:
        """What the server, or every primary of a cluster, says of itself; nothing where that is
        not allowed.
        """
        client = cast('_Executes', self.client)
        try:
            with self._deadlines.one():
                if isinstance(self.client, redis_asyncio.RedisCluster):
                    nodes = self.client.get_primaries()
                    asked = [client.execute_command('INFO', target_nodes=node) for node in nodes]
                    return list(await asyncio.gather(*asked))
                return [await client.execute_command('INFO')]
        except raised.ResponseError:
            return []
        except CAUGHT as e:
            raise meaning(e, where=self.where, writes=False) from e

    async def close(self) -> None:
        """Close the client, if it was made here, with all its connections."""
        self._deadlines.close()
        if not self._owned:
            return
        # In another event loop than theirs, which has been closed, connections are gone already.
        with suppress(RuntimeError):
            if isinstance(self.client, redis_asyncio.RedisCluster):
                await _close_cluster(self.client)
            else:
                await self.client.aclose()


def packed(*args: bytes | str | int) -> list[bytes]:
    """A command as Redis takes it, in parts, so that a large payload is not copied."""
    parts = [b'*%d\r\n' % len(args)]
    for arg in args:
        value = arg if isinstance(arg, bytes) else str(arg).encode()
        parts += (b'$%d\r\n' % len(value), value, b'\r\n')
    return parts


async def _close_cluster(client: redis_asyncio.RedisCluster) -> None:
    await client.aclose()
    # After a node has failed, redis-py takes the client for closed and leaves the connections to
    # the other nodes open.
    nodes = [*client.get_nodes(), *client.nodes_manager.startup_nodes.values()]
    await asyncio.gather(*(node.disconnect() for node in nodes), return_exceptions=True)
