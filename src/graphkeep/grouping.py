"""Group commit: the commits of all runs of a process share the database's transactions.

While one write is in flight, further commits gather and go together in the next. A commit that was
handed in is written whether or not its waiter is still there: it may already be on the wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from .runs import Commit
from .shielding import Ending, ending_of

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
        self._waiting: deque[tuple[Commit, asyncio.Future[None]]] = deque()
        self._writers: set[asyncio.Task[None]] = set()

    async def put(self, commit: Commit) -> Ending[None]:
        """Write `commit`; returns how that ended, and never raises.

        A waiter that is cancelled stays until its commit has ended, for at most `bound` seconds.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.append((commit, written))
        if len(self._writers) < self._parallel:
            writer = loop.create_task(self._drain(), name='graphkeep-commits')
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await ending_of(written, bound=self._bound)

    async def flush(self) -> None:
        """Wait until everything that was handed in has been written or refused."""
        while self._writers:
            await asyncio.wait(tuple(self._writers))

    async def _drain(self) -> None:
        batch: list[tuple[Commit, asyncio.Future[None]]] = []
        try:
            while self._waiting:
                batch = self._take()
                try:
                    results = await self._write([commit for commit, _ in batch])
                    if len(results) != len(batch):
                        raise RuntimeError(
                            f'a store gave {len(results)} results for {len(batch)} commits'
                        )
                except Exception as e:  # noqa: BLE001 - every waiter gets it
                    results = [e] * len(batch)
                for (_, written), error in zip(batch, results, strict=True):
                    if written.done():
                        continue
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
                batch = []
        except BaseException:
            # The loop is going down and took this task with it: nobody may wait for ever.
            for _, written in (*batch, *self._waiting):
                written.cancel()
            self._waiting.clear()
            raise

    def _take(self) -> list[tuple[Commit, asyncio.Future[None]]]:
        batch = [self._waiting.popleft()]
        size = len(batch[0][0].draft.data)
        while self._waiting and len(batch) < self._max_commits:
            size += len(self._waiting[0][0].draft.data)
            if size > self._max_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch
