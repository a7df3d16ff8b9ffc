r"""What changed between two versions of a document, in the form that is stored.

A delta is one JSON object, UTF-8, its keys in this order. `format` is always there, the others as
needed (the values are shortened here: the numbers are not theirs):

    {"format":1,
     "state":{"messages":[5120,0,",{\"role\":\"user\"}"],"draft":null,"count":2},
     "tasks":{"7":null,"8":57},
     "joins":{"collect/3":44},
     "next":21,
     "output":4,
     "order":{"state":["count"]},
     "values":[17,{"node":"summarise",…},{"items":[…],…},{"task":9,"fork":4},null]}

`state`, `tasks` and `joins` hold an operation for each key that changed; `next` and `output` are
one operation each; so is `state` when the whole state is replaced, or is not an object. An
operation is one of these:

- an integer: the part becomes the next element of `values`, which takes that many bytes. Elements
  stand in the order of the operations, and nothing but a comma is between two of them.
- a list of triples, flattened, `[offset, delete, text, …]`: at byte `offset` of the part, `delete`
  bytes are replaced by `text`. Triples ascend and do not overlap; offsets count in the part as it
  was. `text` is a piece of the new JSON text, written as a JSON string.
- `null`: the key is removed.

Removals come first, then splices, then `values`. A key that is new goes to the end of its object;
one that exists keeps its place. Last of all, each key that `order` lists is moved to the end of its
object, in the order of the list. When a state that is replaced whole is an object, its members are
parts from then on. `values` is always the last key: the delta then ends with `]}`.

A delta that changes nothing, `{"format":1}`, need not be written, but may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from .parts import Part, Tail, added, name_of, no_parts, split, wrong_start
from .splices import triples

__all__ = (
    'Change',
    'new_state',
    'operation',
    'operations',
    'read_head',
    'state_operations',
)

_SHORT = 32
"""A part up to this many bytes is set, not spliced: about as small, and easier to read."""
_STARTS = (b'{"format":1,', b'{"format":1}')
_VALUES = b',"values":['


@dataclass(slots=True)
class Change:
    """What a commit changes in a document. What is left out stays as it is."""

    state: bytes | dict[str, bytes | Tail] | None = None
    """The whole new state: when it is a JSON object, all its members in order (those that did not
    change as well), else its JSON text."""
    tasks: dict[str, bytes | None] = field(default_factory=no_parts)
    """Tasks that were made or changed. `None` removes one; it is an error if it is not there."""
    joins: dict[str, bytes | Tail | None] = field(default_factory=no_parts)
    """Join buffers, as `tasks`; a tail is what a buffer's array, its last member, has got."""
    next: bytes | None = None
    """The counters."""
    output: bytes | None = None
    """The output, once the run has ended."""


def new_state(state: bytes | dict[str, bytes | Tail]) -> bytes | Mapping[str, bytes | Tail]:
    """The state of a change, split when it is an object."""
    return state if isinstance(state, dict) else split(state)


def operation(old: Part | None, new: bytes, values: list[Part | memoryview]) -> bytes:
    """The operation that makes `new` of `old`: set or splice, whichever is smaller.

    Args:
        old: The part as it is; `None` when it is not there.
        new: The part as it will be.
        values: The values of the delta so far; gets `new` when it is set.
    """
    if old is not None and len(new) > _SHORT:
        stored = triples(old, new)
        if stored is not None:
            return stored
    values.append(new)
    return b'%d' % len(new)


def operations(
    parts: Mapping[str, Part],
    changes: Mapping[str, bytes | Tail | None],
    values: list[Part | memoryview],
) -> list[bytes]:
    """The operations, with their keys, for the tasks or joins that differ.

    Raises:
        ValueError: One is removed that is not there, or a tail does not fit its part.
    """
    found: list[bytes] = []
    for key, new in changes.items():
        old = parts.get(key)
        if new is None:
            if old is None:
                raise ValueError(f'{key!r} is removed, but is not there')
            found.append(name_of(key) + b':null')
        elif isinstance(new, Tail):
            found += _extension(key, old, new)
        elif new != old:
            found.append(b'%b:%b' % (name_of(key), operation(old, new, values)))
    return found


def state_operations(
    old: dict[str, Part], new: Mapping[str, bytes | Tail], values: list[Part | memoryview]
) -> tuple[list[bytes], list[str]]:
    """The operations for the members of the state that differ, and the keys to move to the end.

    Raises:
        ValueError: A tail does not fit its part.
    """
    wanted = list(new)
    found: list[bytes] = []
    moved: list[str] = []
    if list(old) != wanted:
        found += [name_of(key) + b':null' for key in old if key not in new]
        moved = _moved([key for key in old if key in new], wanted, old)
    for key, part in new.items():
        was = old.get(key)
        if isinstance(part, Tail):
            if was is not None:
                found += _extension(key, was, part)
                continue
            part = b'[%b]' % added(was, part)
        if part != was:
            found.append(b'%b:%b' % (name_of(key), operation(was, part, values)))
    return found, moved


def _extension(key: str, was: Part | None, tail: Tail) -> list[bytes]:
    """The operation for a part whose array has grown, if it has."""
    if was is None:
        raise ValueError(f'{key!r} has a tail, but is not there')
    text = added(was, tail)
    if not text:
        return []
    return [b'%b:[%d,0,%b]' % (name_of(key), len(was) - len(tail.end), to_json(text.decode()))]


def _moved(kept: list[str], wanted: list[str], old: Mapping[str, Part]) -> list[str]:
    """The fewest keys that, moved to the end, bring about the order that is wanted."""
    rest = iter([*kept, *(key for key in wanted if key not in old)])
    for at, key in enumerate(wanted):
        if key not in rest:  # consumes `rest` up to the key
            return wanted[at:]
    return []


def read_head(delta: bytes) -> tuple[dict[str, Any], int]:
    """A delta without its values, and where these start (0 when there are none).

    The values are not parsed: most of them are replaced by later deltas. What looks like the key
    `values` is it when the text before, closed by a brace, is JSON: in a string its quotes would be
    escaped, and deeper down one brace is not enough.

    Raises:
        NewerFormatError: It was written in a newer format.
        ValueError: It is not a delta.
    """
    if not delta.startswith(_STARTS):
        raise wrong_start(delta)
    cut = delta.find(_VALUES)
    while cut >= 0:
        head = _parsed(delta[:cut] + b'}')
        if head is not None:
            return head, cut + len(_VALUES)
        cut = delta.find(_VALUES, cut + 1)
    head = _parsed(delta)
    if head is None:
        raise ValueError('not JSON')
    return head, 0


def _parsed(text: bytes) -> dict[str, Any] | None:
    """A JSON object; `None` when the text is none."""
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return json.loads(text.decode())  # reads a lone surrogate in a key, too
    except (ValueError, RecursionError):
        return None
