"""A bound on how long a command takes, with one timer for all commands.

`asyncio.timeout` sets and clears a timer each time, which takes longer than preparing a commit.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ('Deadlines',)

_LOOKS = 8
"""How often in the time that a command may take the timer looks."""


class Deadlines:
    """Cancels what takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: set[_Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def one(self) -> _Deadline:
        """Around a command: `TimeoutError` when it takes longer than it may, or soon after."""
        return _Deadline(self)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self, deadline: _Deadline) -> float:
        """Look after a command from now on. Gives when its time is over."""
        loop = asyncio.get_running_loop()
        self._running.add(deadline)
        if self._timer is None:
            self._timer = loop.call_later(self._seconds / _LOOKS, self._look, loop)
        return loop.time() + self._seconds

    def end(self, deadline: _Deadline) -> None:
        """Do not look after it any more."""
        self._running.discard(deadline)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for deadline in tuple(self._running):
            if deadline.until <= now:
                self._running.discard(deadline)
                deadline.expire()
        if self._running:
            self._timer = loop.call_later(self._seconds / _LOOKS, self._look, loop)


class _Deadline:
    """The bound on one command: a cut-down `asyncio.timeout`."""

    __slots__ = ('_all', '_cancelling', '_expired', '_task', 'until')

    def __init__(self, deadlines: Deadlines) -> None:
        self._all = deadlines
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self.until = self._all.begin(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._all.end(self)
        left = self._task.uncancel() if self._expired else self._task.cancelling()
        # A cancellation by somebody else goes on, whether or not the time was over too.
        by_others = left > self._cancelling
        if exc_type is asyncio.CancelledError:
            if self._expired and not by_others:
                raise TimeoutError('it did not answer in time') from exc
        elif by_others:
            # Before Python 3.12, `asyncio.wait_for` may lose one: redis-py waits with it where a
            # client has a socket_timeout.
            raise asyncio.CancelledError from exc

    def expire(self) -> None:
        """The time is over."""
        self._expired = True
        self._task.cancel()
