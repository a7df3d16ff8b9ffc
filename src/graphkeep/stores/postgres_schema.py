"""Setting up and migrating the tables in Postgres."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from ..errors import SchemaError
from .postgres_errors import grants
from .postgres_pool import Connection
from .statements import load, migrations

__all__ = ('set_up',)

_OLDEST = 14
_NO_RIGHT = (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)


async def set_up(connection: Connection, *, prefix: str, where: str) -> None:
    """Bring the tables to the version that this graphkeep speaks, or find them so.

    Raises:
        SchemaError: They may not be made or migrated, are of a newer graphkeep, or the server is
            not one that can hold them.
    """
    _check_server(connection, where)
    steps = migrations('postgres', prefix=prefix)
    newest = max(steps)
    sql = load('postgres_runs.sql', prefix=prefix)
    if await _version(connection, sql, where=where, prefix=prefix, newest=newest) == newest:
        return
    try:
        # Whatever the database's default: what was seen before the wait for the lock is old.
        async with connection.transaction(isolation='read_committed'):
            await connection.execute(sql['lock_schema'])
            version = await _version(connection, sql, where=where, prefix=prefix, newest=newest)
            for step in range(version + 1, newest + 1):
                for statement in steps[step]:
                    await connection.execute(statement)
            if version < newest:
                await connection.execute(sql['store_version'], str(newest))
    except _NO_RIGHT as e:
        raise SchemaError(
            f'The tables of graphkeep at {where} are missing or old, and this role may not make '
            f'them: {e.args[0]}. Let a role that may (GRANT CREATE ON SCHEMA …) open a store there '
            f'once, then run: {grants(prefix)}'
        ) from e
    except asyncpg.SyntaxOrAccessError as e:
        raise SchemaError(
            f'The tables of graphkeep at {where} cannot be made: {e.args[0]}. Nothing was changed. '
            'Where another program has tables of these names, choose another table_prefix.'
        ) from e


async def _version(
    connection: Connection, sql: Mapping[str, str], *, where: str, prefix: str, newest: int
) -> int:
    """The version of the tables; 0 if there are none."""
    if not await connection.fetchval(sql['find_meta']):
        return 0
    try:
        value = await connection.fetchval(sql['select_version'])
    except _NO_RIGHT as e:
        raise SchemaError(
            f'The tables of graphkeep at {where} are there, and this role may not read them: '
            f'{e.args[0]}. Run: {grants(prefix)}'
        ) from e
    except asyncpg.UndefinedColumnError:
        value = None
    if not isinstance(value, str) or not (value.isascii() and value.isdecimal()):
        raise SchemaError(
            f'{prefix}_meta at {where} is not a table of graphkeep. Choose another table_prefix.'
        )
    if int(value) > newest:
        raise SchemaError(
            f'The tables at {where} have schema version {value}; this graphkeep knows up to '
            f'{newest}. Upgrade graphkeep here. Nothing was changed.'
        )
    return int(value)


def _check_server(connection: Connection, where: str) -> None:
    version = connection.get_server_version()[0]
    if version < _OLDEST:
        raise SchemaError(f'{where} is PostgreSQL {version}; graphkeep needs {_OLDEST} or newer.')
    encoding = str(connection.get_settings().server_encoding)
    if encoding != 'UTF8':
        raise SchemaError(
            f'The database at {where} has the encoding {encoding}, which cannot hold every text. '
            "Create one with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
