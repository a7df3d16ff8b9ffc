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
            `lease`, `heartbeat`, `retry` and `history` may follow: `…?lease=60`.
        **options: Of the store: `lease`, `heartbeat`, `history`, `retry`, and what its class takes.
            They win over those of the URL.

    Raises:
        ValueError: The URL names no store that there is, or an option is not what it may be.
        TypeError: It is not a string.
        MissingDriverError: The driver of that database is not installed; says which extra brings
            it.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'the URL of a store must be a string, got {type(url).__name__}')
    scheme = url.partition(':')[0].lower()
    if scheme in ('memory', 'postgresql', 'postgres'):
        # The other stores read their URLs whole.
        url, found = _split_options(url)
        options = {**found, **options}
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


def _split_options(url: str) -> tuple[str, dict[str, Any]]:
    """A URL without the options that every store has, and these; the driver gets the others."""
    head, mark, query = url.partition('?')
    kept: list[str] = []
    found: dict[str, Any] = {}
    for each in query.split('&') if mark else ():
        name, _, value = each.partition('=')
        if name in found:
            raise ValueError(f'{safe_url(url)!r} has twice option {name!r}')
        if name == 'history':
            found[name] = value
        elif name in ('lease', 'heartbeat', 'retry'):
            try:
                found[name] = float(value)
            except ValueError:
                raise ValueError(
                    f'{name} in {safe_url(url)!r} must be a number, got {value!r}'
                ) from None
        else:
            kept.append(each)
    return head + (mark + '&'.join(kept) if kept else ''), found


def safe_url(url: object) -> str:
    """`url` as it may be shown: without user, password, query and fragment.

    Where a password may have slipped out of its place (a `/`, `?` or `#` in it that was not escaped
    ends the host early), only the scheme is shown.
    """
    if not isinstance(url, str):
        return type(url).__name__
    try:
        parts = urlsplit(url)
    except ValueError:
        return '…'
    if not parts.scheme:
        return '…'
    place = f'{parts.scheme}://{parts.netloc.rpartition("@")[2]}{parts.path}'
    if parts.scheme == 'sqlite' and not parts.netloc:
        return place
    if '@' in f'{parts.path}{parts.query}{parts.fragment}':
        return f'{parts.scheme}://…'
    return place.replace('://', '://***@', 1) if '@' in parts.netloc else place
