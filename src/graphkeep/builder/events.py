"""Upstream's events, as `PersistentGraph.iter` yields them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic_graph.graph_builder import EndMarker, GraphTask
from pydantic_graph.id_types import ForkStackItem
from pydantic_graph.node import EndNode

from ..tasks import Forks, Task
from .plan import Plan
from .walk import Walk

__all__ = ('Event', 'events_of', 'graph_tasks')

Event = Sequence[GraphTask] | EndMarker[Any]


def graph_tasks(plan: Plan, tasks: Iterable[Task]) -> list[GraphTask]:
    """Tasks as upstream shows them; their inputs are copies."""
    return [
        GraphTask(
            cast('Any', task.node),
            plan.step(task.node).decode(task.inputs),
            _fork_stack(task.forks),
            cast('Any', f'task:{task.id}'),
        )
        for task in tasks
    ]


def events_of(plan: Plan, walk: Walk) -> list[Event]:
    """The events of a step's end: the tasks that it made, or the graph's end. Upstream goes to the
    end node first, then marks the end.
    """
    if walk.output is None:
        return [graph_tasks(plan, walk.added)]
    end = GraphTask(EndNode.id, walk.end, (), cast('Any', f'task:{walk.next_task}'))
    return [[end], EndMarker(walk.end)]


def _fork_stack(forks: Forks) -> Any:
    return tuple(
        ForkStackItem(cast('Any', item.fork), cast('Any', f'task:{item.run}'), item.branch)
        for item in forks
    )
