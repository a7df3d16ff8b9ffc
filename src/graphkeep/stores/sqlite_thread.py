"""A thread that owns what belongs to one thread, and does what an event loop asks of it.

It never outlives its owner: it ends when it is stopped, when its owner is collected, and before the
interpreter goes down, each time after the jobs that were handed in.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StoreClosedError

__all__ = ('Owned', 'OwningThread')

_EXIT_WAIT = 10.0
"""Seconds that the end of the interpreter waits for the jobs of a thread."""


class Owned(Protocol):
    """What a thread may own. Every method is called in that thread."""

    def tidy(self) -> None:
        """Called after each job, when its caller has been answered. Must not raise."""
        ...

    def close(self) -> None:
        """Called once, as the last."""
        ...


OwnedT = TypeVar('OwnedT', bound=Owned)
T = TypeVar('T')

_Job = tuple[Callable[[OwnedT], Any] | None, 'asyncio.Future[Any] | None']

_running: set[OwningThread[Any]] = set()


class OwningThread(Generic[OwnedT]):
    """Runs jobs one after another, in the order they were handed in.

    The thread holds this object, so nothing here may hold the store: a store that nobody closed is
    collected, and ends the thread through `abandon`.
    """

    def __init__(self, make: Callable[[], OwnedT], *, name: str) -> None:
        """Describe a thread; `start` starts it.

        Args:
            make: Makes what the thread owns. Called in the thread.
            name: The name of the thread.
        """
        self._make = make
        self._jobs: SimpleQueue[_Job[OwnedT]] = SimpleQueue()
        self._lock = threading.Lock()
        self._ending = False
        self._pid = os.getpid()
        # A daemon, since the interpreter waits for other threads before it calls `_end_all`.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    async def start(self) -> None:
        """Start the thread and wait until it has what it owns. Raises what `make` raises.

        If this is cancelled, the thread closes what it may have made, and ends.
        """
        made = asyncio.get_running_loop().create_future()
        self._jobs.put((None, made))
        _running.add(self)
        try:
            self._thread.start()
        except RuntimeError:
            _running.discard(self)
            raise
        try:
            await made
        except BaseException:
            self.abandon()
            raise

    async def run(self, job: Callable[[OwnedT], T]) -> T:
        """Have `job` done. Once handed in it is done, also when the caller is cancelled.

        Raises:
            StoreClosedError: The thread has ended, or is about to.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(job, answer)
        return await answer

    async def stop(self) -> None:
        """End the thread after what was handed in, and wait until it has ended."""
        ended = asyncio.get_running_loop().create_future()
        try:
            self._put(None, ended)
        except StoreClosedError:
            return
        await ended
        # It has nothing left to do but to return.
        self._thread.join()

    def abandon(self) -> None:
        """End the thread after what was handed in, without waiting. Can be called from anywhere."""
        if self._pid != os.getpid():
            # After fork() the thread is not here, and its lock may be held for ever.
            return
        with self._lock:
            self._ending = True
            self._jobs.put((None, None))

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, from another thread."""
        if self._pid == os.getpid():
            self._thread.join(timeout)

    def _put(self, job: Callable[[OwnedT], Any] | None, answer: asyncio.Future[Any] | None) -> None:
        with self._lock:
            if self._ending:
                raise StoreClosedError('the store has been closed')
            self._ending = job is None
            self._jobs.put((job, answer))

    def _main(self) -> None:
        _, made = self._jobs.get()
        ended: asyncio.Future[Any] | None = None
        try:
            try:
                owned = self._make()
            except BaseException as e:  # noqa: BLE001
                _answer(made, None, e)
                return
            _answer(made, None, None)
            made = None
            try:
                ended = self._work(owned)
            finally:
                owned.close()
        finally:
            _running.discard(self)
            _answer(ended, None, None)

    def _work(self, owned: OwnedT) -> asyncio.Future[Any] | None:
        """Do jobs until the end is asked for; gives the future of who waits for that."""
        while True:
            job, answer = self._jobs.get()
            if job is None:
                return answer
            try:
                result = job(owned)
            except BaseException as e:  # noqa: BLE001
                _answer(answer, None, e)
            else:
                _answer(answer, result, None)
            # A job may hold the last reference to the store: waiting for the next one must not.
            job = answer = result = None
            owned.tidy()


def _answer(answer: asyncio.Future[Any] | None, result: Any, error: BaseException | None) -> None:
    if answer is None:
        return
    try:
        answer.get_loop().call_soon_threadsafe(_settle, answer, result, error)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        pass


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _end_all() -> None:
    threads = tuple(_running)
    for thread in threads:
        thread.abandon()
    for thread in threads:
        thread.join(_EXIT_WAIT)


atexit.register(_end_all)
