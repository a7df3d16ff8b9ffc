"""`KeptRun`: a run of a kept graph that is being watched, or run to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, cast

from pydantic_graph.graph_builder import EndMarker, Graph
from typing_extensions import TypeVar

from ..errors import RunBusyError, RunNotFoundError, RunPausedError
from ..handle import Handle
from ..pausing import Leaving
from ..waits import OnPause, wait_while_paused
from .events import Event, events_of, graph_tasks
from .executor import Execution
from .loading import load
from .plan import Plan

__all__ = ('KeptRun',)

StateT = TypeVar('StateT')
DepsT = TypeVar('DepsT')
OutputT = TypeVar('OutputT')


class KeptRun(Generic[StateT, DepsT, OutputT]):
    """A run that is being watched: yields what upstream's `GraphRun` yields, in commit order."""

    def __init__(
        self,
        graph: Graph[Any, Any, Any, Any],
        plan: Plan,
        handle: Handle,
        execution: Execution,
        deps: Any,
        inputs: Any,
        max_parallel: int | None,
    ) -> None:
        """Made by `PersistentGraph.iter`."""
        self.graph = graph
        """The graph that runs."""
        self.deps: DepsT = deps
        """The dependencies."""
        self.inputs: Any = inputs
        """The inputs the graph was started with; `None` when it was resumed."""
        self._plan = plan
        self._handle = handle
        self._most = max_parallel
        self._execution = execution
        self._events: deque[Event] = deque()
        self._last: Event | None = None

    @property
    def state(self) -> StateT:
        """The state as it was settled last. What you change in it is committed before the next
        step.
        """
        return self._execution.state

    @property
    def output(self) -> OutputT | None:
        """The output, once the end has been yielded."""
        if isinstance(self._last, EndMarker):
            return cast('EndMarker[OutputT]', self._last).value
        return None

    @property
    def next_task(self) -> Event:
        """What was yielded last; before that, the tasks that are pending."""
        if self._last is not None:
            return self._last
        return graph_tasks(self._plan, self._execution.pending)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if isinstance(self._last, EndMarker):
            raise StopAsyncIteration
        self._execution.watched = True
        if self._last is None:
            # As upstream does, which begins with the tasks behind the start.
            self._last = self.next_task
            return self._last
        while not self._events:
            if self._execution.ended and not self._execution.unseen:
                self._events.append(EndMarker(self._execution.output))
                break
            for walk in await self._execution.advance():
                self._events += events_of(self._plan, walk)
        self._last = self._events.popleft()
        return self._last

    async def next(self, value: Event | None = None) -> Event:
        """Go on to the next event.

        Args:
            value: What was yielded last, or nothing. Other tasks cannot be put in its place.

        Raises:
            TypeError: Other tasks were given.
        """
        if value is not None and value is not self._last:
            self.override_next(value)
        if self._last is None:
            await anext(self)
        return await anext(self)

    def override_next(self, value: Any) -> None:
        """Not possible: the next tasks of a kept run are committed before they are seen.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            'override_next: the next tasks of a kept run are committed already and cannot be '
            'replaced. Change `run.state`, and let a decision in the graph choose.'
        )

    async def finish(
        self, *, on_pause: OnPause = 'raise', stop: Callable[[], bool] | None = None
    ) -> OutputT:
        """Run to the end without watching.

        Args:
            on_pause: As for `PersistentGraph.run`.
            stop: Asked between two commits. If it says yes, no step is begun any more, and the run
                is left, ready, when those that run have ended.

        Raises:
            RunPausedError: Only an answer can carry it on.
            Leaving: It was left.
        """
        self._execution.watched = self._last is not None
        while not self._execution.ended:
            if stop is not None and stop():
                self._execution.stopping = True
                if self._execution.idle:
                    raise Leaving
            try:
                await self._execution.advance()
            except RunPausedError:
                if on_pause == 'raise' or not self._execution.paused:
                    raise  # of a step, one that is not paused: another run's
                await self._wait()
        return self._execution.output

    async def _wait(self) -> None:
        """Wait until the run can go on, here or wherever it has gone on meanwhile."""
        watched, store = self._execution.watched, self._handle.store
        while True:
            await wait_while_paused(store, self._handle.run_id, has_run=True)
            try:
                execution = await load(
                    self._plan,
                    self._handle,
                    deps=self.deps,
                    max_parallel=self._most,
                    into=self._execution.state,
                )
            except (RunPausedError, RunBusyError):
                continue  # somebody else was faster
            if execution is not None and execution.born != self._execution.born:
                # Deleted, and created again with this id.
                await execution.close()
                execution = None
            if execution is None:
                raise RunNotFoundError(run_id=self._handle.run_id)
            self._execution = execution
            execution.watched = watched
            return

    async def close(self) -> None:
        """End what still runs, and give the claim up."""
        await self._execution.close()

    def __repr__(self) -> str:
        return f'<KeptRun of {self.graph.name or "(unnamed)"}>'
