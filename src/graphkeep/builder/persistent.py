"""`PersistentGraph`: a builder graph whose runs are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Generic, Literal, cast

from pydantic_graph._utils import infer_obj_name, logfire_span
from pydantic_graph.graph_builder import Graph
from typing_extensions import TypeVar

from ..errors import RunBusyError, RunExistsError, RunNotFoundError, RunPausedError
from ..handle import Handle, check_handle
from ..stores.memory import MemoryStore
from ..waits import OnPause, check_on_pause, wait_while_paused
from .executor import Execution
from .loading import load, start
from .plan import Plan
from .watching import KeptRun

Direction = Literal['TB', 'LR', 'RL', 'BT']

__all__ = ('PersistentGraph',)

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

        if persistence is not None:
            check_handle(persistence)
            if persistence.if_exists == 'raise':
                # A run that is there already is an error, and not waited for.
                return await self._finish(begin, None, on_pause)
        return await self._finish(begin, persistence, on_pause)

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
                    self.graph, self._plan, handle, execution, deps, inputs, self.max_parallel
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
                self.graph, self._plan, persistence, execution, deps, None, self.max_parallel
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
