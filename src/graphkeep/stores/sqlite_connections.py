"""The connections of a SQLite store: the modes in force, the schema, transactions, checkpoints."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from ..errors import SchemaError, StoreError
from .sqlite_file import BUSY, SQLiteFile
from .statements import migrations

__all__ = ('Reader', 'Writer')

logger = logging.getLogger('graphkeep')

_CHECKPOINT = 4_000_000
"""Bytes of WAL after which they are written back to the file: SQLite's own measure, 1,000 pages."""
_PAGE = 8192
"""Bytes of a page of a new file. Messages of about a kilobyte leave a fifth of SQLite's usual pages
of 4,096 bytes empty, and half of that of these."""
_PER_COMMIT = 4 * _PAGE
"""What a commit writes beside its payload: whole pages, most of them the same ones again."""


class Reader:
    """A connection that reads. Its own, so that a long listing holds up no commit."""

    def __init__(self, file: SQLiteFile) -> None:
        with file.explaining():
            self.connection = file.connect()
            try:
                self.connection.execute('PRAGMA query_only = ON').close()
            except BaseException:
                self.connection.close()
                raise

    @contextmanager
    def snapshot(self) -> Generator[sqlite3.Connection]:
        """Around several reads: they see the file at one moment."""
        self.connection.execute('BEGIN')
        try:
            yield self.connection
        finally:
            if self.connection.in_transaction:
                self.connection.execute('ROLLBACK')

    def tidy(self) -> None:
        """Nothing to do: a reader leaves nothing behind."""

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Writer:
    """The connection that writes, and the one that writes the WAL back to the file.

    SQLite 3.7.0 to 3.51.2 can lose a commit when a checkpoint meets a commit that starts the WAL
    over (sqlite.org/wal.html, "the WAL-reset bug"). So SQLite's own checkpoints are off, and ours
    are made by a second connection while the first holds the write lock: no commit can meet them,
    of whichever thread or process.
    """

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._written = 0
        with file.explaining():
            file.check_place()
            self.connection = file.connect()
            try:
                self._check_version()
                self._check_modes()
                self._migrate()
                self._checkpointer = file.connect()
            except BaseException:
                self.connection.close()
                raise
        # What a killed process left in the WAL counts too.
        with suppress(OSError):
            self._written += Path(f'{file.path}-wal').stat().st_size

    @contextmanager
    def transaction(self, *, size: int = 0) -> Generator[sqlite3.Connection]:
        """One write transaction, durable when this returns; after an exception nothing of it is.

        Args:
            size: Bytes of the payloads that are written.
        """
        connection = self.connection
        # Never deferred: a transaction that reads first and then wants to write fails at once when
        # another process has written in between.
        connection.execute('BEGIN IMMEDIATE')
        try:
            yield connection
            connection.execute('COMMIT')
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            if connection.in_transaction:
                connection.execute('ROLLBACK')
            raise
        self._written += size + _PER_COMMIT

    def tidy(self) -> None:
        """Write the WAL back, if it has grown enough."""
        if self._written >= _CHECKPOINT:
            self._checkpoint()

    def close(self) -> None:
        """Close the connections. The last of all processes writes the WAL back and removes it."""
        if self._written:
            self._checkpoint()
        self._checkpointer.close()
        self.connection.close()

    def _checkpoint(self) -> None:
        try:
            self.connection.execute('BEGIN IMMEDIATE')
            try:
                self._checkpointer.execute('PRAGMA wal_checkpoint(PASSIVE)').fetchall()
            finally:
                self.connection.execute('ROLLBACK')
        except sqlite3.Error as e:
            # Every commit is safe in the WAL; the next checkpoint takes them along.
            logger.debug('%s', self._file.explain(e))
        self._written = 0

    def _check_version(self) -> int:
        """The schema version in the file, 0 for none. Raises `SchemaError` for a newer one."""
        statements, prefix = self._file.statements, self._file.prefix
        known = max(migrations('sqlite', prefix=prefix))
        if not self.connection.execute(statements['find_meta']).fetchone()[0]:
            return 0
        try:
            row = self.connection.execute(statements['select_version']).fetchone()
            version = int(row[0])
        except (sqlite3.OperationalError, TypeError, ValueError) as e:
            raise SchemaError(
                f'the table {prefix}_meta in {str(self._file.path)!r} was not made by graphkeep: '
                'choose another table_prefix'
            ) from e
        if version > known:
            raise SchemaError(
                f'{str(self._file.path)!r} has schema version {version}; this graphkeep knows '
                f'versions up to {known}. Upgrade graphkeep here. The file was left as it is.'
            )
        return version

    def _migrate(self) -> None:
        """Bring the tables to our version. Of processes that open at once, one does it."""
        steps = migrations('sqlite', prefix=self._file.prefix)
        newest = max(steps)
        if self._check_version() == newest:
            return
        path, prefix = str(self._file.path), self._file.prefix
        try:
            with self.transaction() as connection:
                done = self._check_version()
                for version, statements in steps.items():
                    if version > done:
                        for statement in statements:
                            connection.execute(statement)
                stored = {'version': str(newest)}
                connection.execute(self._file.statements['store_version'], stored)
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                raise SchemaError(
                    f'{path!r} has no tables of graphkeep, or older ones, and this process has no '
                    'right to write it: open it once as someone who has'
                ) from e
            if e.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise SchemaError(
                    f'the tables {prefix}_… cannot be made in {path!r}: {e}. If they are of '
                    'another program, choose another table_prefix'
                ) from e
            raise

    def _check_modes(self) -> None:
        """See that the modes are in force: SQLite may keep others without a word."""
        connection = self.connection
        # Of a file that is there already it changes nothing.
        connection.execute(f'PRAGMA page_size = {_PAGE}').close()
        mode = _value(connection, 'PRAGMA journal_mode')
        if mode != 'wal' and (mode := self._to_wal()) != 'wal':
            raise StoreError(
                f'SQLite file {str(self._file.path)!r} stays in journal mode {mode!r}, graphkeep '
                'needs WAL: put it on a local file system'
            )
        if (found := _value(connection, 'PRAGMA encoding')) != 'UTF-8':
            raise StoreError(
                f'SQLite file {str(self._file.path)!r} has encoding {found}, graphkeep needs '
                'UTF-8: use another file'
            )
        wanted = {'FULL': 2, 'NORMAL': 1}[self._file.synchronous]
        if (found := _value(connection, 'PRAGMA synchronous')) != wanted:
            raise StoreError(
                f'SQLite file {str(self._file.path)!r} has synchronous={found}, not {wanted}'
            )

    def _to_wal(self) -> object:
        """Change the mode; gives the one that is in force then.

        SQLite itself does not wait for a lock here: of two who open a new file at once it refuses
        one, without a timeout.
        """
        deadline = monotonic() + BUSY
        while True:
            try:
                return _value(self.connection, 'PRAGMA journal_mode = WAL')
            except sqlite3.OperationalError as e:
                code = e.sqlite_errorcode & 0xFF
                if code == sqlite3.SQLITE_READONLY:
                    # A file that can only be read can be read in any mode.
                    return 'wal'
                if code != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                    raise
            sleep(0.001)


def _value(connection: sqlite3.Connection, pragma: str) -> object:
    with closing(connection.execute(pragma)) as cursor:
        return cursor.fetchone()[0]
