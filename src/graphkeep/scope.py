"""What a step can know of itself: which task of which run it is, and on which attempt."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from types import coroutine
from typing import Any, TypeVar

from .journal import Journal

__all__ = ('CurrentTask', 'current_task', 'in_context', 'task_scope')

T = TypeVar('T')


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentTask:
    """The task that is running."""

    run_id: str
    """The run it belongs to."""
    key: str
    """The same on every attempt, and no other task's: an idempotency key for the outside world."""
    attempt: int
    """1 for the first, one more for each time the run was claimed with this task pending."""
    node_id: str
    """The node or step."""


_current: ContextVar[CurrentTask | None] = ContextVar('graphkeep_task', default=None)


def current_task() -> CurrentTask:
    """The task that is running here.

    Raises:
        RuntimeError: Not called from a step or node of a kept run.
    """
    task = _current.get()
    if task is None:
        raise RuntimeError('current_task() was called outside of a step or node of a kept run')
    return task


@contextmanager
def task_scope(journal: Journal, task: str, node_id: str, *, born: int) -> Generator[None]:
    """Around the run of a task."""
    current = CurrentTask(
        run_id=journal.run_id,
        key=f'{journal.run_id}/{journal.first_epoch}/{task}',
        attempt=journal.attempt(born),
        node_id=node_id,
    )
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)


@coroutine
def in_context(context: Context, run: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `run` in this asyncio task, but with context variables of its own."""
    try:
        waits_for = context.run(run.send, None)
        while True:
            try:
                sent = yield waits_for
            except BaseException as e:  # noqa: BLE001 - handed on
                waits_for = context.run(run.throw, e)
            else:
                waits_for = context.run(run.send, sent)
    except StopIteration as done:
        return done.value
