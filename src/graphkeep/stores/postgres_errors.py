"""What an error of asyncpg, or of the way to the server, means to graphkeep."""

from __future__ import annotations

import ssl
from typing import Any, cast

from ..errors import (
    DamagedRunError,
    MissingDriverError,
    SchemaError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    StoreWriteError,
)

try:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]
except ImportError as e:
    raise MissingDriverError(driver='asyncpg', extra='postgres') from e

__all__ = ('DRIVER_ERRORS', 'grants', 'is_damage', 'meaning', 'refused')

DRIVER_ERRORS: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""What a call of the driver raises. Time-outs are among them: `TimeoutError` is an `OSError`."""

# Codes and classes of codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING = frozenset(
    {
        '08',  # the connection
        '40',  # deadlock, serialisation failure: rolled back as a whole
        '57',  # shut-down, restart, cancelled, statement_timeout, an idle session ended
        '53200',  # out of memory
        '53300',  # too many connections
        '55P03',  # lock_timeout
        '25P03',  # idle_in_transaction_session_timeout
        '25P04',  # transaction_timeout
    }
)
_NOT_WRITTEN = frozenset(
    {
        '22',  # the server cannot hold this value
        '53',  # the disk is full, a limit is reached
        '54',  # too large or too complex for the server
        '58',  # an I/O error
        '25006',  # read-only
        '42501',  # no right
    }
)
_NO_TABLES = frozenset({'42P01', '42703', '3F000'})
_PREPARED = frozenset({'26000', '42P05'})
"""A prepared statement is missing, or is there already."""
_TABLES = ('runs', 'snapshots', 'requests', 'conversations', 'entries', 'blobs', 'meta')
_DAMAGE = frozenset({'XX001', '22021'})
"""A stored value cannot be read: its pages, or its bytes."""


def meaning(error: Exception, *, where: str, prefix: str, writes: bool) -> StoreError:
    """The error of graphkeep for an error in `DRIVER_ERRORS`.

    Args:
        error: What the driver raised.
        where: The server and database as they may be shown.
        prefix: What our tables' names begin with.
        writes: Whether the call was one that writes.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, where=where, prefix=prefix, writes=writes)
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(
            f'Postgres at {where} did not answer in time. Is it reachable, and are enough '
            'connections free?'
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(
            f'The certificate of Postgres at {where} was refused: {error.verify_message}. Name its '
            'authority with sslrootcert=… in the URL.'
        )
    if isinstance(error, (OSError, asyncpg.TargetServerAttributeNotMatched)):
        return StoreUnavailableError(
            f'Postgres at {where} cannot be reached: {_text(error)}. Is it running, and is the '
            'address right?'
        )
    text = _text(error)
    if isinstance(error, asyncpg.InternalClientError):
        # The tables were migrated during the call; or the server ended the connection, and the
        # driver has read its word but not yet the end.
        return StoreUnavailableError(f'The connection to Postgres at {where} broke: {text}.')
    if isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError):
        if text.startswith('pool is clos'):
            return StoreClosedError(
                f'The connection pool of {where} has been closed. Close the store before the pool '
                'that was given to it.'
            )
        if 'closed' in text:
            return StoreUnavailableError(f'The connection to Postgres at {where} was lost: {text}.')
    return StoreError(f'asyncpg could not do this at {where}: {text}.')


def grants(prefix: str) -> str:
    """The SQL that gives a role all it needs, where the tables are there."""
    tables = ', '.join(f'{prefix}_{table}' for table in _TABLES)
    return f'GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO <role>'


def is_damage(error: StoreError) -> bool:
    """Whether a reading call failed because the server could not read a stored value."""
    cause = error.__cause__
    return isinstance(cause, asyncpg.PostgresError) and _code(cause) in _DAMAGE


def refused(error: StoreError, *, run_id: str, seq: int) -> StoreError | DamagedRunError:
    """Why snapshot `seq` was not written: the error itself, unless another stands in its place."""
    if isinstance(error.__cause__, asyncpg.UniqueViolationError):
        return DamagedRunError(
            run_id=run_id, seq=seq, reason='another snapshot stands where it belongs'
        )
    return error


def _from_server(
    error: asyncpg.PostgresError, *, where: str, prefix: str, writes: bool
) -> StoreError:
    code, text = _code(error), _text(error)

    def is_one_of(codes: frozenset[str]) -> bool:
        return code in codes or code[:2] in codes

    if is_one_of(_PASSING) or isinstance(error, asyncpg.InvalidCachedStatementError):
        return StoreUnavailableError(
            f'Postgres at {where} could not do this now: {text}. The same call may succeed later.'
        )
    if is_one_of(_NO_TABLES):
        return SchemaError(
            f'The tables of graphkeep at {where} are not as they were set up: {text}. Restore '
            f'them, or drop {prefix}_meta to have new ones made.'
        )
    if code == '42501':
        kind = StoreWriteError if writes else StoreError
        return kind(f'Postgres at {where} refused: {text}. Run: {grants(prefix)}')
    if code == '25006':
        return StoreWriteError(
            f'Postgres at {where} is read-only: {text}. Connect to the primary server '
            '(target_session_attrs=read-write in the URL), and see default_transaction_read_only.'
        )
    if is_one_of(_NOT_WRITTEN) and writes:
        return StoreWriteError(
            f'Postgres at {where} refused the write: {text}. Nothing was written.'
        )
    if is_one_of(_PREPARED):
        return StoreError(
            f'A prepared statement was lost at {where}: {text}. Behind pgbouncer in transaction '
            'mode, pass statement_cache_size=0.'
        )
    if code[:2] == '28':
        return StoreError(f'Postgres at {where} refused the log-in: {text}.')
    if code == '3D000':
        return StoreError(f'Postgres at {where}: {text}. Create the database first.')
    return StoreError(f'Postgres at {where} failed: {text} (SQLSTATE {code}).')


def _code(error: asyncpg.PostgresError) -> str:
    return cast('Any', error).sqlstate or ''


def _text(error: Exception) -> str:
    # Not str(error): its DETAIL may show what was to be stored.
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return text.rstrip('.') or type(error).__name__
