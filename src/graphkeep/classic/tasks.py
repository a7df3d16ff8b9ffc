"""The one task of a 1.x run: its next node, as it stands in the document. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json

from ..document import Document
from ..errors import GraphChangedError
from ..parts import split

__all__ = ('START', 'StoredTask', 'counters', 'encode_task', 'next_task', 'stored_task')

START = 0
"""`born` of the tasks a run was created with: the first epoch is the database's to choose."""

_FORKS = b'[["__start__","0",0]]'
"""Where a builder graph's first step stands in its fork stack, so that such a run can go on under
pydantic-graph 2.
"""


class StoredTask(NamedTuple):
    """A pending task, as stored."""

    id: str
    node: str
    inputs: bytes


def encode_task(node: str, inputs: bytes, *, born: int) -> bytes:
    """The JSON of a task."""
    return b'{"node":%b,"inputs":%b,"forks":%b,"born":%d}' % (to_json(node), inputs, _FORKS, born)


def counters(task: int) -> bytes:
    """The JSON of the document's `next`: the number the next task will have."""
    return b'{"task":%d,"fork":1}' % task


def next_task(document: Document) -> int:
    """The number the next task of the document will have.

    Raises:
        ValueError: The document is damaged.
    """
    found: Any = from_json(document.next)
    task = cast('dict[str, Any]', found).get('task') if isinstance(found, dict) else None
    if not isinstance(task, int):
        raise ValueError('its counters cannot be read')
    return task


def stored_task(run_id: str, document: Document) -> StoredTask | None:
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
    for task, data in document.tasks.items():
        parts = split(data)
        if not isinstance(parts, dict) or not {'node', 'inputs'} <= parts.keys():
            raise ValueError(f'its task {task!r} has no node or no inputs')
        node = from_json(parts['node'])
        if not isinstance(node, str):
            raise ValueError(f'the node of its task {task!r} is not a name')
        return StoredTask(task, node, bytes(parts['inputs']))
    return None
