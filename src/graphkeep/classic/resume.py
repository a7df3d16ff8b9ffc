"""Continuing a 1.x run, or starting it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_graph import BaseNode
from pydantic_graph.graph import Graph, GraphRunResult

from ..errors import (
    RunBusyError,
    RunExistsError,
    RunMovedError,
    RunNotFoundError,
    RunPausedError,
    RunStatusError,
)
from ..pausing import Leaving
from ..store import not_claimable
from ..waits import OnPause, wait_while_paused
from .persistence import StatePersistence

__all__ = ('resume',)


async def resume(
    graph: Graph[Any, Any, Any],
    persistence: StatePersistence[Any, Any],
    *,
    deps: Any = None,
    start: BaseNode[Any, Any, Any] | None = None,
    state: Any = None,
    on_pause: OnPause = 'raise',
    stop: Callable[[], bool] | None = None,
) -> GraphRunResult[Any, Any]:
    """Continue a run to its end; with `start`, start it if it does not exist. See
    `graphkeep.resume`.
    """
    while True:
        try:
            return await _go_on(graph, persistence, deps, start, state, stop)
        except (RunExistsError, RunMovedError) as overtaken:
            # Between our look at the run and our claim somebody wrote to it: another process, which
            # may be running it now, or a dead one, whose last commit has only just arrived.
            if overtaken.run_id != persistence.run_id or persistence.has_run:
                raise
        except RunBusyError as busy:
            ours = busy.run_id == persistence.run_id and not persistence.has_run
            if on_pause == 'raise' or not ours:
                raise
            await wait_while_paused(persistence.store, persistence.run_id)
        except RunPausedError as paused:
            if paused.run_id != persistence.run_id:
                raise
            if on_pause == 'wait':
                await wait_while_paused(persistence.store, persistence.run_id, has_run=True)
            elif paused.requests or (await persistence.store.run(paused.run_id)).status == 'paused':
                raise


async def _go_on(
    graph: Graph[Any, Any, Any],
    persistence: StatePersistence[Any, Any],
    deps: Any,
    start: BaseNode[Any, Any, Any] | None,
    state: Any,
    stop: Callable[[], bool] | None,
) -> GraphRunResult[Any, Any]:
    persistence.set_graph_types(graph)
    async with persistence.reopened() as opened:
        if opened is None:
            if start is None:
                raise RunNotFoundError(run_id=persistence.run_id)
            return await graph.run(
                start, state=state, deps=deps, persistence=persistence, infer_name=False
            )
        run, cursor = opened
        if run.status == 'done':
            return GraphRunResult(cursor.stored_output(), cursor.stored_state(), persistence)
        if run.status == 'cancelled':
            raise not_claimable(run)
        if cursor.pending is None:
            if start is None:
                raise RunStatusError(
                    f'Run {run.run_id!r} has no node to go on with: it was forked from the end of '
                    f'{run.parent_run_id!r}. Name one: graphkeep.resume(graph, persistence, '
                    'start=Node()).',
                    run_id=run.run_id,
                    status=run.status,
                )
            kept = cursor.stored_state()
            return await graph.run(
                start, state=kept, deps=deps, persistence=persistence, infer_name=False
            )
        async with graph.iter_from_persistence(
            persistence, deps=deps, infer_name=False
        ) as graph_run:
            async for _ in graph_run:
                if stop is not None and graph_run.result is None and stop():
                    await cursor.leave()
                    raise Leaving
        assert graph_run.result is not None
        return graph_run.result
