"""A run as one JSON document.

The document is one JSON object in compact UTF-8, with its keys in this order; `output` is there
only when the run has ended:

    {"format":1,"state":…,"tasks":{…},"joins":{…},"next":{"task":8,"fork":4},"output":…}

In memory it is kept as *parts*: the JSON text of the state (of every member of the state, when
that is an object), of every task, of every join, of `next` and of `output`. A part is never decoded
here, so what is read back is byte for byte what was written: `1`, `1.0` and `true`, `0.0` and
`-0.0`, key order and escapes stay as they were. What is written between two full documents is
described in `graphkeep.delta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from .delta import (
    Change,
    new_state,
    operation,
    operations,
    read_head,
    state_operations,
)
from .parts import (
    FORMAT,
    NewerFormatError,
    Part,
    Tail,
    added,
    after,
    check_utf8,
    element,
    grown,
    members,
    name_of,
    render,
    rendered_size,
    split,
    wrong_start,
)
from .splices import splice

__all__ = (
    'FORMAT',
    'SMALL',
    'Change',
    'Document',
    'NewerFormatError',
    'Part',
    'Tail',
    'replay',
    'wants_full',
)

SMALL = 512
"""A document up to this many bytes is written whole: that takes less time than finding out what
changed, and than applying it. Far beyond it a delta is smaller by much."""
_ROW = 200
"""What reading one more delta costs, in bytes of a document that could be read in that time."""
_READ = 4
"""Reading a run costs at most this many times the size of its document."""

_START = b'{"format":1,"state":'
_OUTPUT = b',"output":'
_FRAME = len(_START + b',"tasks":,"joins":,"next":}')
_COMMA = ord(',')
_OBJECTS = frozenset({'state', 'tasks', 'joins'})
_SINGLE = frozenset({'state', 'next', 'output'})


class Document:
    """One version of a run, as encoded parts.

    A commit computes a delta, writes it, and advances the document once it is stored:

        data = document.delta(change)
        if data and wants_full(document.size_after(change), len(data), full=…, deltas=…, since=…):
            data = document.to_json(change)
        …
        document.advance(change)
    """

    __slots__ = ('_objects', 'joins', 'next', 'output', 'state', 'tasks')

    def __init__(
        self,
        *,
        state: bytes | dict[str, Part],
        tasks: dict[str, bytes] | None = None,
        joins: dict[str, Part] | None = None,
        next: bytes = b'{"task":0,"fork":0}',  # noqa: A002 - the key's name in the document
        output: bytes | None = None,
    ) -> None:
        self.state: Part | dict[str, Part] = _state(state)
        """The members of the state when it is a JSON object, in order; else its JSON text."""
        self.tasks: dict[str, bytes] = {} if tasks is None else tasks
        """Pending tasks by id."""
        self.joins: dict[str, Part] = {} if joins is None else joins
        """Join buffers by id."""
        self.next = next
        """The counters."""
        self.output = output
        """The output; `None` until the run has ended."""
        self._objects: int | None = None
        """Bytes of state, tasks and joins; `None` when they have to be counted."""

    @classmethod
    def from_json(cls, data: bytes) -> Document:
        """Split a full snapshot into parts. Keeps the bytes of every part.

        Raises:
            NewerFormatError: It was written in a newer format.
            ValueError: It is damaged; the message is the reason.
        """
        if not data.startswith(_START):
            raise wrong_start(data)
        check_utf8(data)
        text = data.decode('latin-1')  # one byte a character, so that positions are those of bytes
        at = len(_START)
        state: Any
        if text.startswith('{', at):
            state, at = members(data, text, at)
        else:
            state, at = element(data, text, at)
        tasks, at = members(data, text, after(text, ',"tasks":', at))
        joins, at = members(data, text, after(text, ',"joins":', at))
        counters, at = element(data, text, after(text, ',"next":', at))
        output = None
        if text.startswith(',"output":', at):
            output, at = element(data, text, at + len(_OUTPUT))
        if text[at:] != '}':
            raise ValueError(f'not a document: unexpected text at byte {at}')
        return cls(
            state=state,
            tasks=tasks,
            joins=cast('dict[str, Part]', joins),
            next=counters,
            output=output,
        )

    def to_json(self, change: Change | None = None) -> bytes:
        """The full snapshot, of the document as it is, or as `change` would make it.

        Raises:
            ValueError: `change` does not fit the document.
        """
        state: Mapping[str, Part | Tail] | Part = self.state
        tasks, joins, counters, output = self.tasks, self.joins, self.next, self.output
        if change is not None:
            if change.state is not None:
                state = new_state(change.state)
            tasks, joins = _merged(tasks, change.tasks), _merged(joins, change.joins)
            counters, output = change.next or counters, change.output or output
        pieces: list[Part | memoryview] = [_START]
        render(state, pieces, self.state)
        pieces.append(b',"tasks":')
        render(tasks, pieces)
        pieces.append(b',"joins":')
        render(joins, pieces, self.joins)
        pieces += (b',"next":', counters)
        if output is not None:
            pieces += (_OUTPUT, output)
        pieces.append(b'}')
        return b''.join(pieces)

    @property
    def size(self) -> int:
        """Bytes of `to_json()`. Kept up to date by `advance`, counted again after `apply`."""
        if self._objects is None:
            self._objects = (
                rendered_size(self.state) + rendered_size(self.tasks) + rendered_size(self.joins)
            )
        output = 0 if self.output is None else len(_OUTPUT) + len(self.output)
        return _FRAME + self._objects + len(self.next) + output

    def size_after(self, change: Change) -> int:
        """Bytes of `to_json(change)`.

        Raises:
            ValueError: `change` does not fit the document.
        """
        size = self.size + _growth(self.tasks, change.tasks) + _growth(self.joins, change.joins)
        if change.state is not None:
            size += _state_growth(self.state, new_state(change.state))
        if change.next is not None:
            size += len(change.next) - len(self.next)
        if change.output is not None:
            size += len(change.output)
            size += len(_OUTPUT) if self.output is None else -len(self.output)
        return size

    def has_state(self, state: bytes | Mapping[str, bytes | Tail]) -> bool:
        """Whether the state is byte for byte, and key by key in this order, what it is already."""
        if isinstance(state, bytes) or not isinstance(self.state, dict):
            return state == self.state
        if list(state) != list(self.state):
            return False
        for key, part in state.items():
            if part.count if isinstance(part, Tail) else part != self.state[key]:
                return False
        return True

    def delta(self, change: Change) -> bytes:
        """The delta from the document as it is to what `change` makes of it; changes nothing.

        Returns:
            The delta, or `b''` when `change` changes no byte.

        Raises:
            ValueError: `change` does not fit the document: a task to remove that is not there, or a
                `Tail` for a part that is not an array.
        """
        head: list[bytes] = []
        values: list[Part | memoryview] = []
        order = b''
        if change.state is not None:
            new = new_state(change.state)
            if not isinstance(new, bytes) and isinstance(self.state, dict):
                found, moved = state_operations(self.state, new, values)
                if found:
                    head.append(b',"state":{%b}' % b','.join(found))
                if moved:
                    order = b',"order":{"state":[%b]}' % b','.join(map(name_of, moved))
            elif isinstance(new, bytes) and not isinstance(self.state, dict):
                if new != self.state:
                    head.append(b',"state":' + operation(self.state, new, values))
            else:
                whole: list[Part | memoryview] = []
                render(new, whole)
                values.append(b''.join(whole))
                head.append(b',"state":%d' % len(values[-1]))
        for name, old, changes in (
            (b'tasks', self.tasks, change.tasks),
            (b'joins', self.joins, change.joins),
        ):
            if changes and (found := operations(old, changes, values)):
                head.append(b',"%b":{%b}' % (name, b','.join(found)))
        if change.next is not None and change.next != self.next:
            head.append(b',"next":' + operation(self.next, change.next, values))
        if change.output is not None and change.output != self.output:
            head.append(b',"output":' + operation(self.output, change.output, values))
        if not head and not order:
            return b''
        end = b',"values":[%b]}' % b','.join(values) if values else b'}'
        return b'{"format":%d%b%b%b' % (FORMAT, b''.join(head), order, end)

    def advance(self, change: Change, *, size: int | None = None) -> None:
        """Make `change` in place. The document keeps the bytes of `change`, without copying.

        Args:
            change: What changes.
            size: What `size_after(change)` gave, where it has been asked for.

        Raises:
            ValueError: `change` does not fit the document, which is left as it was.
        """
        size = self.size_after(change) if size is None else size
        if change.state is not None:
            new = new_state(change.state)
            if isinstance(new, bytes):
                self.state = new
            else:
                was: dict[str, Part] = self.state if isinstance(self.state, dict) else {}
                self.state = {key: grown(was.get(key), part) for key, part in new.items()}
        for key, task in change.tasks.items():
            if task is None:
                del self.tasks[key]
            else:
                self.tasks[key] = task
        for key, buffer in change.joins.items():
            if buffer is None:
                del self.joins[key]
            else:
                self.joins[key] = grown(self.joins.get(key), buffer)
        self.next = change.next or self.next
        self.output = change.output or self.output
        self._objects = 0
        self._objects = size - self.size

    def apply(self, delta: bytes) -> None:
        """Apply a stored delta in place. After an error the document is of no more use.

        What is inside a part is not looked at: whoever decodes the part finds damage there.

        Raises:
            NewerFormatError: It was written in a newer format.
            ValueError: It is damaged, or does not fit this document; the message is the reason.
        """
        head, at = read_head(delta)
        self._objects = None
        values: list[tuple[dict[str, Any] | None, str, int]] = []
        for name, step in head.items():
            if name in _OBJECTS and isinstance(step, dict):
                self._apply_object(name, cast('dict[str, Any]', step), values)
            elif name in _SINGLE:
                if type(step) is int:
                    values.append((None, name, step))
                else:
                    part = _spliced(getattr(self, name), step, name)
                    setattr(self, name, part if name == 'state' else bytes(part))
            elif name != 'format' and name != 'order':
                raise ValueError(f'unknown key, or not an object: {name!r}')
        if at or values:
            self._set_all(values, delta, at)
        if 'order' in head:
            self._reorder(head['order'])

    def _apply_object(
        self,
        name: str,
        steps: dict[str, Any],
        values: list[tuple[dict[str, Any] | None, str, int]],
    ) -> None:
        """Remove and splice parts of the state, tasks or joins; add to `values` what is set."""
        parts: dict[str, Any] = getattr(self, name)
        if name == 'state' and not isinstance(self.state, dict):
            raise ValueError('the state is not an object')
        for key, step in steps.items():
            if type(step) is int:
                values.append((parts, key, step))
            elif step is not None:
                part = _spliced(parts.get(key), step, name, key)
                parts[key] = bytes(part) if name == 'tasks' else part
            elif parts.pop(key, None) is None:
                raise ValueError(f'{name} {key!r} is removed, but is not there')

    def _set_all(
        self, values: list[tuple[dict[str, Any] | None, str, int]], delta: bytes, at: int
    ) -> None:
        """Set parts to the values of a delta, which start at `at`."""
        last = len(delta) - 2
        for parts, key, size in values:
            end = at + size
            if size < 1 or end > last or (end < last and delta[end] != _COMMA):
                break
            if parts is not None:
                parts[key] = delta[at:end]
            elif key == 'state':
                self.state = _state(delta[at:end])
            else:
                setattr(self, key, delta[at:end])
            at = end + 1
        if at != last + 1 or delta[last:] != b']}':
            raise ValueError('the lengths of its values do not fit')

    def _reorder(self, order: Any) -> None:
        state = self.state
        keys: Any = None
        if isinstance(order, dict) and len(cast('dict[str, Any]', order)) == 1:
            keys = cast('dict[str, Any]', order).get('state')
        if not isinstance(keys, list) or not isinstance(state, dict):
            raise ValueError('the order is not one of the state')
        for key in cast('list[Any]', keys):
            if not isinstance(key, str) or key not in state:
                raise ValueError(f'the order has {key!r}, but the state has not')
            state[key] = state.pop(key)


def replay(full: bytes, deltas: Iterable[bytes]) -> Document:
    """The document that a full snapshot and the deltas after it make.

    Raises:
        NewerFormatError: One of them was written in a newer format.
        ValueError: One of them is damaged. To name it, apply them one by one.
    """
    document = Document.from_json(full)
    for delta in deltas:
        document.apply(delta)
    return document


def wants_full(size: int, delta: int, *, full: int, deltas: int, since: int) -> bool:
    """Whether a commit should write a full snapshot instead of its delta.

    Yes when the full one is no larger, the cost of one more row included; and when reading the run
    (its newest full snapshot and every delta after it) would cost over four times its document,
    which it also does when the document has shrunk much.

    Args:
        size: Bytes of the document after the commit.
        delta: Bytes of the delta of the commit.
        full: Bytes of the newest full snapshot.
        deltas: Number of deltas after it.
        since: Bytes of these deltas.
    """
    cost = delta + _ROW
    return size <= cost or full + since + deltas * _ROW + cost > _READ * size


def _state(state: bytes | dict[str, Part]) -> bytes | dict[str, Part]:
    """A state as a document keeps it: an object split into its members."""
    return state if isinstance(state, dict) else cast('bytes | dict[str, Part]', split(state))


def _spliced(part: Any, step: Any, name: str, key: str = '') -> bytearray:
    """A part after an operation that should be a list of triples."""
    if type(step) is not list:
        raise ValueError(f'unknown operation on {name} {key!r}')
    if not isinstance(part, (bytes, bytearray)):
        raise ValueError(f'{name} {key!r} is spliced, but is not there')
    return splice(part, cast('list[Any]', step))


def _merged(
    parts: Mapping[str, Part], changes: Mapping[str, bytes | Tail | None]
) -> Mapping[str, Part | Tail]:
    if not changes:
        return parts
    every: dict[str, Part | Tail | None] = {**parts, **changes}
    return {key: part for key, part in every.items() if part is not None}


def _growth(parts: Mapping[str, Part], changes: Mapping[str, bytes | Tail | None]) -> int:
    """How many bytes longer an object becomes."""
    growth, count = 0, len(parts)
    for key, new in changes.items():
        old = parts.get(key)
        if isinstance(new, Tail):
            growth += len(added(old, new))
        elif new is not None and old is not None:
            growth += len(new) - len(old)
        elif new is not None:
            growth += len(new) + len(name_of(key)) + 2
            count += 1
        elif old is not None:
            growth -= len(old) + len(name_of(key)) + 2
            count -= 1
        else:
            raise ValueError(f'{key!r} is removed, but is not there')
    return growth + (not count) - (not parts)  # an empty object has a brace, but no comma, to spare


def _state_growth(old: Part | Mapping[str, Part], new: Part | Mapping[str, bytes | Tail]) -> int:
    """How many bytes longer the state becomes."""
    if (
        isinstance(old, (bytes, bytearray))
        or isinstance(new, (bytes, bytearray))
        or old.keys() != new.keys()
    ):
        return rendered_size(new, old) - rendered_size(old)
    growth = 0
    for key, part in new.items():
        was = old[key]
        growth += len(added(was, part)) if isinstance(part, Tail) else len(part) - len(was)
    return growth
