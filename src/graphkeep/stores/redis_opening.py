"""From a URL or the user's client to a layout of keys that everybody agrees on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from ..errors import SchemaError, StoreWriteError
from ..urls import safe_url
from .redis_client import Call, Client, Link
from .redis_keys import HASH, Layout

__all__ = ('SCHEMA', 'agree', 'check_client', 'connect', 'link_to', 'take_options', 'warn')

logger = logging.getLogger('graphkeep')

SCHEMA = 3
"""Version of the layout of keys and fields. Everything of an older one is of version 3 too: version
2 added requests, version 3 conversations.
"""
_OLDEST = 1
_OLDER = tuple(b'%d' % version for version in range(_OLDEST, SCHEMA))
_CLUSTER_BUCKETS = 16
_CONNECT = 5.0
"""Seconds that opening a connection may take."""
_SCHEMES = {
    'redis': 'redis',
    'rediss': 'rediss',
    'unix': 'unix',
    'valkey': 'redis',
    'valkeys': 'rediss',
    'redis+cluster': 'redis',
    'rediss+cluster': 'rediss',
}
"""Our schemes, and what redis-py calls them."""


def connect(url: str, *, timeout: float) -> Link:
    """Make a client for `url`. It connects at its first command.

    Raises:
        ValueError: The URL is not one, or has an option that redis-py does not know.
    """
    scheme, _, rest = url.partition(':')
    plain = _SCHEMES.get(scheme.lower())
    if plain is None:
        raise ValueError(f'{safe_url(url)!r} is not the URL of a Redis server')
    make = _cluster if 'cluster' in scheme.lower() else _single
    try:
        client = make(f'{plain}:{rest}')
    except (TypeError, ValueError, RedisClusterException) as e:
        # A password with `#`, `/` or `?` in it looks like a port, and the driver would quote it.
        reason = 'its host or port cannot be read' if 'Port' in str(e) else str(e)
        raise ValueError(
            f'{safe_url(url)} cannot be used: {reason}. Percent-encode special characters in a '
            'user name or password (`#` is %23, `/` is %2F, `?` is %3F).'
        ) from None
    return Link(client, where=safe_url(url), owned=True, timeout=timeout)


def take_options(
    url: str, kinds: Mapping[str, Callable[[str], object]]
) -> tuple[str, dict[str, Any]]:
    """Take our own options out of a URL: redis-py would refuse them.

    Args:
        url: The URL of a server.
        kinds: The options, and how each is read.

    Returns:
        The URL without them, and what they say.

    Raises:
        ValueError: One is given twice, or is not what it may be.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'the URL must be a string, got {type(url).__name__}')
    start, _, query = url.partition('?')
    found: dict[str, Any] = {}
    others: list[str] = []
    for part in filter(None, query.split('&')):
        name, _, value = part.partition('=')
        if name not in kinds:
            others.append(part)
            continue
        try:
            if name in found:
                raise ValueError('it is given twice')
            found[name] = kinds[name](unquote(value))
        except ValueError as e:
            raise ValueError(f'option {name!r} of {safe_url(url)!r}: {e}') from None
    return '?'.join(filter(None, (start, '&'.join(others)))), found


def link_to(client: Client, *, timeout: float) -> Link:
    """Use a client that the user made, and will close."""
    return Link(client, where=_address(client), owned=False, timeout=timeout)


def check_client(client: object) -> Client:
    """Refuse what is not an asyncio client of redis-py.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(client, redis_asyncio.Redis | redis_asyncio.RedisCluster):
        return client
    raise TypeError(
        'client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, got '
        f'{type(client).__module__}.{type(client).__qualname__}'
    )


def _single(url: str) -> redis_asyncio.Redis:
    # A link bounds a command as a whole; redis-py bounds every write, with a task for each. And the
    # store tries again by itself.
    options: dict[str, Any] = {'socket_timeout': None, 'retry': Retry(NoBackoff(), 0)}
    if not url.startswith('unix:'):
        options |= {'socket_connect_timeout': _CONNECT, 'socket_keepalive': True}
    client = redis_asyncio.Redis.from_url(url, **options)  # pyright: ignore[reportUnknownMemberType]
    # Makes an object, no connection: finds options that it does not take.
    client.connection_pool.make_connection()
    return client


def _cluster(url: str) -> redis_asyncio.RedisCluster:
    return redis_asyncio.RedisCluster.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=_CONNECT,
        socket_keepalive=True,
        # These look for a slot anew. Waiting for a node that is away is up to the store.
        retry=Retry(NoBackoff(), 3),
    )


def _address(client: Client) -> str:
    """Where the user's client connects to, without user and password."""
    if isinstance(client, redis_asyncio.RedisCluster):
        return ', '.join(client.nodes_manager.startup_nodes) or 'a cluster'
    options = client.connection_pool.connection_kwargs
    if 'path' in options:
        return f'unix://{options["path"]}'
    return f'{options.get("host", "localhost")}:{options.get("port", 6379)}'


async def agree(link: Link, *, prefix: str, buckets: int | None) -> Layout:
    """The layout that is written down; the first to come writes it down.

    Args:
        link: The server.
        prefix: What all keys begin with.
        buckets: How many buckets there must be; `None` for any number.

    Raises:
        SchemaError: It is another one, or a newer one, or it may not be written down.
    """
    key = Layout.meta(prefix)
    place = f'The runs with prefix {prefix!r} in Redis at {link.where}'
    found = await link.fields(key, 'schema', 'buckets', 'hash')
    if found[0] is None:
        number = buckets or (_CLUSTER_BUCKETS if link.cluster else 1)
        try:
            found = await link.call('setup', Call(keys=(key,), args=(SCHEMA, number, HASH)))
        except StoreWriteError as e:
            raise SchemaError(f'{place}: there are none, and none can be written. {e}') from e
    elif found[0] in _OLDER:
        # Older versions of graphkeep refuse it from now on. Who may not write reads it as it is.
        with suppress(StoreWriteError):
            found = await link.call('upgrade', Call(keys=(key,), args=(found[0], SCHEMA)))
    try:
        schema, number, function = [(value or b'').decode() for value in found]
        schema, number = int(schema), int(number)
        if schema < _OLDEST:
            raise ValueError
    except ValueError:
        raise SchemaError(
            f'{place}: {key.decode()} holds {found}, which graphkeep did not write. Open the store '
            'with another prefix.'
        ) from None
    if schema > SCHEMA:
        raise SchemaError(
            f'{place} have schema {schema}; this graphkeep knows up to {SCHEMA}. Upgrade graphkeep '
            'here.'
        )
    if function != HASH or number != (buckets or number):
        raise SchemaError(
            f'{place} lie in {number} buckets by {function}, not in {buckets or number} by {HASH}. '
            'Leave buckets= out, or open the store with another prefix.'
        )
    return Layout(prefix=prefix, buckets=number)


async def warn(link: Link) -> None:
    """Say once if the server may lose what it has acknowledged."""
    for info in await link.info():
        lacks: list[str] = []
        if info.get('aof_enabled') == 0:
            lacks.append('appendonly is off, so that a crash loses what came after its last dump')
        policy = info.get('maxmemory_policy')
        if policy not in (None, 'noeviction'):
            lacks.append(f'maxmemory-policy is {policy}, so that it may drop runs')
        if lacks:
            logger.warning(
                'Redis at %s can lose runs: %s. Set appendonly yes and maxmemory-policy '
                'noeviction; check_server=False silences this.',
                link.where,
                '; '.join(lacks),
            )
            return
