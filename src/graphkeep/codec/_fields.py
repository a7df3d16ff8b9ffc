"""One top-level field of a value: how it is dumped, and how much of it is loaded back."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import LossyStateError
from ..parts import Part, Tail
from ._certain import Certain
from ._coder import Coder
from ._exact import difference
from ._loss import undumpable

__all__ = ('Field', 'Listed', 'dumped')

_SAMPLE = 64
"""Of so many old elements of an `AppendOnly` list, one is compared by identity."""

_ADVICE = 'AppendOnly lists may only grow: drop the annotation if your graph edits this one.'


@dataclass(frozen=True, slots=True)
class Listed:
    """What an `AppendOnly` field held."""

    items: tuple[Any, ...]
    """The elements. That they stay alive is what makes it safe to compare identities."""
    last: bytes
    """The encoded last element."""


@dataclass(frozen=True, slots=True)
class Field:
    """How the values of one field become a part."""

    name: str
    path: str
    """What it is called in errors."""
    coder: Coder
    certain: Certain
    """Whether a value needs no loading back."""
    certain_item: Certain
    """The same for an element, when it is a list."""
    append_only: bool
    """A list that only grows."""
    by_element: bool
    """A list whose elements may need loading back: only those that changed are."""
    always: bool
    """Looked at even when its bytes have not changed: cheap, or something in it is never dumped."""
    required: bool
    """A typed dict may not leave it out."""
    classes: set[type] = field(default_factory=set[type])
    """Exact classes of elements that were loaded back, or needed no loading."""

    def encode(self, item: Any, before: Part | None, *, everything: bool) -> bytes:
        """The JSON of a value.

        Args:
            item: The value.
            before: The JSON of the version before.
            everything: Load it back, whatever it is.

        Raises:
            LossyStateError: It would not come back as it is.
        """
        if self.by_element and type(item) is list:
            return self._encode_elements(cast('list[Any]', item), before, everything=everything)
        try:
            data = self.coder.dump(item)
        except Exception as error:  # whatever a user's serializer raises
            raise undumpable(self.coder, item, self.path, error) from error
        # Looked at even when its bytes are what they were: another value may dump to the same.
        if everything or not self.certain(item):
            self.coder.prove(item, data, self.path)
        return data

    def _encode_elements(self, items: list[Any], before: Part | None, *, everything: bool) -> bytes:
        element = cast('Coder', self.coder.items)
        items = items.copy()
        pieces = _dumped_items(element, items, self.path)
        first, last = 0, len(pieces)
        # Of elements whose bytes are what they were, the class is looked at all the same: an
        # instance of a subclass may dump to the same.
        known = self.classes.issuperset(map(type, items))
        if before is not None and known and not everything and not self.always:
            first, last = _changed(pieces, before)
        self._prove_items(items[first:last], pieces[first:last], first, everything=everything)
        self.classes.update(map(type, items))
        return b''.join((b'[', b','.join(pieces), b']'))

    def _prove_items(
        self, items: Sequence[Any], pieces: Sequence[bytes], start: int, *, everything: bool
    ) -> None:
        if everything or not all(map(self.certain_item, items)):
            element = cast('Coder', self.coder.items)
            element.prove_items(items, pieces, self.path, start)

    def grow(
        self, items: Any, held: Listed | None, *, everything: bool
    ) -> tuple[bytes | Tail, Listed]:
        """The new elements of an `AppendOnly` list, or all of them when it was not seen before.

        Args:
            items: The list.
            held: What it held before.
            everything: Load all that is dumped back.

        Raises:
            LossyStateError: It did more than grow, or a new element would not come back as it is.
        """
        if type(items) is not list:
            raise LossyStateError(
                f'`{self.path}` is AppendOnly and must hold a list, not a '
                f'`{type(items).__qualname__}`. Nothing was written.',
                path=self.path,
            )
        element = cast('Coder', self.coder.items)
        current = tuple(cast('list[Any]', items))
        start = 0
        if held is not None:
            start = len(held.items)
            self._check_start(element, held, current)
            if len(current) == start:
                return Tail(start, b'', 0), held
        new = current[start:]
        pieces = _dumped_items(element, new, self.path, start)
        self._prove_items(new, pieces, start, everything=everything)
        text = b','.join(pieces)
        listed = Listed(current, pieces[-1] if pieces else b'')
        if held is None:
            return b''.join((b'[', text, b']')), listed
        return Tail(start, text, len(new)), listed

    def _check_start(self, element: Coder, held: Listed, current: tuple[Any, ...]) -> None:
        """Refuse a list that did more than grow."""
        old = held.items
        if len(current) < len(old):
            raise LossyStateError(
                f'`{self.path}` has become shorter: {len(old)} elements before, {len(current)} '
                f'now. Nothing was written. {_ADVICE}',
                path=self.path,
            )
        index = None
        if not _same_objects(old, current):
            index = _first_other(element, old, current, self.path)
        # The last old element is the one that may be filled in late, e.g. a request's instructions.
        if index is None and old and dumped(element, current[len(old) - 1], self.path) != held.last:
            index = len(old) - 1
        if index is not None:
            raise LossyStateError(
                f'`{self.path}[{index}]` has changed since it was stored. Nothing was written. '
                f'{_ADVICE}',
                path=f'{self.path}[{index}]',
            )

    def listed(self, items: Any) -> Listed:
        """What an `AppendOnly` list holds."""
        current = tuple(cast('list[Any]', items))
        element = cast('Coder', self.coder.items)
        return Listed(current, dumped(element, current[-1], self.path) if current else b'')


def dumped(coder: Coder, value: Any, path: str) -> bytes:
    """The JSON of a value.

    Raises:
        LossyStateError: It has none.
    """
    try:
        return coder.dump(value)
    except Exception as error:  # whatever a user's serializer raises
        raise undumpable(coder, value, path, error) from error


def _dumped_items(element: Coder, items: Sequence[Any], path: str, start: int = 0) -> list[bytes]:
    dump = element.dump
    pieces: list[bytes] = []
    try:
        for item in items:
            pieces.append(dump(item))  # noqa: PERF401 the length tells which one failed
    except Exception as error:  # whatever a user's serializer raises
        index = len(pieces)
        raise undumpable(element, items[index], f'{path}[{start + index}]', error) from error
    return pieces


def _same_objects(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether a list begins with the elements it had. It is asked at every commit.

    Comparing tuples passes identical elements at the speed of C. Others that are equal only by an
    `==` of their own are found by a sample.
    """
    start = new if len(new) == len(old) else new[: len(old)]
    try:
        if old != start:
            return False
    except Exception:  # noqa: BLE001 a user's own __eq__
        return False
    return all(map(operator.is_, old[::_SAMPLE], start[::_SAMPLE]))


def _first_other(
    element: Coder, old: tuple[Any, ...], new: tuple[Any, ...], path: str
) -> int | None:
    """The first index at which there is another object that is not the same in all it holds."""
    for index, was in enumerate(old):
        now = new[index]
        if now is was:
            continue
        if difference(was, now, path) or dumped(element, was, path) != dumped(element, now, path):
            return index
    return None


def _changed(pieces: list[bytes], before: Part) -> tuple[int, int]:
    """The range of elements whose bytes are not those that a stored array begins or ends with."""
    offset, first = 1, 0
    for piece in pieces:
        end = offset + len(piece)
        if not before.startswith(piece, offset) or before[end : end + 1] not in (b',', b']'):
            break
        offset = end + 1
        first += 1
    end, last = len(before) - 1, len(pieces)
    while last > first:
        piece = pieces[last - 1]
        begin = end - len(piece)
        if begin < offset or not before.endswith(piece, begin, end):
            break
        if before[begin - 1 : begin] not in (b',', b'['):
            break
        end = begin - 1
        last -= 1
    return first, last
