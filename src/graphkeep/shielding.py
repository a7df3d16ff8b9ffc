"""Waiting for a write to its end, whatever happens to the one who waits.

`asyncio.shield` alone does not survive a second cancel, nor an anyio scope, which cancels again at
every turn of the loop: the write goes on, but nobody learns how it ended. So the wait itself is a
loop around the inner task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from .errors import StoreUnavailableError

__all__ = ('Ending', 'ending_of', 'to_its_end', 'unfinished')

T = TypeVar('T')

_running: set[asyncio.Future[Any]] = set()


class Ending(Generic[T]):
    """How an awaited write ended, and whether its waiter was cancelled meanwhile."""

    __slots__ = ('cancelled', 'error', 'value')

    def __init__(
        self,
        *,
        value: T | None = None,
        error: BaseException | None = None,
        cancelled: BaseException | None = None,
    ) -> None:
        self.value = value
        self.error = error
        self.cancelled = cancelled
        """The cancellation that arrived while waiting. Who holds this must raise it when it has
        cleaned up.
        """

    def unwrap(self) -> T:
        """The value. Raises the cancellation first, else the write's own error."""
        if self.cancelled is not None:
            raise self.cancelled
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


async def to_its_end(write: Coroutine[Any, Any, T], *, bound: float) -> Ending[T]:
    """Run `write` in a task of its own and wait until it has ended.

    Args:
        write: What to run. It is never cancelled by a cancellation of the caller.
        bound: After the first cancellation, wait at most this many seconds more. The write then
            goes on without us.

    Returns:
        How it ended. This never raises.
    """
    task = asyncio.ensure_future(write)
    # The loop itself has only a weak reference to a task, and we may leave before it ends.
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await ending_of(task, bound=bound)


async def ending_of(future: asyncio.Future[T], *, bound: float) -> Ending[T]:
    """How `future` ended; as `to_its_end`, for what runs already."""
    cancelled: asyncio.CancelledError | None = None
    deadline: float | None = None
    loop = asyncio.get_running_loop()
    while not future.done():
        timeout = None if deadline is None else deadline - loop.time()
        if timeout is not None and timeout <= 0:
            return Ending(error=unfinished(bound), cancelled=cancelled)
        try:
            await asyncio.wait((future,), timeout=timeout)
        except asyncio.CancelledError as e:
            cancelled = e
            if deadline is None:
                deadline = loop.time() + bound
    if future.cancelled():
        # The loop is going down and took the write's task with it.
        return Ending(error=asyncio.CancelledError(), cancelled=cancelled)
    error = future.exception()
    if error is not None:
        return Ending(error=error, cancelled=cancelled)
    return Ending(value=future.result(), cancelled=cancelled)


def unfinished(bound: float) -> StoreUnavailableError:
    """The error of a write that goes on without its waiter: after it nothing more is tried."""
    return StoreUnavailableError(
        f'a write had not ended {bound} s after its waiter was cancelled: the database does not '
        'answer. Whether it was written is not known.'
    )
