"""The frontier of a builder graph: pending tasks and join buffers, and how a step's end moves them.

Pure: no I/O, no `async`. It calls the graph's own synchronous code (transforms, decisions,
reducers) through the walker that the caller gives; whatever that raises, `Frontier.undo` takes
back.

A task is a pending or running execution of a step: start, forks, decisions, joins and the end are
passed through while a step's end is settled. A join fires as soon as its fork run is complete, that
is, when nothing that can still reach it is left of the fork run: no task, and no buffer of another
join. (Upstream waits until nothing else runs at all, and its early path overlooks other joins'
buffers, so that a join may fire twice there.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..tasks import Forks, Task

__all__ = ('Buffer', 'Frontier', 'JoinKey', 'Structure')


JoinKey = tuple[str, str]
"""A join and the run of its parent fork."""


@dataclass(slots=True)
class Buffer:
    """What has arrived at a join, for one run of its parent fork."""

    join: str
    run: str
    forks: Forks
    """The fork stack that what follows the join has."""
    items: list[bytes] = field(default_factory=list[bytes])
    """The arrived items as JSON, for a reducer of two arguments."""
    current: Any = None
    """What the reducer has made of them."""
    accumulator: bytes | None = None
    """That as JSON, for a reducer with a context."""
    cancelled: bool = False
    """The reducer has cancelled the siblings."""
    stored: int | None = None
    """How many of the items are in the document; `None` before the buffer is."""
    loaded: bool = True
    """Whether `current` is up to date with what is stored."""

    @property
    def key(self) -> JoinKey:
        """Its key in the frontier."""
        return self.join, self.run


@dataclass(frozen=True, slots=True)
class Structure:
    """What the frontier must know of a graph."""

    parent_fork: dict[str, str]
    """Of each join."""
    upstream: dict[str, frozenset[str]]
    """Of each join: the nodes between its parent fork and it, and itself."""
    final: frozenset[str]
    """The joins that no other join of the same fork run waits for."""


class _Undo(NamedTuple):
    tasks: dict[str, Task | None]
    buffers: dict[JoinKey, tuple[Buffer, int, bytes | None, bool] | None]
    next_task: int
    next_fork: int


class Frontier:
    """All tasks and join buffers of a run that are not finished."""

    def __init__(self, structure: Structure, *, next_task: int = 0, next_fork: int = 0) -> None:
        self._structure = structure
        self.tasks: dict[str, Task] = {}
        self.buffers: dict[JoinKey, Buffer] = {}
        self.next_task = next_task
        self.next_fork = next_fork
        # By run of a fork: how many tasks, and buffers, are left of it at each node.
        self._left: dict[str, dict[str, int]] = {}
        self._by_run: dict[str, set[JoinKey]] = {}
        self._streams: dict[str, int] = {}
        self._undo: _Undo | None = None

    # --- one settlement ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a settlement: `undo` comes back to here."""
        self._undo = _Undo({}, {}, self.next_task, self.next_fork)

    def changes(self) -> tuple[Iterable[str], Iterable[JoinKey]]:
        """The tasks and buffers that were added, changed or removed since `begin`."""
        undo = self._undo
        return ((), ()) if undo is None else (undo.tasks.keys(), undo.buffers.keys())

    def undo(self) -> None:
        """Take the settlement back. Buffers that a reducer has touched must be reduced again."""
        undo, self._undo = self._undo, None
        if undo is None:
            return
        for task_id, task in undo.tasks.items():
            if task_id in self.tasks:
                self._count_task(self.tasks.pop(task_id), -1)
            if task is not None:
                self.restore_task(task)
        for key, saved in undo.buffers.items():
            if key in self.buffers:
                self._drop_buffer(key)
            if saved is not None:
                buffer, length, accumulator, cancelled = saved
                del buffer.items[length:]
                buffer.accumulator, buffer.cancelled, buffer.loaded = accumulator, cancelled, False
                self._put_buffer(buffer)
        self.next_task, self.next_fork = undo.next_task, undo.next_fork

    # --- tasks ------------------------------------------------------------------------------------

    def add_task(
        self, node: str, inputs: bytes, forks: Forks, *, born: int, fingerprint: str | None = None
    ) -> Task:
        """A new pending task."""
        task = Task(str(self.next_task), node, inputs, forks, born, fingerprint)
        self.next_task += 1
        self._save_task(task.id)
        self.tasks[task.id] = task
        self._count_task(task, 1)
        return task

    def restore_task(self, task: Task) -> None:
        """A task that is stored already."""
        self.tasks[task.id] = task
        self._count_task(task, 1)

    def remove_task(self, task_id: str) -> Task:
        """A task has ended or was cancelled."""
        self._save_task(task_id)
        task = self.tasks.pop(task_id)
        self._count_task(task, -1)
        return task

    def touch_task(self, task_id: str) -> Task:
        """A task is about to change; gives a copy that stands in its place from now on."""
        self._save_task(task_id)
        old = self.tasks[task_id]
        new = replace(old)
        self.tasks[task_id] = new
        return new

    def begin_stream(self, task_id: str, run: str) -> Task:
        """A task sends the items of a stream on, to the branches of a run of a map.

        Until it ends, that run is not complete, however many of its items have ended.
        """
        task = self.touch_task(task_id)
        self._count_task(task, -1)
        task.stream_run = run
        self._count_task(task, 1)
        return task

    def new_fork_run(self) -> str:
        """A name for a run of a fork that no other in this graph run has."""
        run = str(self.next_fork)
        self.next_fork += 1
        return run

    # --- joins ------------------------------------------------------------------------------------

    def place(self, join: str, forks: Forks) -> tuple[JoinKey, Forks]:
        """Which buffer of `join` something with this fork stack goes to, and the stack behind it.

        Raises:
            RuntimeError: The stack holds no run of the join's parent fork.
        """
        parent = self._structure.parent_fork[join]
        for depth in range(len(forks) - 1, -1, -1):
            if forks[depth].fork == parent:
                # A join that others of the same fork run wait for keeps the whole stack.
                behind = forks[: depth + 1] if join in self._structure.final else forks
                return (join, forks[depth].run), behind
        raise RuntimeError(f'nothing of fork {parent!r} is in the way to join {join!r}')

    def open_buffer(self, key: JoinKey, forks: Forks) -> Buffer:
        """The buffer with this key, made if it is not there: then it is not `loaded`."""
        self._save_buffer(key)
        buffer = self.buffers.get(key)
        if buffer is None:
            buffer = Buffer(key[0], key[1], forks, loaded=False)
            self.restore_buffer(buffer)
        return buffer

    def restore_buffer(self, buffer: Buffer) -> None:
        """A buffer that is stored already."""
        self._put_buffer(buffer)

    def close_buffer(self, key: JoinKey) -> Buffer:
        """A join fires, or is dropped with its fork run."""
        self._save_buffer(key)
        return self._drop_buffer(key)

    def complete(self) -> Iterator[JoinKey]:
        """Buffers whose fork run the settlement has completed, one at a time, oldest first.

        What fires may complete others, or bring a buffer that has fired back: fire, then go on.
        """
        while self.buffers:
            ready = [key for key in self._candidates() if self._is_complete(key)]
            if not ready:
                return
            yield min(ready, key=self._order)

    def _candidates(self) -> set[JoinKey]:
        """Buffers of the fork runs that the settlement has touched: no other can have become
        complete.
        """
        undo = self._undo
        if undo is None:
            return set(self.buffers)
        found = {key for key in undo.buffers if key in self.buffers}
        touched = [*undo.tasks.values(), *(self.tasks.get(task_id) for task_id in undo.tasks)]
        runs = {item.run for task in touched if task is not None for item in task.forks}
        runs.update(task.stream_run for task in touched if task is not None and task.stream_run)
        runs.update(item.run for key in undo.buffers for item in self._forks_of(key))
        for run in runs:
            found.update(self._by_run.get(run, ()))
        return found

    def _forks_of(self, key: JoinKey) -> Forks:
        saved = None if self._undo is None else self._undo.buffers.get(key)
        if saved is not None:
            return saved[0].forks
        buffer = self.buffers.get(key)
        return () if buffer is None else buffer.forks

    def _order(self, key: JoinKey) -> tuple[int, str]:
        return int(key[1]), key[0]

    def siblings(self, join: str, run: str) -> tuple[Sequence[str], Sequence[JoinKey]]:
        """The tasks and other buffers of a fork run, for a reducer that cancels them."""
        parent = self._structure.parent_fork[join]
        tasks = [t.id for t in self.tasks.values() if _within(t.forks, parent, run)]
        buffers = [
            b.key
            for b in self.buffers.values()
            if b.key != (join, run) and _within(b.forks, parent, run)
        ]
        return tasks, buffers

    def _is_complete(self, key: JoinKey) -> bool:
        join, run = key
        if run in self._streams:
            return False
        upstream = self._structure.upstream[join]
        for node, count in self._left.get(run, {}).items():
            # The buffer itself stands at the join, and must not wait for itself.
            if node in upstream and count > (1 if node == join and self._counts_itself(key) else 0):
                return False
        return True

    def _counts_itself(self, key: JoinKey) -> bool:
        return any(item.run == key[1] for item in self.buffers[key].forks)

    # --- bookkeeping ------------------------------------------------------------------------------

    def _put_buffer(self, buffer: Buffer) -> None:
        self.buffers[buffer.key] = buffer
        self._by_run.setdefault(buffer.run, set()).add(buffer.key)
        self._count(buffer.forks, buffer.join, 1)

    def _drop_buffer(self, key: JoinKey) -> Buffer:
        buffer = self.buffers.pop(key)
        keys = self._by_run[buffer.run]
        keys.discard(key)
        if not keys:
            del self._by_run[buffer.run]
        self._count(buffer.forks, buffer.join, -1)
        return buffer

    def _count_task(self, task: Task, by: int) -> None:
        if not self._structure.parent_fork:
            return  # without joins, nothing ever waits for a fork run
        self._count(task.forks, task.node, by)
        if task.stream_run is not None:
            open_streams = self._streams.get(task.stream_run, 0) + by
            self._streams[task.stream_run] = open_streams
            if not open_streams:
                del self._streams[task.stream_run]

    def _count(self, forks: Forks, node: str, by: int) -> None:
        for run in {item.run for item in forks}:
            left = self._left.setdefault(run, {})
            count = left.get(node, 0) + by
            if count:
                left[node] = count
            else:
                left.pop(node, None)
                if not left:
                    del self._left[run]

    def _save_task(self, task_id: str) -> None:
        if self._undo is not None and task_id not in self._undo.tasks:
            self._undo.tasks[task_id] = self.tasks.get(task_id)

    def _save_buffer(self, key: JoinKey) -> None:
        if self._undo is not None and key not in self._undo.buffers:
            buffer = self.buffers.get(key)
            self._undo.buffers[key] = (
                None
                if buffer is None
                else (buffer, len(buffer.items), buffer.accumulator, buffer.cancelled)
            )


def _within(forks: Forks, fork: str, run: str) -> bool:
    return any(item.fork == fork and item.run == run for item in forks)
