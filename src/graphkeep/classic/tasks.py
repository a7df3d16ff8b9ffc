"""The one pending task of a 1.x run. Pure."""

from __future__ import annotations

from ..document import Document
from ..errors import GraphChangedError
from ..tasks import Task, read_tasks

__all__ = ('stored_task',)


def stored_task(run_id: str, document: Document) -> Task | None:
    """The pending task of a run, or `None` if it has none.

    Raises:
        GraphChangedError: It has several, or join buffers: it was begun by a builder graph.
        ValueError: The document is damaged.
    """
    if len(document.tasks) > 1 or document.joins:
        raise GraphChangedError(
            f'Run {run_id!r} has {len(document.tasks)} pending tasks: it was begun by a '
            'GraphBuilder graph, and cannot go on as a graph of pydantic-graph 1.x.',
            run_id=run_id,
        )
    tasks = read_tasks(document)
    return tasks[0] if tasks else None
