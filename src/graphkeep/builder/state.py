"""The state of a running graph: the caller's object, the copies that parallel steps work on, and
how what they did comes together. Pure.

A step that is alone works on the caller's object. Any other gets a copy when it first asks for the
state, decoded from the committed bytes; what it changed is merged when its end is settled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from ..codec import Codec, Seen
from ..document import Document
from ..parts import Part, Tail, added
from .merge import MISSING, Merger, put

__all__ = ('Copy', 'Left', 'StateKeeper')


@dataclass(slots=True)
class Copy:
    """A step's own copy of the state."""

    value: Any
    seen: Seen
    base: bytes | dict[str, bytes]
    """The state it was made from: the base of the merge."""


@dataclass(slots=True)
class Left:
    """What a step has left in its copy."""

    base: bytes | dict[str, bytes]
    """The state the copy was made from."""
    parts: bytes | dict[str, bytes | Tail]
    """The copy as it was when the step ended, encoded; of a state by field, what has changed."""
    seen: Seen
    changed: set[str]
    """The top-level keys whose bytes are other ones; `{''}` for a state that is no object."""
    value: Any
    """The copy; of a state by field, the values of `changed` by name."""


class StateKeeper:
    """The state of one run: the live object, and its committed bytes in the run's document."""

    def __init__(self, codec: Codec[Any], merger: Merger, document: Document, live: Any) -> None:
        """Take over a state.

        Args:
            codec: Of the declared state type.
            merger: Of the same type.
            document: The run's document; its state is what is committed.
            live: The caller's object, equal to the document's state.
        """
        self._codec = codec
        self._merger = merger
        self._document = document
        self.live = live
        self._seen = codec.seen(live)
        self._settled: bytes | dict[str, bytes | Tail] | None = None
        self._settled_seen = self._seen
        self._writers: dict[str, str] = {}
        """Which step changed a field last, for naming both sides of a conflict."""

    # --- before and during a step -----------------------------------------------------------------

    def copy(self) -> Copy:
        """The committed state, for a step that is not alone."""
        committed = self._document.state
        value = self._codec.decode(committed)
        return Copy(value, self._codec.seen(value), _frozen(committed))

    def left(self, copy: Copy) -> Left | None:
        """What a step that has ended has changed in its copy; `None` if nothing.

        Raises:
            LossyStateError: What it left there would not come back.
        """
        encoded = self._codec.encode(copy.value, previous=copy.base, seen=copy.seen)
        changed = _changed(copy.base, encoded.parts)
        if not changed:
            return None
        value, parts = copy.value, encoded.parts
        if self._codec.by_field and isinstance(parts, dict):
            value = {name: _get(value, name) for name in changed}
            parts = {name: part for name, part in parts.items() if name in changed}
        return Left(copy.base, parts, encoded.seen, changed, value)

    # --- settling ---------------------------------------------------------------------------------

    def settle_left(self, left: Left, step: str) -> None:
        """Merge what a step did to its copy into the live state.

        Args:
            left: What it did.
            step: The step, as conflicts name it.

        Raises:
            StateConflictError: Another step changed the same field, and no rule says what to do.
            LossyStateError: What a rule made of both would not come back.
        """
        theirs = _changed(left.base, self._current())
        if self._codec.by_field and isinstance(left.base, dict):
            self._settle_fields(left, left.base, step, theirs)
        elif not theirs:
            assume(self, left.value)
            self._settled, self._settled_seen = left.parts, left.seen
        else:
            base = self._codec.decode(left.base)
            other = self._writers.get('', 'another step')
            merged = self._merger.merge(base, left.value, self.live, steps=(step, other))
            assume(self, merged)
            self.settle_live(step)
        self._writers.update(dict.fromkeys(left.changed, step))
        self._writers[''] = step

    def _settle_fields(
        self, left: Left, base: dict[str, bytes], step: str, theirs: set[str]
    ) -> None:
        """Settle the fields that a step has changed; no other is looked at."""
        parts, settled = cast('dict[str, bytes | Tail]', left.parts), self._settled_parts()
        same_keys = left.changed <= parts.keys() & settled.keys()
        merged: set[str] = set()
        for name in left.changed:
            mine, part = left.value[name], parts.get(name)
            if isinstance(part, Tail):
                # Both sides only grew. The elements stay the objects that were seen.
                mine = [*_get(self.live, name), *mine[part.start :]]
                merged.add(name)
            elif name in theirs:
                was = self._codec.decode_field(name, base[name]) if name in base else MISSING
                other = self._writers.get(name, 'another step')
                mine = self._merger.merge_field(
                    name, was, mine, _get(self.live, name), steps=(step, other)
                )
                merged.add(name)
            elif part is not None:
                settled[name] = part
            put(self.live, name, mine)
        if not same_keys:
            self.settle_live(step)  # which knows the order of the keys
            return
        encoded = self._codec.encode_fields(
            self.live, merged, previous=self._document.state, seen=self._seen
        )
        self._settled = {**settled, **cast('dict[str, bytes | Tail]', encoded.parts)}
        self._settled_seen = self._settled_seen.updated(encoded.seen)

    def settle_live(self, step: str) -> bool:
        """Take the live state as it is now; gives whether it differs from what was settled
        before.
        """
        before = self._document.state if self._settled is None else self._settled
        encoded = self._codec.encode(self.live, previous=self._document.state, seen=self._seen)
        changed = _changed(before, encoded.parts)
        if not (changed or _in_another_order(before, encoded.parts)):
            return False
        self._writers.update(dict.fromkeys(changed, step))
        self._settled, self._settled_seen = encoded.parts, encoded.seen
        return True

    def mark(self) -> tuple[bytes | dict[str, bytes | Tail] | None, Seen]:
        """Where `restore` can come back to."""
        return self._settled, self._settled_seen

    def restore(self, mark: tuple[bytes | dict[str, bytes | Tail] | None, Seen]) -> None:
        """Put the live state back to what had been settled at `mark`."""
        self._settled, _ = mark
        value = self._codec.decode(_whole(self._document.state, self._settled))
        assume(self, value)
        # The elements of append-only fields are other objects now.
        seen = self._codec.seen(value)
        self._settled_seen = seen
        if self._settled is None:
            self._seen = seen
        else:
            committed = self._codec.decode(self._document.state)
            self._seen = self._codec.seen(committed)

    def restore_committed(self) -> None:
        """Put the live state back to what is committed."""
        self.restore((None, self._seen))

    @property
    def change(self) -> bytes | dict[str, bytes | Tail] | None:
        """The settled state for the next commit, or `None` if it is what is committed."""
        return self._settled

    def committed(self) -> None:
        """The settled state has been committed and is in the document now."""
        self._seen = self._settled_seen
        self._settled = None

    def _settled_parts(self) -> dict[str, bytes | Tail]:
        """The state by field, as the next commit would write it."""
        if self._settled is not None:
            return dict(cast('dict[str, bytes | Tail]', self._settled))
        state = cast('dict[str, Part]', self._document.state)
        return {name: self._seen.tail(name) or bytes(part) for name, part in state.items()}

    def _current(self) -> Part | Mapping[str, Part | Tail]:
        """The state as it is settled now; a tail is there only for a list that has grown."""
        state, settled = self._document.state, self._settled
        if not isinstance(settled, dict):
            return state if settled is None else settled
        old: Mapping[str, Part] = state if isinstance(state, dict) else {}
        return {
            name: old[name] if isinstance(part, Tail) and not part.count else part
            for name, part in settled.items()
        }


def assume(keeper: StateKeeper, value: Any) -> None:
    """Make the caller's object hold what `value` holds, past its `__setattr__`; frozen objects
    too.
    """
    live = keeper.live
    if live is value:
        return
    if type(live) is type(value):
        if isinstance(live, dict):
            held = cast('dict[Any, Any]', live)
            new = dict(cast('dict[Any, Any]', value))
            held.clear()
            held.update(new)
            return
        if isinstance(live, list):
            cast('list[Any]', live)[:] = value
            return
        if isinstance(live, set):
            held_set = cast('set[Any]', live)
            new_set = set(cast('set[Any]', value))
            held_set.clear()
            held_set.update(new_set)
            return
        if dataclasses.is_dataclass(live):
            for each in dataclasses.fields(live):
                if hasattr(value, each.name):
                    object.__setattr__(live, each.name, getattr(value, each.name))
            return
        if isinstance(live, BaseModel):
            fields = cast('dict[str, Any]', live.__dict__)
            fields.clear()
            fields.update(value.__dict__)
            extra = value.__pydantic_extra__
            object.__setattr__(live, '__pydantic_extra__', None if extra is None else dict(extra))
            return
    keeper.live = value


def _get(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return cast('dict[str, Any]', value).get(name, MISSING)
    return getattr(value, name, MISSING)


def _frozen(state: Part | Mapping[str, Part]) -> bytes | dict[str, bytes]:
    """The state as it is now: parts that grow in place are copied."""
    if isinstance(state, Mapping):
        return {key: bytes(part) for key, part in state.items()}
    return bytes(state)


def _changed(
    base: Part | Mapping[str, Part | Tail], new: Part | Mapping[str, Part | Tail]
) -> set[str]:
    """The top-level keys that differ; `{''}` for a state that is no object."""
    if isinstance(base, (bytes, bytearray)) or isinstance(new, (bytes, bytearray)):
        return set() if base == new else {''}
    changed = base.keys() - new.keys()
    for key, part in new.items():
        was = base.get(key)
        grown = isinstance(part, Tail) and not isinstance(was, Tail)
        if part.count if grown else part != was:
            changed.add(key)
    return changed


def _in_another_order(one: Part | Mapping[str, Any], other: Part | Mapping[str, Any]) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping) and list(one) != list(other)


def _whole(
    state: Part | dict[str, Part], settled: bytes | dict[str, bytes | Tail] | None
) -> Part | Mapping[str, Part]:
    """A settled state with its tails put on what is committed."""
    if not isinstance(settled, dict):
        return state if settled is None else settled
    old: Mapping[str, Part] = state if isinstance(state, dict) else {}
    return {key: _grown(old.get(key, b'[]'), part) for key, part in settled.items()}


def _grown(old: Part, part: bytes | Tail) -> Part:
    if not isinstance(part, Tail):
        return part
    return b''.join((memoryview(old)[: -len(part.end)], added(old, part), part.end))
