"""`PersistentGraph`: a builder graph whose runs are kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Generic, Literal, Self, cast

from pydantic_graph._utils import infer_obj_name, logfire_span
from pydantic_graph.graph_builder import EndMarker, Graph
from typing_extensions import TypeVar

from ..errors import RunBusyError, RunExistsError, RunNotFoundError, RunPausedError
from ..handle import Handle, check_handle
from ..pausing import Leaving
from ..stores.memory import MemoryStore
from ..waits import OnPause, check_on_pause, wait_while_paused
from .events import Event, events_of, graph_tasks
from .executor import Execution
from .loading import load, start
from .plan import Plan

Direction = Literal['TB', 'LR', 'RL', 'BT']

__all__ = ('KeptRun', 'PersistentGraph')

StateT = TypeVar('StateT')
DepsT = TypeVar('DepsT')
InputT = TypeVar('InputT')
OutputT = TypeVar('OutputT')


class PersistentGraph(Generic[StateT, DepsT, InputT, OutputT]):
    """A built `Graph` whose runs are kept: made by `graphkeep.persist`.

    ```python
    kept = graphkeep.persist(graph)
    output = await kept.run(state=State(), inputs=order, persistence=store.persistence('order-42'))
    output = await kept.resume(store.persistence('order-42'))  # after a crash, in any process
    ```
    """

    def __init__(
        self,
        graph: Graph[StateT, DepsT, InputT, OutputT],
        plan: Plan,
        *,
        max_parallel: int | None,
    ) -> None:
        """Use `graphkeep.persist`."""
        self.graph = graph
        """The graph itself."""
        self.max_parallel = max_parallel
        """Most steps of a run that run at once."""
        self._plan = plan

    @property
    def name(self) -> str | None:
        """The graph's name."""
        return self.graph.name

    def render(self, *, title: str | None = None, direction: Direction | None = None) -> str:
        """The graph as a Mermaid diagram: upstream's `Graph.render`."""
        return self.graph.render(title=title, direction=direction)

    async def run(
        self,
        *,
        state: StateT = None,
        deps: DepsT = None,
        inputs: InputT = None,
        persistence: Handle | None = None,
        on_pause: OnPause = 'raise',
        span: AbstractContextManager[Any] | None = None,
        infer_name: bool = True,
    ) -> OutputT:
        """Run the graph to its end; every step is committed before the next begins.

        Args:
            state: The state; the steps change this object.
            deps: The dependencies. They are never stored.
            inputs: The inputs of the graph.
            persistence: The run's handle, `store.persistence(run_id)`. Without one the run is kept
                in memory only. With `if_exists='resume'` a run that exists goes on, with its own
                state and inputs, and one that is done gives its stored output.
            on_pause: What to do when nothing can go on before a request is answered: `raise`
                `RunPausedError`, or stay and `wait` for the answer, whoever goes on then.
            span: A span to use instead of a new one.
            infer_name: Name the graph by the caller's variable.

        Raises:
            RunExistsError: The run was started before.
            RunPausedError: Only an answer can carry it on.
            StateConflictError: Parallel steps changed the same field, and no rule says how to merge
                it.
            LossyStateError: A value would not come back as it is. The run has failed.
        """
        self._infer_name(infer_name)
        check_on_pause(on_pause)

        def begin() -> AbstractAsyncContextManager[KeptRun[StateT, DepsT, OutputT]]:
            return self.iter(
                state=state,
                deps=deps,
                inputs=inputs,
                persistence=persistence,
                span=span,
                infer_name=False,
            )

        goes_on = persistence is not None and getattr(persistence, 'if_exists', '') == 'resume'
        return await self._finish(begin, persistence if goes_on else None, on_pause)

    async def start(
        self,
        *,
        state: StateT = None,
        inputs: InputT = None,
        deps: DepsT | None = None,
        persistence: Handle,
        infer_name: bool = True,
    ) -> None:
        """Store a run for others to run: it is `ready`, and no step runs here.

        A `Worker`, `recover(…, ready=True)` or `resume` goes on with it.

        Args:
            state: The state. It is stored as it is now.
            inputs: The inputs of the graph.
            deps: For transforms and decisions between the start and the first steps.
            persistence: The run's handle. With `if_exists='resume'` a run that exists is left as it
                is.
            infer_name: Name the graph by the caller's variable.

        Raises:
            RunExistsError: The run was started before.
            LossyStateError: The state or the inputs would not come back as they are.
        """
        self._infer_name(infer_name)
        check_handle(persistence)
        try:
            execution = await start(
                self._plan,
                persistence,
                state=state,
                deps=deps,
                inputs=inputs,
                graph=persistence.graph_name or self.name,
                max_parallel=self.max_parallel,
                claimed=False,
            )
        except RunExistsError:
            if persistence.if_exists == 'raise':
                raise
        else:
            await execution.close()
            persistence.store.notices.heard(persistence.run_id)

    def run_sync(
        self,
        *,
        state: StateT = None,
        deps: DepsT = None,
        inputs: InputT = None,
        persistence: Handle | None = None,
        on_pause: OnPause = 'raise',
        span: AbstractContextManager[Any] | None = None,
        infer_name: bool = True,
    ) -> OutputT:
        """`run`, from code that is not async and where no event loop runs."""
        self._infer_name(infer_name)
        run = self.run(
            state=state,
            deps=deps,
            inputs=inputs,
            persistence=persistence,
            on_pause=on_pause,
            span=span,
            infer_name=False,
        )
        try:
            return asyncio.run(run)
        finally:
            run.close()  # where a loop runs already, it was never begun

    @asynccontextmanager
    async def iter(
        self,
        *,
        state: StateT = None,
        deps: DepsT = None,
        inputs: InputT = None,
        persistence: Handle | None = None,
        span: AbstractContextManager[Any] | None = None,
        infer_name: bool = True,
    ) -> AsyncGenerator[KeptRun[StateT, DepsT, OutputT]]:
        """Run the graph and watch it: upstream's event types, in commit order. As `run`."""
        self._infer_name(infer_name, depth=3)
        if persistence is not None:
            check_handle(persistence)
        own = MemoryStore() if persistence is None else None
        handle = Handle(own, 'run') if own is not None else cast('Handle', persistence)
        try:
            with self._span(span):
                execution = await self._begin(handle, state, deps, inputs)
                run = KeptRun[StateT, DepsT, OutputT](
                    self, self._plan, handle, execution, deps, inputs
                )
                try:
                    yield run
                finally:
                    await run.close()
        finally:
            if own is not None:
                await own.close()

    async def resume(
        self,
        persistence: Handle,
        *,
        deps: DepsT = None,
        on_pause: OnPause = 'raise',
        span: AbstractContextManager[Any] | None = None,
        infer_name: bool = True,
    ) -> OutputT:
        """Continue a run to its end, wherever it stopped; one that is done gives its stored output.

        Args:
            persistence: The run's handle.
            deps: The dependencies. They are never stored.
            on_pause: As for `run`.
            span: A span to use instead of a new one.
            infer_name: Name the graph by the caller's variable.

        Raises:
            RunNotFoundError: There is no such run.
            RunPausedError: Only an answer can carry it on.
            RunBusyError: Another process, which may be alive, is running it.
            RunStatusError: It was cancelled, or nothing of it is left to run: a fork of an end.
            GraphChangedError: What is stored does not fit the graph any more. The run stays as it
                is.
        """
        self._infer_name(infer_name)
        check_on_pause(on_pause)
        check_handle(persistence)

        def begin() -> AbstractAsyncContextManager[KeptRun[StateT, DepsT, OutputT]]:
            return self.iter_resumed(persistence, deps=deps, span=span, infer_name=False)

        return await self._finish(begin, persistence, on_pause)

    async def _finish(
        self,
        begin: Callable[[], AbstractAsyncContextManager[KeptRun[StateT, DepsT, OutputT]]],
        handle: Handle | None,
        on_pause: OnPause,
    ) -> OutputT:
        """Run to the end. With `wait`, the run of `handle` is waited for where it is paused, or is
        running elsewhere.
        """
        while True:
            if on_pause == 'wait' and handle is not None:
                with suppress(RunNotFoundError):
                    await wait_while_paused(handle.store, handle.run_id)
            begun = False
            try:
                async with begin() as run:
                    begun = True
                    return await run.finish(on_pause=on_pause)
            except (RunPausedError, RunBusyError):
                if on_pause == 'raise' or begun:
                    raise

    @asynccontextmanager
    async def iter_resumed(
        self,
        persistence: Handle,
        *,
        deps: DepsT = None,
        span: AbstractContextManager[Any] | None = None,
        infer_name: bool = True,
    ) -> AsyncGenerator[KeptRun[StateT, DepsT, OutputT]]:
        """Continue a run and watch it. As `resume`."""
        self._infer_name(infer_name, depth=3)
        check_handle(persistence)
        with self._span(span):
            execution = await load(
                self._plan, persistence, deps=deps, max_parallel=self.max_parallel
            )
            if execution is None:
                raise RunNotFoundError(run_id=persistence.run_id)
            run = KeptRun[StateT, DepsT, OutputT](
                self, self._plan, persistence, execution, deps, None
            )
            try:
                yield run
            finally:
                await run.close()

    async def _begin(self, handle: Handle, state: Any, deps: Any, inputs: Any) -> Execution:
        if handle.if_exists == 'resume':
            execution = await load(self._plan, handle, deps=deps, max_parallel=self.max_parallel)
            if execution is not None:
                return execution
        try:
            return await start(
                self._plan,
                handle,
                state=state,
                deps=deps,
                inputs=inputs,
                graph=handle.graph_name or self.name,
                max_parallel=self.max_parallel,
            )
        except RunExistsError:
            if handle.if_exists != 'resume':
                raise
        # Somebody else started it in between.
        execution = await load(self._plan, handle, deps=deps, max_parallel=self.max_parallel)
        if execution is None:
            raise RunNotFoundError(run_id=handle.run_id)
        return execution

    def _span(self, span: AbstractContextManager[Any] | None) -> AbstractContextManager[Any]:
        if span is not None:
            return span
        if not self.graph.auto_instrument:
            return nullcontext()
        return logfire_span(f'run graph {self.name}', graph=self.graph)

    def _infer_name(self, infer_name: bool, depth: int = 2) -> None:
        """Name the graph as upstream does: by the variable that holds it, or us."""
        if infer_name and self.graph.name is None:
            name = infer_obj_name(self.graph, depth=depth + 1) or infer_obj_name(
                self, depth=depth + 1
            )
            if name is not None:
                self.graph.name = name

    def __repr__(self) -> str:
        return f'<PersistentGraph {self.name or "(unnamed)"}>'


class KeptRun(Generic[StateT, DepsT, OutputT]):
    """A run that is being watched: yields what upstream's `GraphRun` yields, in commit order."""

    def __init__(
        self,
        kept: PersistentGraph[Any, Any, Any, Any],
        plan: Plan,
        handle: Handle,
        execution: Execution,
        deps: Any,
        inputs: Any,
    ) -> None:
        """Made by `PersistentGraph.iter`."""
        self.graph = kept.graph
        """The graph that runs."""
        self.deps: DepsT = deps
        """The dependencies."""
        self.inputs: Any = inputs
        """The inputs the graph was started with; `None` when it was resumed."""
        self._plan = plan
        self._handle = handle
        self._most = kept.max_parallel
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
