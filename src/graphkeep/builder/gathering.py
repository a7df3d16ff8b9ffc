"""The next commit of a run, gathered from what is settled."""

from __future__ import annotations

from typing import Any

from ..document import Change
from ..journal import Journal
from ..requests import NewRequest
from ..tasks import counters, encode_task
from ..waits import Waits
from .completions import Completion
from .frontier import Buffer, Frontier, JoinKey
from .plan import Plan
from .stored import encode_buffer, join_name, new_items
from .walk import Walk

__all__ = ('Gathering',)


class Gathering:
    """What the settlements since the last commit have moved."""

    def __init__(self, plan: Plan, journal: Journal, frontier: Frontier, waits: Waits) -> None:
        self._plan = plan
        self._journal = journal
        self._frontier = frontier
        self._waits = waits
        self._moved: set[JoinKey] = set()
        self._unstored: list[Buffer] = []
        self._begin()

    def _begin(self) -> None:
        self.change = Change()
        self.asks: list[NewRequest] = []
        self.closes: list[str] = []
        self.last: Completion | None = None
        """What was settled last."""
        self.event: Any = 'pause'
        """`step` as soon as one step has ended."""

    def ended(self, done: Completion, walk: Walk) -> None:
        """A step has ended, or given an item of its stream."""
        self.last, self.event = done, 'step'
        self._collect_tasks()
        if done.item is None:
            self._close(done.task.id)
        for gone in walk.cancelled:
            self._close(gone.id)
            self.asks = [new for new in self.asks if new.task != gone.id]

    def paused(self, done: Completion) -> None:
        """A step waits."""
        self.last = done
        task = self._frontier.touch_task(done.task.id)
        asks, closes = self._waits.pause(task, done.asked, done.used)
        self.asks += asks
        self.closes += closes
        self._collect_tasks()

    def end(self, output: bytes) -> None:
        """The graph has ended: whatever is left of it is of no more use."""
        document = self._journal.document
        self.event = 'end'
        self.change.tasks = dict.fromkeys(document.tasks)
        self.change.joins = dict.fromkeys(document.joins)
        self.change.output = output
        self.asks.clear()
        self.closes = list(self._waits.known)
        self._moved.clear()

    def finish(self, state: Any) -> Change:
        """The change that the commit makes, with the state as it is settled."""
        self._collect_buffers()
        self.change.state = state
        self.change.next = counters(self._frontier.next_task, self._frontier.next_fork)
        return self.change

    def committed(self) -> None:
        """It is in the document now; the next commit begins."""
        for buffer in self._unstored:
            buffer.stored = len(buffer.items)
        self._unstored.clear()
        self._waits.written(self.asks, self.closes)
        self._begin()

    def _close(self, task_id: str) -> None:
        if self._waits.known:
            self.closes += self._waits.of(task_id)

    def _collect_tasks(self) -> None:
        frontier, document, change = self._frontier, self._journal.document, self.change
        tasks, buffers = frontier.changes()
        for task_id in tasks:
            task = frontier.tasks.get(task_id)
            if task is not None:
                change.tasks[task_id] = encode_task(task)
            elif task_id in document.tasks:
                change.tasks[task_id] = None
            else:
                change.tasks.pop(task_id, None)
        self._moved.update(buffers)

    def _collect_buffers(self) -> None:
        # Once a commit, not once a settlement: thousands of items may share one.
        for key in self._moved:
            name = join_name(key)
            buffer = self._frontier.buffers.get(key)
            if buffer is None:
                if name in self._journal.document.joins:
                    self.change.joins[name] = None
                continue
            self._unstored.append(buffer)
            if buffer.stored is not None and buffer.accumulator is None:
                self.change.joins[name] = new_items(buffer)
            else:
                fingerprint = self._plan.join(key[0]).fingerprint
                self.change.joins[name] = encode_buffer(buffer, fingerprint)
        self._moved.clear()
