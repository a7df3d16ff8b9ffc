"""What the errors of redis-py and of the server mean: the one place where they are told apart."""

from __future__ import annotations

import re

from redis import exceptions as raised

from ..errors import StoreError, StoreUnavailableError, StoreWriteError

__all__ = ('CAUGHT', 'meaning')

CAUGHT = (raised.RedisError, raised.RedisClusterException, OSError, TimeoutError)
"""Everything that a command may raise because of the server or of the way to it."""

_AUTH = (
    raised.AuthenticationError,
    raised.AuthorizationError,
    raised.AuthenticationWrongNumberOfArgsError,
)
_AWAY = (
    raised.ConnectionError,
    raised.TimeoutError,
    raised.ClusterError,
    raised.TryAgainError,
    OSError,
    TimeoutError,
)
_CODES: tuple[tuple[str, type[raised.RedisError] | None], ...] = (
    ('READONLY', raised.ReadOnlyError),
    ('OOM', raised.OutOfMemoryError),
    ('NOPERM', raised.NoPermissionError),
    ('MOVED', raised.MovedError),
    ('MISCONF', None),
    ('NOREPLICAS', None),
    ('WRONGTYPE', None),
    ('BUSY', None),
    ('LOADING', raised.BusyLoadingError),
)
_WORD = re.compile(r'\b(' + '|'.join(code for code, _ in _CODES) + r')\b')
# What a script may not do is told in words, and in other ones by Redis 6.
_FORBIDDEN = re.compile(r'ACL failure|no permissions|executing the script can.t', re.IGNORECASE)

_REFUSED = {
    'READONLY': 'it is a read-only replica. Connect to the primary.',
    'OOM': 'its memory is full. Raise maxmemory, or remove runs with store.prune().',
    'MISCONF': 'it cannot save to its disk. Its log says why.',
    'NOREPLICAS': 'it has fewer replicas than min-replicas-to-write asks for.',
}


def meaning(error: BaseException, *, where: str, writes: bool) -> StoreError:
    """The error of graphkeep for an error of a command, which becomes its cause.

    Args:
        error: One of `CAUGHT`, or an error reply.
        where: The server's address as it may be shown.
        writes: Whether the command was to write: then a refusal means that nothing was written.
    """
    found = _meaning(error, where, writes)
    found.__cause__ = error
    return found


def _meaning(error: BaseException, where: str, writes: bool) -> StoreError:
    text = _short(error)
    # Authentication errors are connection errors to redis-py, but trying again does not help.
    if isinstance(error, _AUTH):
        return StoreError(
            f'Redis at {where} refused the login: {text}. Check user and password in the URL or '
            'the client.'
        )
    code = _code(error)
    if code in _REFUSED:
        return StoreWriteError(
            f'Redis at {where} refused the write: {_REFUSED[code]} Nothing was written. ({text})'
        )
    if code == 'NOPERM':
        kind = StoreWriteError if writes else StoreError
        return kind(
            f'The user of Redis at {where} may not do this: {text}. Reading runs needs '
            '+@read +@connection +@scripting +time on the keys of the prefix; writing them, '
            '+@write too.'
        )
    if code == 'WRONGTYPE':
        return StoreError(
            f'Redis at {where} has a key of another kind where graphkeep keeps a run or an index. '
            'Nothing was written. Remove that key, or open the store with another prefix. '
            f'({text})'
        )
    if code == 'MOVED':
        return StoreError(
            f'Redis at {where} is part of a cluster. Open the store with redis+cluster://… or a '
            'redis.asyncio.RedisCluster.'
        )
    if code in ('BUSY', 'LOADING') or isinstance(error, _AWAY) or _lost_cluster(error):
        return StoreUnavailableError(
            f'Redis at {where} cannot be reached: {text}. Check that it runs and that the address '
            'is right.'
        )
    return StoreError(f'Redis at {where} answered with an error: {text}')


def _code(error: BaseException) -> str | None:
    if not isinstance(error, raised.ResponseError | raised.BusyLoadingError):
        return None
    for code, kind in _CODES:
        if kind is not None and isinstance(error, kind):
            return code
    text = str(error)
    # In the reply of a script the code may stand anywhere.
    if found := _WORD.search(text):
        return found[1]
    return 'NOPERM' if _FORBIDDEN.search(text) else None


def _lost_cluster(error: BaseException) -> bool:
    # redis-py says with one class that no node is there and that this is no cluster.
    return isinstance(error, raised.RedisClusterException) and 'not enabled' not in str(error)


def _short(error: BaseException) -> str:
    text = ' '.join(str(error).split()).rstrip('.') or type(error).__name__
    return text if len(text) <= 300 else f'{text[:299]}…'
