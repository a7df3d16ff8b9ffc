"""A SQLite file: where it is, how it is opened, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ..errors import StoreError, StoreUnavailableError, StoreWriteError
from .statements import load

__all__ = ('BUSY', 'SQLiteFile', 'Synchronous')

Synchronous = Literal['FULL', 'NORMAL']

_OLDEST = (3, 35, 0)
BUSY = 1.0
"""Seconds that SQLite waits for a lock before the port's retries take over: a store that is closed
meanwhile should not wait for longer."""
_IOERR_WRITING = frozenset(
    f'SQLITE_IOERR_{what}'
    for what in ('WRITE', 'FSYNC', 'DIR_FSYNC', 'TRUNCATE', 'SHMOPEN', 'SHMSIZE', 'SHMMAP')
)


_TEXT = partial(str, encoding='utf-8', errors='backslashreplace')


@dataclass(frozen=True, kw_only=True, slots=True)
class SQLiteFile:
    """Which file, and how it is to be opened."""

    path: Path
    """Absolute: the process may change its directory later."""
    synchronous: Synchronous
    prefix: str

    @property
    def statements(self) -> Mapping[str, str]:
        """Our statements, with the names of our tables."""
        runs = load('sqlite_runs.sql', prefix=self.prefix)
        return {**runs, **load('sqlite_conversations.sql', prefix=self.prefix)}

    def connect(self) -> sqlite3.Connection:
        """A connection without implicit transactions that leaves the WAL alone."""
        connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
        # Text that is no UTF-8 must reach those who name the run: here it would stop every reader.
        connection.text_factory = _TEXT
        try:
            connection.execute('PRAGMA wal_autocheckpoint = 0')
            # Of every connection: whichever is closed last writes the WAL back.
            connection.execute(f'PRAGMA synchronous = {self.synchronous}')
            if self.synchronous == 'FULL':
                # macOS: a plain fsync leaves the data in the drive's cache. No effect elsewhere.
                connection.execute('PRAGMA fullfsync = ON')
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Around whatever uses SQLite: raises our errors in place of SQLite's."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as e:
            raise self.explain(e) from e

    def explain(self, error: sqlite3.Error | OverflowError) -> StoreError:
        """What an error of SQLite means for this file, and what to do.

        The codes are those of sqlite.org/rescode.html. Only what may pass by itself is
        `StoreUnavailableError`, since such calls are made again.
        """
        name = getattr(error, 'sqlite_errorname', None) or ''
        said = f'SQLite file {str(self.path)!r}: {error}' + (f' ({name})' if name else '')
        if isinstance(error, (OverflowError, sqlite3.DataError)):
            return StoreWriteError(
                f'{said}. A document is too big for SQLite. Nothing was written.'
            )
        if name.startswith(('SQLITE_BUSY', 'SQLITE_LOCKED', 'SQLITE_PROTOCOL')):
            return StoreUnavailableError(
                f'{said}. Another process holds its lock: end the transaction there.'
            )
        if name.startswith('SQLITE_FULL'):
            return StoreWriteError(f'{said}. Nothing was written. Make room on the disk.')
        if name.startswith(('SQLITE_READONLY', 'SQLITE_PERM', 'SQLITE_AUTH')):
            return StoreWriteError(
                f'{said}. Nothing was written. This process needs the right to write the file and '
                'its directory, where SQLite keeps a -wal and a -shm file beside it.'
            )
        if name.startswith('SQLITE_CANTOPEN'):
            return self._explain_cantopen(said)
        if name in _IOERR_WRITING:
            return StoreWriteError(
                f'{said}. Nothing was written. Look at the disk, and at the quota and the limits '
                'of this process.'
            )
        if name.startswith('SQLITE_IOERR'):
            return StoreUnavailableError(f'{said}. Look at the disk, or at the network behind it.')
        if name.startswith('SQLITE_NOTADB'):
            return StoreError(f'{said}. It was left as it is: give the store another path.')
        if name.startswith('SQLITE_CORRUPT'):
            return StoreError(
                f'{said}. Part of the file is damaged: stop its users, keep a copy of it with its '
                '-wal file, and restore a backup, or save what is there with "sqlite3 FILE '
                '.recover".'
            )
        return StoreError(f'{said}.')

    def _explain_cantopen(self, said: str) -> StoreError:
        directory = self.path.parent
        there = self.path.exists()
        if not os.access(self.path if there else directory, os.R_OK | (0 if there else os.W_OK)):
            return StoreWriteError(
                f'{said}. This process has no right to {"read" if there else "create"} it.'
            )
        if not os.access(directory, os.W_OK):
            return StoreWriteError(
                f'{said}. Its directory is read-only, and SQLite needs to create a -shm file there '
                'even for reading. Copy it, with its -wal file, to a directory that can be written.'
            )
        return StoreUnavailableError(f'{said}. This process may have too many files open.')

    def check_place(self) -> None:
        """Refuse what SQLite would only call "unable to open database file"."""
        if sqlite3.sqlite_version_info < _OLDEST:
            oldest = '.'.join(map(str, _OLDEST))
            raise StoreError(
                f'SQLite {sqlite3.sqlite_version} is too old: graphkeep needs {oldest} or newer'
            )
        try:
            is_directory, has_parent = self.path.is_dir(), self.path.parent.is_dir()
        except OSError as e:
            raise StoreWriteError(
                f'{str(self.path)!r} cannot be reached: {e.strerror}. Give this user the right to '
                'enter its directory, or name another file'
            ) from e
        if is_directory:
            raise StoreWriteError(f'{str(self.path)!r} is a directory: name a file in it')
        if not has_parent:
            raise StoreWriteError(
                f'the directory {str(self.path.parent)!r} does not exist: create it, or correct '
                'the path (sqlite:///runs.db is relative, sqlite:////var/lib/runs.db absolute)'
            )
