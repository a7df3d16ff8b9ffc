"""A Redis database as another program sees it, and a store over it."""

# pyright: reportArgumentType=false, reportReturnType=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from graphkeep.requests import NewRequest, Request
from graphkeep.stores.redis import RedisStore
from graphkeep.testing import Worker

__all__ = (
    'ANSWERS',
    'LISTED',
    'LOG',
    'OPEN',
    'REQUESTS',
    'RUN',
    'WAKE',
    'asks',
    'everything',
    'keys',
    'micros',
    'names',
    'only',
    'paused',
    'stamp',
)

RUN, LOG = b'{graphkeep:0}:run:order-42', b'{graphkeep:0}:log:order-42'
REQUESTS = b'{graphkeep:0}:requests:order-42'
"""The keys of the run `order-42`."""
OPEN, LISTED = b'{graphkeep:0}:open', b'{graphkeep:0}:listed'
WAKE = b'{graphkeep:0}:wake'
ANSWERS = b'{graphkeep:0}:answers'
"""The keys of its bucket."""


def keys(cli: redis.Redis) -> list[bytes]:
    return sorted(cli.keys())


def everything(cli: redis.Redis) -> dict[bytes, bytes | None]:
    """All that is stored, to be compared."""
    return {key: cli.dump(key) for key in keys(cli)}


def stamp(at: datetime) -> bytes:
    """A time as it is stored."""
    return b'%d' % micros(at)


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def only(url: str, **options: Any) -> RedisStore:
    """A store over a server that need not be durable."""
    return RedisStore(url, check_server=False, **options)


def asks(name: str = 'manager', *, timeout: float | None = None, **fields: Any) -> NewRequest:
    """A small request."""
    given = {'prompt': None, 'payload': b'null', 'schema': b'true', **fields}
    return NewRequest(f'0:{name}', '0', 'Node0', name, timeout=timeout, **given)


async def paused(store: RedisStore, *new: NewRequest, run_id: str = 'order-42') -> Worker:
    """A run that waits for these."""
    worker = Worker(store, run_id)
    await worker.create(graph='orders', labels={'team': 'a'})
    await worker.pauses(*new)
    return worker


def names(found: list[Request]) -> list[str]:
    """What they were asked under."""
    return [request.name for request in found]
