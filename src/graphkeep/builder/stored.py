"""Tasks and join buffers as they stand in the document. Pure.

A task: `{"node":…,"inputs":…,"forks":[[fork, run, branch], …],"born":…}`, and for a stream that has
begun also `"sent":…,"run":…`. A buffer, under `join/run`: `{"forks":…,"print":…,"items":[…]}`, or
with a reducer that takes a context `{"forks":…,"print":…,"accumulator":…,"cancelled":…}`.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import from_json, to_json

from ..document import Document, Tail
from ..parts import elements, split
from .frontier import Buffer, ForkItem, Forks, JoinKey, Task

__all__ = (
    'ITEMS_END',
    'counters',
    'encode_buffer',
    'encode_task',
    'join_name',
    'new_items',
    'read_buffers',
    'read_counters',
    'read_tasks',
)

ITEMS_END = b']}'
"""What follows the last item of a stored buffer."""


def encode_task(task: Task) -> bytes:
    """The JSON of a task."""
    stream = b''
    if task.sent is not None:
        stream = b',"sent":%d,"run":%b' % (task.sent, to_json(task.stream_run))
    return b'{"node":%b,"inputs":%b,"forks":%b,"born":%d%b}' % (
        to_json(task.node),
        task.inputs,
        to_json(task.forks),
        task.born,
        stream,
    )


def encode_buffer(buffer: Buffer, fingerprint: str) -> bytes:
    """The JSON of a buffer, whole."""
    head = b'{"forks":%b,"print":%b,' % (to_json(buffer.forks), to_json(fingerprint))
    if buffer.accumulator is not None:
        cancelled = b'true' if buffer.cancelled else b'false'
        return b'%b"accumulator":%b,"cancelled":%b}' % (head, buffer.accumulator, cancelled)
    return b'%b"items":[%b%b' % (head, b','.join(buffer.items), ITEMS_END)


def new_items(buffer: Buffer) -> Tail:
    """What a buffer has got since it was stored last."""
    since = buffer.stored or 0
    new = buffer.items[since:]
    return Tail(since, b','.join(new), len(new), ITEMS_END)


def join_name(key: JoinKey) -> str:
    """The name of a buffer in the document."""
    return f'{key[0]}/{key[1]}'


def counters(next_task: int, next_fork: int) -> bytes:
    """The JSON of the document's `next`."""
    return b'{"task":%d,"fork":%d}' % (next_task, next_fork)


def read_counters(document: Document) -> tuple[int, int]:
    """The next task and the next run of a fork. Raises `ValueError` for a damaged document."""
    found: Any = from_json(document.next)
    if isinstance(found, dict):
        task, fork = (cast('dict[str, Any]', found).get(key) for key in ('task', 'fork'))
        if isinstance(task, int) and isinstance(fork, int):
            return task, fork
    raise ValueError('its counters cannot be read')


def read_tasks(document: Document) -> list[Task]:
    """The pending tasks, oldest first. Raises `ValueError` for a damaged document."""
    tasks: list[Task] = []
    for task_id, data in document.tasks.items():
        parts = split(data)
        if not isinstance(parts, dict) or not {'node', 'inputs', 'forks'} <= parts.keys():
            raise ValueError(f'its task {task_id!r} has no node, inputs or forks')
        node = from_json(parts['node'])
        if not isinstance(node, str) or not task_id.isdecimal():
            raise ValueError(f'its task {task_id!r} cannot be read')
        sent = from_json(parts['sent']) if 'sent' in parts else None
        run = from_json(parts['run']) if 'run' in parts else None
        tasks.append(
            Task(
                task_id,
                node,
                bytes(parts['inputs']),
                _forks(from_json(parts['forks'])),
                from_json(parts.get('born', b'0')),
                sent,
                run,
            )
        )
    tasks.sort(key=lambda task: int(task.id))
    return tasks


def read_buffers(document: Document) -> list[tuple[Buffer, str]]:
    """The join buffers and their fingerprints. Raises `ValueError` for a damaged document."""
    buffers: list[tuple[Buffer, str]] = []
    for name, data in document.joins.items():
        join, slash, run = name.rpartition('/')
        parts = split(bytes(data))
        if not slash or not isinstance(parts, dict) or not {'forks', 'print'} <= parts.keys():
            raise ValueError(f'its join buffer {name!r} cannot be read')
        buffer = Buffer(join, run, _forks(from_json(parts['forks'])), loaded=False)
        if 'accumulator' in parts:
            buffer.accumulator = bytes(parts['accumulator'])
            buffer.cancelled = from_json(parts.get('cancelled', b'false')) is True
        else:
            buffer.items = elements(bytes(parts.get('items', b'[]')))
            buffer.stored = len(buffer.items)
        buffers.append((buffer, from_json(parts['print'])))
    return buffers


def _forks(stored: Any) -> Forks:
    try:
        return tuple(ForkItem(str(fork), str(run), int(branch)) for fork, run, branch in stored)
    except (TypeError, ValueError):
        raise ValueError(f'a fork stack cannot be read: {stored!r:.80}') from None
