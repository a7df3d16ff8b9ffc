"""A store from a URL. Drivers are imported here, late, so that the base install needs none."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from .store import Store

__all__ = ('open_store', 'safe_url')


def open_store(url: str, **options: Any) -> Store:
    """Describe the store that `url` names; it connects at its first use.

    Args:
        url: `sqlite:///runs.db` (relative), `sqlite:////var/lib/runs.db` (absolute),
            `postgresql://…`, `redis://…`, `rediss://…`, `redis+cluster://…` or `memory://`.
        **options: Of the store: `lease`, `heartbeat`, `history`, `retry`, and what its class takes.

    Raises:
        ValueError: The URL names no store that there is.
        MissingDriverError: The driver of that database is not installed; says which extra brings
            it.
    """
    scheme = url.partition(':')[0].lower()
    if scheme == 'memory':
        from .stores.memory import MemoryStore

        return MemoryStore(urlsplit(url).netloc or None, **options)
    if scheme == 'sqlite':
        from .stores.sqlite import SQLiteStore

        return SQLiteStore.from_url(url, **options)
    if scheme in ('postgresql', 'postgres'):
        from .stores.postgres import PostgresStore

        return PostgresStore.from_url(url, **options)
    if scheme in (
        'redis',
        'rediss',
        'unix',
        'valkey',
        'valkeys',
        'redis+cluster',
        'rediss+cluster',
    ):
        from .stores.redis import RedisStore

        return RedisStore.from_url(url, **options)
    raise ValueError(
        f'no store for {safe_url(url)!r}: expected sqlite:///…, postgresql://…, redis://… or memory://'
    )


def safe_url(url: object) -> str:
    """`url` as it may be shown: without password, user and query."""
    if not isinstance(url, str):
        return type(url).__name__
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition('@')[2]
        hidden = '***@' if '@' in parts.netloc else ''
        return f'{parts.scheme}://{hidden}{host}{parts.path}' if parts.scheme else '…'
    except ValueError:
        return '…'
