"""Hearing of answers: a blocking read of the streams that `answer.lua` writes.

It has connections of its own, one to a server and one for each bucket of a cluster: a reader that
waits holds up everything else on its connection, and a command of a cluster has one slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import redis.asyncio as redis_asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError

from ..errors import StoreError, StoreUnavailableError
from .redis_client import Call, Link, packed
from .redis_errors import CAUGHT, meaning
from .redis_keys import Layout

__all__ = ('watch',)

_BLOCK = 2.0
"""Seconds that a read waits for something to come."""
_MOST = 100
"""Most answers of a stream in one read."""

_Entries = Sequence[tuple[bytes, Sequence[bytes] | None]]
_Reply = Sequence[tuple[bytes, _Entries]] | dict[bytes, _Entries] | None
"""An array in RESP2, a map in RESP3."""

Heard = Callable[[str | None], None]


async def watch(link: Link, layout: Layout, heard: Heard, *, timeout: float) -> None:
    """Call `heard` as `Hooks._watch` says. Returns where streams may not be read.

    Args:
        link: The server.
        layout: Where the streams are.
        heard: What is called.
        timeout: Seconds that a reply may be late.

    Raises:
        StoreUnavailableError: The server cannot be reached, twice in a row.
    """
    keys = layout.buckets_of('answers')
    if not _has_room(link, len(keys)):
        return
    parts = [(key,) for key in keys] if link.cluster else [keys]
    readers = [_Reader(link, part, timeout=timeout) for part in parts]
    try:
        # Before anything else: what comes from here on is heard.
        await asyncio.gather(*(reader.begin() for reader in readers))
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read(heard))
            for reader in readers:
                await reader.opened.wait()
            heard(None)
    except ExceptionGroup as errors:
        error = errors.exceptions[0]
        if isinstance(error, StoreUnavailableError) or not isinstance(error, StoreError):
            raise error from None
    except StoreUnavailableError:
        raise
    except StoreError:
        pass


def _has_room(link: Link, count: int) -> bool:
    """Whether the user lets the client have as many connections more than the one for commands."""
    client = link.client
    if isinstance(client, redis_asyncio.RedisCluster):
        return all(node.max_connections > count for node in client.get_nodes())
    return client.connection_pool.max_connections > 1


class _Reader:
    """Reads some streams of one server, from where they end when it begins."""

    def __init__(self, link: Link, keys: Sequence[bytes], *, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._last: dict[bytes, bytes] = dict.fromkeys(keys, b'0-0')
        """The id of each stream up to which it was read."""
        self.opened = asyncio.Event()
        """Set when it has read once."""

    async def begin(self) -> None:
        """Look where the streams end."""
        calls = [Call(keys=(key,), args=()) for key in self._last]
        for key, reply in zip(self._last, await self._link.call_each('latest', calls), strict=True):
            if isinstance(reply, StoreError):
                raise reply
            self._last[key] = reply

    async def read(self, heard: Heard) -> None:
        """Read until it is cancelled, or cannot."""
        failed = 0
        while True:
            # Not one of the pool: who closes the pool, or looks for slots anew, would take it from
            # under the reader; and the pool is never short of it.
            connection: AbstractConnection | None = None
            try:
                connection = _connection_to(self._link, next(iter(self._last)))
                await self._once(connection, heard, block=0)
                failed = 0
                if self.opened.is_set():
                    heard(None)
                self.opened.set()
                block = min(_BLOCK, (connection.socket_timeout or _BLOCK * 2) / 2)
                while True:
                    await self._once(connection, heard, block=block)
            except CAUGHT as e:
                failed += 1
                error = meaning(e, where=self._link.where, writes=False)
                if failed > 1 or not (_is_lost(e) or isinstance(error, StoreUnavailableError)):
                    raise error from e
            finally:
                # In the middle of a reply, or done with: nobody gets it after this.
                if connection is not None:
                    await connection.disconnect(nowait=True)
            if self._link.cluster:
                # From a single command the client learns where the slot is now.
                await self._link.call('latest', Call(keys=tuple(self._last), args=()))

    async def _once(self, connection: AbstractConnection, heard: Heard, *, block: float) -> None:
        waits = ('BLOCK', max(int(block * 1000), 1)) if block else ()
        streams = 'COUNT', _MOST, *waits, 'STREAMS', *self._last, *self._last.values()
        async with asyncio.timeout(block + self._timeout):
            await connection.send_packed_command(packed('XREAD', *streams))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Before Python 3.12, `wait_for` may lose a cancellation; this would wait for ever.
                raise asyncio.CancelledError
            reply = cast('_Reply', await connection.read_response(disable_decoding=True))
        for key, entries in reply.items() if isinstance(reply, dict) else reply or ():
            for name, fields in entries:
                self._last[key] = name
                # An entry that is not ours may mean anything.
                ours = fields is not None and len(fields) == 2 and fields[0] == b'run'
                heard(fields[1].decode(errors='replace') if fields and ours else None)


def _is_lost(error: BaseException) -> bool:
    """Whether the slot, or the role of the server, is another one now."""
    return isinstance(error, MovedError) or 'UNBLOCKED' in str(error)


def _connection_to(link: Link, key: bytes) -> AbstractConnection:
    """A new connection, made as the client makes its own, to where a key is."""
    client = link.client
    if isinstance(client, redis_asyncio.Redis):
        return client.connection_pool.make_connection()
    node = client.get_node_from_key(cast('str', key))
    if node is None:
        raise StoreUnavailableError(f'Redis at {link.where}: no node has the slot of {key!r} now.')
    options: dict[str, Any] = {**node.connection_kwargs, 'retry': Retry(NoBackoff(), 0)}
    return node.connection_class(**options)
