"""Continuing runs: one by name, or all that dead processes left."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from . import owner as owners
from .builder import PersistentGraph
from .builder.graphs import check_resumable
from .errors import (
    LeaseLostError,
    RunBusyError,
    RunMovedError,
    RunNotFoundError,
    RunPausedError,
)
from .handle import Handle, check_handle
from .leases import is_held
from .pausing import Leaving
from .runs import Run, check_count
from .store import Store
from .waits import OnPause, check_on_pause

if TYPE_CHECKING:
    from pydantic_graph import BaseNode
    from pydantic_graph.graph import Graph, GraphRunResult

    from .classic import StatePersistence
    from .requests import Request

    AnyGraph = Graph[Any, Any, Any] | PersistentGraph[Any, Any, Any, Any]

__all__ = (
    'Recovered',
    'check_graphs',
    'go_on',
    'is_left',
    'recover',
    'resume',
    'running_runs',
)

logger = logging.getLogger('graphkeep')

StateT = TypeVar('StateT')
DepsT = TypeVar('DepsT')
RunEndT = TypeVar('RunEndT')
InputT = TypeVar('InputT')

_ELSEWHERE = (RunBusyError, RunMovedError, RunNotFoundError, LeaseLostError)
"""What tells that a run is somebody else's, or gone; of an inner run, it is a step's own error."""
_PAGE = 500
_ALL = 1_000_000
_POLL = 0.5
"""Seconds between two looks at a claim that may turn out to be dead."""


@overload
async def resume(
    graph: Graph[StateT, DepsT, RunEndT],
    persistence: Handle,
    *,
    deps: DepsT = None,
    start: BaseNode[StateT, DepsT, RunEndT] | None = None,
    state: StateT | None = None,
    on_pause: OnPause = 'raise',
) -> GraphRunResult[StateT, RunEndT]: ...


@overload
async def resume(
    graph: PersistentGraph[StateT, DepsT, InputT, RunEndT],
    persistence: Handle,
    *,
    deps: DepsT = None,
    on_pause: OnPause = 'raise',
) -> RunEndT: ...


async def resume(
    graph: Any,
    persistence: Handle,
    *,
    deps: Any = None,
    start: Any = None,
    state: Any = None,
    on_pause: OnPause = 'raise',
) -> Any:
    """Continue a run to its end, wherever it stopped; with `start`, start it if it does not exist.

    A node or step that was running when its process died, that was cancelled or that failed runs
    again, from its beginning. A run that has ended is not run again: its stored output comes back.

    Args:
        graph: The graph of the run: a `Graph` of pydantic-graph 1.x, or what `graphkeep.persist`
            made of a `GraphBuilder` graph.
        persistence: The run's handle, `store.persistence(run_id)`.
        deps: The graph's dependencies. They are never stored.
        start: Of a 1.x graph: the first node, for a run that does not exist, or the node to go on
            with after a fork from the end.
        state: The state of a run that is started here; a run that exists has its own.
        on_pause: What to do when nothing can go on before a request is answered: `raise`
            `RunPausedError`, or stay and `wait` for the answer, whoever goes on then.

    Returns:
        Of a 1.x graph, as `graph.run`: output and state. Of a kept builder graph, its output.

    Raises:
        TypeError: The graph is none that can be resumed, or `persistence` is no handle.
        RunNotFoundError: There is no such run, and no `start`.
        RunPausedError: Only an answer can carry it on.
        RunBusyError: Another process, which may be alive, is running it.
        RunStatusError: The run was cancelled, or was forked from an end and no `start` is given.
        GraphChangedError: What is stored does not fit the graph any more. The run stays as it is.
    """
    check_resumable(graph, 'graphkeep.resume()')
    check_on_pause(on_pause)
    check_handle(persistence)
    if isinstance(graph, PersistentGraph):
        if start is not None or state is not None:
            raise TypeError(
                'start= and state= are for graphs of pydantic-graph 1.x. A builder graph is '
                'started with '
                "kept.run(state=…, persistence=store.persistence(run_id, if_exists='resume'))."
            )
        return await cast('PersistentGraph[Any, Any, Any, Any]', graph).resume(
            persistence, deps=deps, on_pause=on_pause, infer_name=False
        )
    # Late: pydantic-graph 2 has no `pydantic_graph.persistence` to import.
    from .classic.resume import resume as resume_classic

    if graph.name is None:
        _infer_name(graph)
    handle = cast('StatePersistence[Any, Any]', persistence)
    return await resume_classic(
        graph, handle, deps=deps, start=start, state=state, on_pause=on_pause
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """What became of one run that `recover` continued."""

    run_id: str
    graph: str
    """Its key in `graphs`."""
    result: Any = None
    """What `resume` gave, if the run ended."""
    error: Exception | None = None
    """What it raised, if it did not. It is stored with the run; `resume` tries again."""
    requests: tuple[Request, ...] = ()
    """What it waits for, if it has paused."""


async def recover(
    store: Store,
    graphs: Mapping[str, AnyGraph],
    *,
    deps: Any = None,
    ready: bool = False,
    wait: bool = True,
    concurrency: int = 8,
) -> list[Recovered]:
    """Continue the runs that dead processes left, each to its end.

    A process of this machine is known to be dead at once. Of any other (another host, a restarted
    container) only the lease tells: such runs are watched until their claim is renewed, and is left
    alone, or passes. Any number of processes may recover at the same time: each run is continued by
    one of them.

    Args:
        store: Where the runs are.
        graphs: The graphs, of 1.x or kept, by the name their runs are recorded under
            (`store.persistence(id, graph='orders')`, or the graph's own name). Runs of other graphs
            are left alone.
        deps: The dependencies of the graphs.
        ready: Also continue runs that nobody is running and that were left in order: initialised,
            cancelled by their task, stopped with Ctrl-C, answered, past a deadline, or left by
            their caller to wait for a person.
        wait: Watch claims that may be dead until they are renewed or pass, for at most the store's
            lease.
        concurrency: Most runs that go on at once.

    Returns:
        The runs that were continued here, in the order they ended. One that raises does not stop
        the others.

    Raises:
        TypeError: One of the graphs cannot be resumed; says which. Nothing has been claimed.
    """
    check_count(concurrency, 'concurrency')
    if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'recover() needs the store of the runs, open_store(…), got {store!r:.80}')
    check_graphs(graphs, 'recover')
    recovery = _Recovery(store, graphs, deps, asyncio.Semaphore(concurrency))
    try:
        watched = await recovery.look(ready=ready)
        if wait:
            await recovery.watch(watched)
        await recovery.finished()
    finally:
        await recovery.close()
    return recovery.ended


def check_graphs(graphs: object, what: str) -> None:
    """Refuse what is no mapping of names to graphs that can be resumed. Raises `TypeError`."""
    if not isinstance(graphs, Mapping):
        raise TypeError(f"graphs must be a mapping, {{'orders': graph}}, got {graphs!r}")
    for name, graph in cast('Mapping[object, object]', graphs).items():
        if not isinstance(name, str):
            raise TypeError(f'{what}() takes graphs by their names, got the key {name!r}')
        check_resumable(graph, f'{what}(…, {{{name!r}: …}})')


class _Recovery:
    def __init__(
        self,
        store: Store,
        graphs: Mapping[str, AnyGraph],
        deps: Any,
        slots: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._graphs = graphs
        self._deps = deps
        self._slots = slots
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: list[Recovered] = []

    async def look(self, *, ready: bool) -> dict[str, Run]:
        """Go on with what is known to have been left; gives the runs whose claims are alive."""
        alive: dict[str, Run] = {}
        for name in self._graphs:
            found = [run async for run in running_runs(self._store, name)]
            if ready:
                free = await self._store.candidates((name,), limit=_ALL)
                found += [run for run in free if run.status != 'running']
            for run in found:
                if run.status != 'running' or is_left(run):
                    self._start(name, run.run_id)
                elif not owners.is_this_process(run.owner):
                    alive[run.run_id] = run
        return alive

    async def watch(self, watched: dict[str, Run]) -> None:
        """Go on with the runs among these whose claims are not renewed."""
        loop = asyncio.get_running_loop()
        last_look = loop.time() + self._store.lease + _POLL
        while watched and loop.time() < last_look:
            await asyncio.sleep(_POLL)
            for run_id, seen in list(watched.items()):
                try:
                    now = await self._store.run(run_id)
                except RunNotFoundError:
                    del watched[run_id]
                    continue
                if is_left(now):
                    assert now.graph is not None
                    self._start(now.graph, run_id)
                    del watched[run_id]
                elif now.status != 'running' or _renewed(seen, now):
                    del watched[run_id]

    async def finished(self) -> None:
        """Wait until every run that goes on here has ended or raised."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Stop what still goes on: those runs are left ready."""
        for task in self._tasks:
            task.cancel()
        await self.finished()

    def _start(self, name: str, run_id: str) -> None:
        task = asyncio.get_running_loop().create_task(
            self._go_on(name, run_id), name=f'graphkeep-recover-{run_id!r}'
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, name: str, run_id: str) -> None:
        async with self._slots:
            ended = await go_on(self._store, name, self._graphs[name], run_id, deps=self._deps)
            if ended is not None:
                self.ended.append(ended)


async def go_on(
    store: Store,
    name: str,
    graph: AnyGraph,
    run_id: str,
    *,
    deps: Any,
    stop: Callable[[], bool] | None = None,
) -> Recovered | None:
    """Continue one run of those that a worker finds.

    Args:
        store: Where it is.
        name: What its graph is recorded under.
        graph: The graph.
        run_id: The run.
        deps: The dependencies.
        stop: Asked between two steps. If it says yes, the run is left there, ready.

    Returns:
        What became of it; `None` if it is continued elsewhere, is gone, or was left.
    """
    handle = store.persistence(run_id, graph=name)
    try:
        if isinstance(graph, PersistentGraph):
            async with graph.iter_resumed(handle, deps=deps, infer_name=False) as run:
                result = await run.finish(stop=stop)
        else:
            from .classic.resume import resume as resume_classic

            result = await resume_classic(graph, handle, deps=deps, stop=stop)
    except Leaving:
        logger.info('run %r was left ready between two steps', run_id)
    except RunPausedError as e:
        if e.run_id == run_id:
            return Recovered(run_id=run_id, graph=name, requests=e.requests)
        return _raised(name, run_id, e)
    except Exception as e:  # noqa: BLE001 - one that raises does not stop the others
        if isinstance(e, _ELSEWHERE) and e.run_id == run_id:
            logger.info('run %r is being continued elsewhere: %s', run_id, e)
            return None
        return _raised(name, run_id, e)
    else:
        if _ran_here(graph, handle):
            return Recovered(run_id=run_id, graph=name, result=result)
    return None


def _raised(name: str, run_id: str, error: Exception) -> Recovered:
    logger.warning('run %r was continued and raised', run_id, exc_info=error)
    return Recovered(run_id=run_id, graph=name, error=error)


async def running_runs(store: Store, graph: str) -> AsyncGenerator[Run]:
    """The runs of a graph that somebody has claimed, newest first, a page at a time."""
    after: Run | None = None
    while True:
        page = await store.runs(graph=graph, status='running', after=after, limit=_PAGE)
        for run in page:
            yield run
        if len(page) < _PAGE:
            return
        after = page[-1]


def _ran_here(graph: AnyGraph, handle: Handle) -> bool:
    """Whether the run went on under this handle, and had not ended elsewhere since we looked."""
    # Of kept builder graphs this is not known.
    return isinstance(graph, PersistentGraph) or getattr(handle, 'has_run', True)


def is_left(run: Run) -> bool:
    """Whether a worker is known to have left a running run: dead, or without a handle in here."""
    if run.status != 'running':
        return False
    if owners.is_this_process(run.owner):
        return run.interrupted or not is_held(run.run_id, run.epoch)
    return run.interrupted or owners.is_proven_dead(run.owner)


def _renewed(seen: Run, now: Run) -> bool:
    return (now.epoch, now.lease_until) != (seen.epoch, seen.lease_until)


def _infer_name(graph: Graph[Any, Any, Any]) -> None:
    """Name a graph as upstream does, by the variable that holds it where `resume` was called."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    for names in (caller.f_locals, caller.f_globals) if caller is not None else ():
        for name, value in names.items():
            if value is graph:
                graph.name = name
                return
