"""Group commit: the commits of all runs of a process share the database's transactions.

While one write is in flight, further commits gather and go together in the next. A commit that was
handed in is written whether or not its waiter is still there: it may already be on the wire.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from .runs import Commit
from .shielding import Ending, unfinished

__all__ = ('CommitQueue',)

Write = Callable[[Sequence[Commit]], Awaitable[Sequence[BaseException | None]]]
"""Writes a batch; gives an error or `None` for each commit, in order."""


class CommitQueue:
    """Hands commits to a writer in batches, in the order they came."""

    def __init__(
        self, write: Write, *, max_commits: int, max_bytes: int, parallel: int, bound: float
    ) -> None:
        """Make a queue; nothing runs until the first commit.

        Args:
            write: Writes one batch.
            max_commits: Most commits in a batch.
            max_bytes: Most payload bytes in a batch, beyond its first commit.
            parallel: Most batches in flight at once. Commits of one run never overlap: its journal
                waits for each.
            bound: Seconds that a cancelled waiter still waits for its commit.
        """
        self._write = write
        self._max_commits = max_commits
        self._max_bytes = max_bytes
        self._parallel = parallel
        self._bound = bound
        self._waiting: deque[_Waiting] = deque()
        self._writers: set[asyncio.Task[None]] = set()

    async def put(self, commit: Commit) -> Ending[None]:
        """Write `commit`; returns how that ended, and never raises.

        A waiter that is cancelled stays until its commit has ended, for at most `bound` seconds.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(commit, loop.create_future())
        self._waiting.append(waiting)
        if len(self._writers) < self._parallel:
            writer = loop.create_task(self._drain(), name='graphkeep-commits')
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await waiting.ending(bound=self._bound)

    async def flush(self) -> None:
        """Wait until everything that was handed in has been written or refused."""
        while self._writers:
            await asyncio.wait(tuple(self._writers))

    async def _drain(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                batch = self._take()
                try:
                    results = await self._write([waiting.commit for waiting in batch])
                    if len(results) != len(batch):
                        raise RuntimeError(
                            f'a store gave {len(results)} results for {len(batch)} commits'
                        )
                except Exception as e:  # noqa: BLE001 - every waiter gets it
                    results = [e] * len(batch)
                for waiting, error in zip(batch, _apart(results), strict=True):
                    waiting.end(error)
                batch = []
        except BaseException:
            # The loop is going down and took this task with it: nobody may wait for ever.
            for waiting in (*batch, *self._waiting):
                waiting.end(asyncio.CancelledError())
            self._waiting.clear()
            raise
        finally:
            # Here, not when the loop gets to it: a commit that comes next must find no writer.
            self._writers.discard(cast('asyncio.Task[None]', asyncio.current_task()))

    def _take(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        size = len(batch[0].commit.draft.data)
        while self._waiting and len(batch) < self._max_commits:
            size += len(self._waiting[0].commit.draft.data)
            if size > self._max_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch


def _apart(errors: Sequence[BaseException | None]) -> list[BaseException | None]:
    """The errors, each an object of its own: whoever raises one adds to its traceback."""
    seen: set[int] = set()
    apart: list[BaseException | None] = []
    for error in errors:
        if error is not None and id(error) in seen:
            other = copy.copy(error)
            other.__cause__ = error.__cause__
            error = other
        elif error is not None:
            seen.add(id(error))
        apart.append(error)
    return apart


class _Waiting:
    """A commit and the one who waits for it.

    It does not wait on a future that a cancellation would take with it: the outcome is kept here,
    and a waiter that is cancelled waits again.
    """

    __slots__ = ('_ended', '_error', '_waiter', 'commit')

    def __init__(self, commit: Commit, waiter: asyncio.Future[None]) -> None:
        self.commit = commit
        self._waiter = waiter
        self._ended = False
        self._error: BaseException | None = None

    def end(self, error: BaseException | None) -> None:
        """The commit has been written or refused."""
        if not self._ended:
            self._ended, self._error = True, error
            if not self._waiter.done():
                self._waiter.set_result(None)

    async def ending(self, *, bound: float) -> Ending[None]:
        """How it ended, for its one waiter."""
        cancelled: asyncio.CancelledError | None = None
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while not self._ended:
            try:
                if deadline is None:
                    await self._waiter
                elif loop.time() >= deadline:
                    return Ending(error=unfinished(bound), cancelled=cancelled)
                else:
                    await asyncio.wait((self._waiter,), timeout=deadline - loop.time())
            except asyncio.CancelledError as e:
                cancelled = e
                deadline = loop.time() + bound if deadline is None else deadline
                if self._waiter.done() and not self._ended:
                    self._waiter = loop.create_future()
        return Ending(error=self._error, cancelled=cancelled)
