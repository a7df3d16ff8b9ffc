"""What one run of a step sees, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from ..pausing import Asking
from ..requests import NewRequest
from ..tasks import Task
from .state import Copy, Left, StateKeeper

__all__ = ('Completion', 'StepState')


class StepState:
    """What one step sees as `ctx.state`: nothing is made before it asks."""

    __slots__ = ('_copy', '_keeper', 'alone', 'left', 'touched')

    def __init__(self, keeper: StateKeeper, *, alone: bool) -> None:
        self._keeper = keeper
        self._copy: Copy | None = None
        self.alone = alone
        """It works on the live state."""
        self.touched = False
        """It has asked."""
        self.left: Left | None = None
        """What it has changed in a copy of its own, once it has ended."""

    def __call__(self) -> Any:
        """The state, made at the first call."""
        self.touched = True
        if self.alone:
            return self._keeper.live
        if self._copy is None:
            self._copy = self._keeper.copy()
        return self._copy.value

    def ends(self) -> None:
        """The step has ended: what it has changed is kept, its copy is not.

        Raises:
            LossyStateError: What it left would not come back.
        """
        if self._copy is not None:
            self.left, self._copy = self._keeper.left(self._copy), None


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
    asked: Mapping[str, NewRequest | None] = field(default_factory=dict[str, 'NewRequest | None'])
    """Of a step that has paused: what it waits for, by name; `None` for what is stored already."""
    used: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Of a step that has paused: what it was given."""

    @property
    def paused(self) -> bool:
        """The step waits, and has changed nothing."""
        return bool(self.asked)

    def begins(self) -> None:
        """The step starts to run."""
        self.started_at, self.clock = datetime.now(tz=UTC), perf_counter()

    def ends(self, asking: Asking | None) -> None:
        """The step has run; it may only wait for something."""
        self.duration = perf_counter() - self.clock
        if asking is None:
            return
        raised, self.error = self.error, asking.outcome(self.error)
        if raised is not None and self.error is None:
            self.asked, self.used = asking.asked, asking.used
