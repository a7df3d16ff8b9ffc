"""A store whose messages get lost, and which remembers the calls that were made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from graphkeep.errors import (
    StoreUnavailableError,
)
from graphkeep.runs import (
    Claim,
    Claimed,
    ClaimRequest,
    Commit,
    Draft,
    NewRun,
    Run,
    RunQuery,
    Snapshot,
)
from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import Worker

__all__ = ('Wire', 'down', 'wired')

T = TypeVar('T')


class Wire(MemoryStore):
    """A memory store behind a bad wire, which remembers the calls that went over it."""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        super().__init__(name, **{'retry': 5.0, **options})
        self.calls: list[tuple[str, Any]] = []
        self.before: list[BaseException | None] = []
        """Raised by the next calls instead of doing them."""
        self.after: list[BaseException | None] = []
        """Raised by the next calls that were done, instead of their reply."""
        self.opening = asyncio.Event()
        self.opening.set()

    def called(self, hook: str) -> list[Any]:
        return [what for name, what in self.calls if name == hook]

    async def _over(self, hook: str, what: Any, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((hook, what))
        await asyncio.sleep(0)
        if self.before and (error := self.before.pop(0)) is not None:
            raise error
        reply = await call()
        if self.after and (error := self.after.pop(0)) is not None:
            raise error
        return reply

    async def _open(self) -> None:
        await self._over('open', None, self.opening.wait)

    async def _close(self) -> None:
        self.calls.append(('close', None))

    async def _create(self, run: NewRun, draft: Draft) -> Run:
        return await self._over('create', run, lambda: MemoryStore._create(self, run, draft))

    async def _claim(self, request: ClaimRequest) -> Claimed:
        return await self._over('claim', request, lambda: MemoryStore._claim(self, request))

    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        return await self._over('append', commits, lambda: MemoryStore._append(self, commits))

    async def _release(self, claim: Claim) -> None:
        return await self._over('release', claim, lambda: MemoryStore._release(self, claim))

    async def _header(self, run_id: str) -> Run | None:
        return await self._over('header', run_id, lambda: MemoryStore._header(self, run_id))

    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        return await self._over(
            'history', limit, lambda: MemoryStore._history(self, run_id, after, limit)
        )

    async def _find(self, query: RunQuery) -> Sequence[Run]:
        return await self._over('find', query, lambda: MemoryStore._find(self, query))

    async def _cancel(self, run_id: str) -> Run:
        return await self._over('cancel', run_id, lambda: MemoryStore._cancel(self, run_id))

    async def _delete(self, run_id: str, force: bool) -> None:
        return await self._over('delete', run_id, lambda: MemoryStore._delete(self, run_id, force))


def down() -> StoreUnavailableError:
    return StoreUnavailableError('the wire was cut')


@asynccontextmanager
async def wired(**options: Any) -> AsyncIterator[tuple[Wire, Worker]]:
    """An open store, and a run in it that a worker of another machine holds."""
    async with Wire(**options) as store:
        worker = Worker(store)
        await worker.create()
        store.calls.clear()
        yield store, worker
