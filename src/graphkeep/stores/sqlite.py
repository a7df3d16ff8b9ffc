"""Runs in a SQLite file, which several processes of one machine may share."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args
from urllib.parse import parse_qsl, unquote_to_bytes

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from ..errors import StoreClosedError
from ..requests import Request, RequestQuery
from ..runs import (
    Claim,
    Claimed,
    ClaimRequest,
    Commit,
    Draft,
    NewRun,
    Run,
    RunQuery,
    Snapshot,
    SnapshotData,
)
from ..store import Store
from ..urls import safe_url
from .sqlite_connections import Reader, Writer
from .sqlite_conversations import SQLiteConversations
from .sqlite_file import SQLiteFile, Synchronous
from .sqlite_requests import SQLiteRequests
from .sqlite_runs import SQLiteRuns
from .sqlite_thread import OwningThread
from .statements import check_prefix

__all__ = ('SQLiteStore',)

T = TypeVar('T')

_URL_NUMBERS = ('lease', 'heartbeat', 'retry')
_URL_OPTIONS = (*_URL_NUMBERS, 'history', 'synchronous', 'table_prefix')


class SQLiteStore(Store):
    """A store in a SQLite file, through the standard library.

    One thread writes and one reads; commits that come together share a transaction. Several stores,
    in one process or in many, may use the same file. It has to be on a local file system: SQLite's
    locks and its shared memory do not work over a network.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = 'FULL',
        table_prefix: str = 'graphkeep',
        lease: float = 30.0,
        heartbeat: float | None = None,
        history: Literal['all', 'latest'] = 'all',
        retry: float = 10.0,
    ) -> None:
        """Describe a store; nothing is opened.

        Args:
            path: The file. It is created if it does not exist; its directory must exist.
            synchronous: `FULL` syncs every commit to the disk before it is acknowledged. `NORMAL`
                is faster: a power loss may take the last commits back, never the file as a whole.
            table_prefix: What the names of the tables begin with, for a file shared with others.
            lease: As for every store.
            heartbeat: As for every store.
            history: As for every store.
            retry: As for every store.

        Raises:
            ValueError: An option is not what it may be, or the path names no file.
        """
        super().__init__(lease=lease, heartbeat=heartbeat, history=history, retry=retry)
        if synchronous not in get_args(Synchronous):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', got {synchronous!r}")
        check_prefix(table_prefix)
        if table_prefix.startswith('sqlite_'):
            raise ValueError(f'table_prefix {table_prefix!r}: SQLite keeps sqlite_ to itself')
        self._file = SQLiteFile(path=_absolute(path), synchronous=synchronous, prefix=table_prefix)
        self._runs = SQLiteRuns(self._file)
        self._asked = SQLiteRequests(self._file)
        self._talks = SQLiteConversations(self._file)
        self._writer: OwningThread[Writer] | None = None
        self._reader: OwningThread[Reader] | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Describe the store that a URL names.

        Args:
            url: `sqlite:///runs.db` (relative), `sqlite:////var/lib/runs.db` (absolute) or
                `sqlite:///C:/runs.db`; `?`, `%` and what is not UTF-8 are percent-encoded. Options
                may follow: `sqlite:///runs.db?synchronous=NORMAL&lease=60`.
            **options: As for the class; they win over those of the URL.

        Raises:
            ValueError: The URL names no file, or an option that there is not.
        """
        location, _, query = url.partition('?')
        scheme, _, path = location.partition(':')
        if scheme.lower() != 'sqlite' or not path.startswith('///'):
            hint = ' For runs in memory use memory://.' if path in ('', '//') else ''
            raise ValueError(
                f'{safe_url(url)!r} names no SQLite file: write sqlite:///runs.db (relative) or '
                f'sqlite:////var/lib/runs.db (absolute).{hint}'
            )
        found: dict[str, Any] = {}
        for key, value in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
            if key not in _URL_OPTIONS or key in found:
                raise ValueError(
                    f'{safe_url(url)!r} has {"twice" if key in found else "no"} option {key!r}: '
                    f'there are {", ".join(_URL_OPTIONS)}'
                )
            found[key] = _number(key, value, url) if key in _URL_NUMBERS else value
        return cls(os.fsdecode(unquote_to_bytes(path[3:])), **{**found, **options})

    def __repr__(self) -> str:
        return f'<SQLiteStore {str(self._file.path)!r}>'

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return self._file.path

    # --- opening, closing, and the way into the threads -------------------------------------------

    async def _open(self) -> None:
        writer = OwningThread(partial(Writer, self._file), name='graphkeep-sqlite-writer')
        reader = OwningThread(partial(Reader, self._file), name='graphkeep-sqlite-reader')
        await writer.start()
        try:
            await reader.start()
        except BaseException:
            writer.abandon()
            raise
        self._writer, self._reader = writer, reader
        for thread in (reader, writer):
            # Not at exit: the threads see to that themselves, and wait for what was handed in.
            weakref.finalize(self, thread.abandon).atexit = False

    async def _close(self) -> None:
        reader, writer = self._reader, self._writer
        self._reader = self._writer = None
        # The writer last: the last connection to a file writes the WAL back and removes it.
        try:
            if reader is not None:
                await reader.stop()
        finally:
            if writer is not None:
                await writer.stop()

    async def _write(self, job: Callable[[Writer], T]) -> T:
        if self._writer is None:
            raise StoreClosedError(f'{self!r} has been closed. Open a new one with open_store().')
        with self._file.explaining():
            return await self._writer.run(job)

    async def _look(self, job: Callable[[Reader], T]) -> T:
        if self._reader is None:
            raise StoreClosedError(f'{self!r} has been closed. Open a new one with open_store().')
        with self._file.explaining():
            return await self._reader.run(job)

    # --- hooks: each is one job of a thread -------------------------------------------------------

    async def _create(self, run: NewRun, draft: Draft) -> Run:
        return await self._write(lambda writer: self._runs.create(writer, run, draft))

    async def _claim(self, request: ClaimRequest) -> Claimed:
        return await self._write(lambda writer: self._runs.claim(writer, request))

    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        return await self._write(lambda writer: self._runs.append(writer, commits))

    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        return await self._write(lambda writer: self._runs.renew(writer, claims, ttl))

    async def _release(self, claim: Claim) -> None:
        await self._write(lambda writer: self._runs.release(writer, claim))

    async def _cancel(self, run_id: str) -> Run:
        return await self._write(lambda writer: self._runs.cancel(writer, run_id))

    async def _delete(self, run_id: str, force: bool) -> None:
        await self._write(lambda writer: self._runs.delete(writer, run_id, force=force))

    async def _header(self, run_id: str) -> Run | None:
        return await self._look(lambda reader: self._runs.header(reader, run_id))

    async def _read(self, run_id: str, at: int | None) -> tuple[Run, Sequence[SnapshotData]] | None:
        return await self._look(lambda reader: self._runs.read(reader, run_id, at))

    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        return await self._look(lambda reader: self._runs.history(reader, run_id, after, limit))

    async def _find(self, query: RunQuery) -> Sequence[Run]:
        return await self._look(lambda reader: self._runs.find(reader, query))

    async def _candidates(self, graphs: Sequence[str], limit: int) -> Sequence[Run]:
        return await self._look(lambda reader: self._runs.candidates(reader, graphs, limit))

    async def _requests(self, query: RequestQuery) -> Sequence[Request]:
        return await self._look(lambda reader: self._asked.find(reader, query))

    async def _answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        return await self._write(
            lambda writer: self._asked.answer(writer, run_id, request_id, answer, by)
        )

    async def _expire(self, run_id: str) -> None:
        await self._write(lambda writer: self._asked.expire(writer, run_id))

    async def _write_conversation(self, write: ConversationWrite) -> bool:
        return await self._write(lambda writer: self._talks.write(writer, write))

    async def _delete_conversation(self, conversation_id: str, revision: str) -> bool:
        return await self._write(
            lambda writer: self._talks.delete(writer, conversation_id, revision)
        )

    async def _conversations(self, query: ConversationQuery) -> Sequence[StoredConversation]:
        return await self._look(lambda reader: self._talks.find(reader, query))

    async def _entries(self, query: EntriesQuery) -> StoredEntries | None:
        return await self._look(lambda reader: self._talks.entries(reader, query))


def _absolute(path: str | os.PathLike[str]) -> Path:
    name = os.fsdecode(path)
    if name in ('', ':memory:'):
        raise ValueError(f'{name!r} names no file. For runs in memory use memory:// (MemoryStore)')
    if '\0' in name:
        raise ValueError(f'{name!r} holds a NUL character: no file can have this name')
    return Path(name).absolute()


def _number(key: str, text: str, url: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f'option {key!r} of {safe_url(url)!r} is a number of seconds, got {text!r}'
        )
    return value
