"""A Redis database as another program sees it, and a store over it."""

# pyright: reportArgumentType=false, reportReturnType=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from graphkeep.stores.redis import RedisStore

__all__ = ('LOG', 'RUN', 'keys', 'micros', 'only')

RUN, LOG = b'{graphkeep:0}:run:order-42', b'{graphkeep:0}:log:order-42'
"""The keys of the run `order-42`."""


def keys(cli: redis.Redis) -> list[bytes]:
    return sorted(cli.keys())


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def only(url: str, **options: Any) -> RedisStore:
    """A store over a server that need not be durable."""
    return RedisStore(url, check_server=False, **options)
