"""Pending tasks, as they stand in a document. Pure; both front ends read and write the same ones.

A task: `{"node":…,"inputs":…,"forks":[[fork, run, branch], …],"born":…}`; with `"print":…`
where it is in forks,
`"memo":{name:value}` for what `once` has kept, for a stream that has begun `"sent":…,"run":…`, and
where `wait_for` was called `"waits":[name, …]` for what it waits for and
`"answers":{name:{"answer":…}}` (or `{"expired":…}`) for what it was given and has used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json

from .document import Document
from .parts import no_parts, split, text_of

__all__ = (
    'START',
    'ForkItem',
    'Forks',
    'Task',
    'counters',
    'encode_task',
    'read_counters',
    'read_forks',
    'read_tasks',
    'request_id_of',
)


class ForkItem(NamedTuple):
    """One level of a fork stack."""

    fork: str
    """The fork node."""
    run: str
    """Which run of it: unique in the graph run."""
    branch: int
    """Which of its branches."""


Forks = tuple[ForkItem, ...]
"""Where in the nested forks something is, outermost first."""

START: Forks = (ForkItem('__start__', '0', 0),)
"""The fork stack of what follows the start, and of the nodes of a 1.x graph: such a run can go on
as a builder graph."""


@dataclass(slots=True)
class Task:
    """A pending or running execution of a node."""

    id: str
    node: str
    inputs: bytes
    """Its inputs as JSON: every attempt starts from these."""
    forks: Forks
    born: int
    """The epoch that created it; 0 for what a run was created with, whose epoch the database
    chose.
    """
    fingerprint: str | None = None
    """Of the forks it is in, if there are any: it changes when one of them is another one."""
    memo: dict[str, bytes] = field(default_factory=no_parts)
    """What its attempts have kept with `once`, as JSON."""
    sent: int | None = None
    """For a stream that maps directly: how many of its items were sent on."""
    stream_run: str | None = None
    """For such a stream: the run of the map's fork."""

    waits: tuple[str, ...] = ()
    """The names of the requests that its last attempt waited for. Whether they are open the store
    tells; one that it does not know is asked anew (of a fork)."""
    answers: dict[str, bytes] = field(default_factory=no_parts)
    """What its requests were given, of those before the ones it waits for, by name."""

    @property
    def run_of_map(self) -> str:
        """`stream_run`, of a stream that has begun."""
        assert self.stream_run is not None
        return self.stream_run


def encode_task(task: Task) -> bytes:
    """The JSON of a task."""
    memo = b',"memo":' + text_of(task.memo) if task.memo else b''
    print_ = b',"print":' + to_json(task.fingerprint) if task.fingerprint is not None else b''
    stream = b''
    if task.sent is not None:
        stream = b',"sent":%d,"run":%b' % (task.sent, to_json(task.stream_run))
    waits = b',"waits":' + to_json(task.waits) if task.waits else b''
    answers = b',"answers":' + text_of(task.answers) if task.answers else b''
    return b'{"node":%b,"inputs":%b,"forks":%b,"born":%d%b%b%b%b%b}' % (
        to_json(task.node),
        task.inputs,
        _START if task.forks == START else to_json(task.forks),
        task.born,
        print_,
        memo,
        stream,
        waits,
        answers,
    )


def request_id_of(task_id: str, name: str) -> str:
    """The id of a request: one in its run, and the same on every attempt."""
    return f'{task_id}:{name}'


_START = to_json(START)


def read_tasks(document: Document) -> list[Task]:
    """The pending tasks, oldest first.

    Raises:
        ValueError: The document is damaged.
    """
    tasks = [_read_task(task_id, data) for task_id, data in document.tasks.items()]
    tasks.sort(key=lambda task: int(task.id))
    return tasks


def _read_task(task_id: str, data: bytes) -> Task:
    parts = split(data)
    if not isinstance(parts, dict) or not {'node', 'inputs', 'forks', 'born'} <= parts.keys():
        raise ValueError(f'its task {task_id!r} has no node, inputs, forks or epoch')
    node, born, print_, sent, run = (
        from_json(parts.get(name, b'null')) for name in ('node', 'born', 'print', 'sent', 'run')
    )
    memo = split(bytes(parts.get('memo', b'{}')))
    waits = from_json(parts.get('waits', b'[]'))
    answers = split(bytes(parts.get('answers', b'{}')))
    if (
        not isinstance(node, str)
        or not isinstance(born, int)
        or not isinstance(memo, dict)
        or not isinstance(answers, dict)
        or not isinstance(waits, list)
        or not task_id.isdecimal()
        or (sent is None) != (run is None)
    ):
        raise ValueError(f'its task {task_id!r} cannot be read')
    return Task(
        task_id,
        node,
        bytes(parts['inputs']),
        read_forks(parts['forks']),
        born,
        print_,
        {name: bytes(value) for name, value in memo.items()},
        sent,
        run,
        tuple(map(str, cast('list[Any]', waits))),
        {name: bytes(value) for name, value in answers.items()},
    )


def read_forks(data: bytes | bytearray) -> Forks:
    """A fork stack from JSON. Raises `ValueError` when it is none."""
    stored: Any = from_json(data)
    try:
        return tuple(ForkItem(str(fork), str(run), int(branch)) for fork, run, branch in stored)
    except (TypeError, ValueError):
        raise ValueError(f'a fork stack cannot be read: {stored!r:.80}') from None


def counters(next_task: int, next_fork: int) -> bytes:
    """The JSON of the document's `next`."""
    return b'{"task":%d,"fork":%d}' % (next_task, next_fork)


def read_counters(document: Document) -> tuple[int, int]:
    """The numbers that the next task and the next run of a fork will have.

    Raises:
        ValueError: The document is damaged.
    """
    found: Any = from_json(document.next)
    if isinstance(found, dict):
        held = cast('Mapping[str, Any]', found)
        task, fork = held.get('task'), held.get('fork')
        if isinstance(task, int) and isinstance(fork, int):
            return task, fork
    raise ValueError('its counters cannot be read')
