"""What one run of a step sees, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from ..tasks import Task
from .state import Copy, StateKeeper

__all__ = ('Completion', 'StepState')


class StepState:
    """What one step sees as `ctx.state`: nothing is made before it asks."""

    __slots__ = ('_alone', '_keeper', 'copy', 'touched')

    def __init__(self, keeper: StateKeeper, *, alone: bool) -> None:
        self._keeper = keeper
        self._alone = alone
        self.copy: Copy | None = None
        self.touched = False

    def __call__(self) -> Any:
        """The state, made at the first call."""
        self.touched = True
        if self._alone:
            return self._keeper.live
        if self.copy is None:
            self.copy = self._keeper.copy()
        return self.copy.value


@dataclass(slots=True, kw_only=True)
class Completion:
    """The end of a step, or one item of a stream."""

    task: Task
    state: StepState
    value: Any = None
    error: BaseException | None = None
    started_at: datetime | None = None
    clock: float = 0.0
    duration: float | None = None
    item: int | None = None
    """Of an item: which of the stream's it is."""
    settled: asyncio.Future[None] | None = None
    """Of an item: the stream waits for it."""
    streamed: bool = False
    """The step was a stream, and its items have been sent on."""

    def begins(self) -> None:
        """The step starts to run."""
        self.started_at, self.clock = datetime.now(tz=UTC), perf_counter()

    def ends(self) -> None:
        """The step has run."""
        self.duration = perf_counter() - self.clock
