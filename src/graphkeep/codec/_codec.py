"""`Codec`: values of one declared type as canonical JSON parts, and back."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import ValidationError

from ..errors import LossyStateError
from ..parts import Tail, render, split
from ._coder import Coder, misfit, undumpable
from ._exact import difference, undeclared
from ._plan import FieldPlan, plan_for

__all__ = ('Codec', 'Encoded', 'Parts', 'Seen')

T = TypeVar('T')

Parts = bytes | bytearray | Mapping[str, bytes | bytearray]
"""Encoded JSON: by top-level key when the value is a JSON object, else one text."""

_SAMPLE = 64
"""Of so many old elements of an `AppendOnly` list, one is compared by identity."""


@dataclass(frozen=True, slots=True)
class _SeenList:
    items: tuple[Any, ...]
    """The elements themselves: that they stay alive is what makes comparing identities safe."""
    last: bytes
    """The encoded last element."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the `AppendOnly` fields held when the value was last encoded or decoded. Opaque."""

    lists: Mapping[str, _SeenList] = field(default_factory=dict[str, _SeenList])


@dataclass(frozen=True, slots=True)
class Encoded:
    """What `Codec.encode` returns."""

    parts: bytes | dict[str, bytes | Tail]
    """JSON, UTF-8: one text for each top-level key in the declared order when the value is a JSON
    object, else one text. A `Tail` stands for an `AppendOnly` list that was seen before."""
    seen: Seen
    """To be passed to the next `encode`, once these parts have been committed."""


class Codec(Generic[T]):
    """Encodes values of one declared type as canonical JSON and back, refusing loss.

    The same value gives the same bytes in every process: sets are sorted, names are used instead of
    aliases, bytes are base64, NaN and infinities in `float` fields are strings.

    Kept: classes and contents of everything that is declared, dictionary order, lone surrogates, NUL,
    integers of any size, `init=False` fields. Not kept, as pydantic does not: private attributes,
    `model_fields_set`, whether two fields hold the same object, the name of a datetime's zone (its
    offset is). Anything else that would not come back raises `LossyStateError`.

    Args:
        type_: The declared type of the values: any annotation pydantic understands.
        path: What the value is called in errors, e.g. `state`.
        namespace: Local names that forward references in the type may use.
        verify: `changed` loads back those parts that changed and whose class alone does not prove
            that JSON keeps them; `always` loads everything back at every encode.

    Raises:
        UnstorableTypeError: Values of the type cannot be stored; the message names the field.
    """

    def __init__(
        self,
        type_: Any,
        *,
        path: str,
        namespace: Mapping[str, Any] | None = None,
        verify: Literal['changed', 'always'] = 'changed',
    ) -> None:
        self.type = type_
        """The declared type."""
        self.path = path
        """What the value is called in errors."""
        self._always = verify == 'always'
        self._plan = plan_for(type_, path=path, namespace=namespace)

    def encode(
        self, value: T, *, previous: Parts | None = None, seen: Seen | None = None
    ) -> Encoded:
        """Dump a value; nothing it holds is changed.

        Args:
            value: A value of the declared type, of exactly that class.
            previous: The parts of the version before: those that have the same bytes are not checked
                again. An `AppendOnly` field may be missing, or hold the whole list.
            seen: From the last `encode` that was committed, or from `seen()` after a `decode`. With
                it, `AppendOnly` fields are encoded as a `Tail`.

        Raises:
            LossyStateError: The value, or a part of it, would not come back as it is. `path` says
                which.
        """
        plan = self._plan
        if plan.cls is not None and type(value) is not plan.cls:
            name, declared = type(value).__qualname__, plan.cls.__qualname__
            raise LossyStateError(
                f'`{self.path}` is a `{name}`, but `{declared}` is declared: it would come back as a '
                f'`{declared}`. Nothing was written. Declare `{name}` as the type.',
                path=self.path,
            )
        everything = self._always or plan.opaque or type(value) not in plan.proven
        if plan.fields is None:
            return self._encode_whole(value, previous, everything)
        old = previous if isinstance(previous, Mapping) else None
        known = seen.lists if seen is not None else {}
        parts: dict[str, bytes | Tail] = {}
        lists: dict[str, _SeenList] = {}
        changed = False
        for each in plan.fields:
            name = each.name
            if plan.cls is dict or plan.cls is None:
                if name not in cast('dict[str, Any]', value):
                    continue
                item = cast('dict[str, Any]', value)[name]
            else:
                item = self._attribute(value, name)
            at = f'{self.path}.{name}'
            if each.append_only:
                listed, held = self._encode_list(each, item, known.get(name), at, everything)
                parts[name], lists[name] = listed, held
                changed = changed or not isinstance(listed, Tail) or listed.count > 0
                continue
            before = old.get(name) if old is not None else None
            data = self._encode_field(each, item, before, at, everything)
            parts[name] = data
            changed = changed or data != before
        self._refuse_undeclared(value)
        if plan.cls is dict and len(cast('dict[str, Any]', value)) != len(parts):
            extra = next(iter(cast('dict[str, Any]', value).keys() - parts.keys()))
            raise LossyStateError(
                f'`{self.path}` has the key {extra!r}, which its type does not declare. '
                'Nothing was written.',
                path=f'{self.path}[{extra!r}]',
            )
        if plan.opaque or (plan.hooked and (changed or everything)):
            self._prove_whole(value, parts)
        plan.proven.add(type(value))
        return Encoded(parts, Seen(lists))

    def _refuse_undeclared(self, value: Any) -> None:
        """Fields are dumped one by one, so that what was set beside them shows nowhere else."""
        attributes = getattr(value, '__dict__', None)
        if attributes is None or attributes.keys() <= self._plan.declared or self._plan.hooked:
            return
        for name, held in undeclared(value, self._plan.declared):
            raise LossyStateError(
                f'`{self.path}.{name}` holds {held!r:.80}, but is not a declared field and would be '
                'lost. Nothing was written. Declare it, or start its name with an underscore if it '
                'need not be kept.',
                path=f'{self.path}.{name}',
            )

    def _attribute(self, value: Any, name: str) -> Any:
        try:
            return getattr(value, name)
        except AttributeError as error:
            raise LossyStateError(
                f'`{self.path}.{name}` is declared but not set. Nothing was written.',
                path=f'{self.path}.{name}',
            ) from error

    def _encode_field(
        self, each: FieldPlan, item: Any, before: bytes | bytearray | None, at: str, everything: bool
    ) -> bytes:
        coder = each.coder
        if each.by_element and type(item) is list:
            return self._encode_elements(each, cast('list[Any]', item), before, at, everything)
        data = _dumped(coder, item, at)
        if data != before or everything:
            if everything or not each.certain(item):
                coder.prove(item, data, at)
        return data

    def _encode_elements(
        self,
        each: FieldPlan,
        items: list[Any],
        before: bytes | bytearray | None,
        at: str,
        everything: bool,
    ) -> bytes:
        """A list: only those elements are loaded back that have changed."""
        element = cast('Coder', each.coder.items)
        items = list(items)
        pieces = _dumped_items(element, items, at)
        first, last = (0, len(pieces)) if everything else _changed(pieces, before)
        new = items[first:last]
        if everything or not all(map(each.certain_item, new)):
            element.prove_items(new, pieces[first:last], at, first)
        return b''.join((b'[', b','.join(pieces), b']'))

    def _encode_list(
        self, each: FieldPlan, items: Any, held: _SeenList | None, at: str, everything: bool
    ) -> tuple[bytes | Tail, _SeenList]:
        if type(items) is not list:
            raise LossyStateError(
                f'`{at}` is AppendOnly and must hold a list, not a `{type(items).__qualname__}`. '
                'Nothing was written.',
                path=at,
            )
        element = cast('Coder', each.coder.items)
        current = tuple(cast('list[Any]', items))
        start = 0 if held is None else len(held.items)
        if held is not None:
            self._same_start(element, held, current, at)
        new = current[start:]
        pieces = _dumped_items(element, new, at, start)
        if everything or not all(map(each.certain_item, new)):
            element.prove_items(new, pieces, at, start)
        if held is not None and not new:
            return Tail(start, b'', 0), held
        last = pieces[-1] if pieces else b''
        text = b','.join(pieces)
        data = b''.join((b'[', text, b']')) if held is None else Tail(start, text, len(new))
        return data, _SeenList(current, last)

    def _same_start(
        self, element: Coder, held: _SeenList, current: tuple[Any, ...], at: str
    ) -> None:
        """Refuse a list that did more than grow."""
        advice = 'AppendOnly lists may only grow: drop the annotation if your graph edits this one.'
        old = held.items
        if len(current) < len(old):
            raise LossyStateError(
                f'`{at}` has become shorter: {len(old)} elements before, {len(current)} now. '
                f'Nothing was written. {advice}',
                path=at,
            )
        index = None if _same_objects(old, current) else _first_other(element, old, current, at)
        if index is None and old:
            # The last old element is the one that is filled in late, e.g. a request's instructions.
            index = len(old) - 1
            if _dumped(element, current[index], at) == held.last:
                index = None
        if index is not None:
            raise LossyStateError(
                f'`{at}[{index}]` has changed since it was stored. Nothing was written. {advice}',
                path=f'{at}[{index}]',
            )

    def _encode_whole(self, value: Any, previous: Parts | None, everything: bool) -> Encoded:
        plan = self._plan
        data = _dumped(plan.coder, value, self.path)
        before = joined(previous) if isinstance(previous, Mapping) else previous
        if data != before or everything:
            if everything or not plan.certain(value):
                plan.coder.prove(value, data, self.path)
        plan.proven.add(type(value))
        return Encoded(cast('bytes | dict[str, bytes | Tail]', split(data)), Seen())

    def _prove_whole(self, value: Any, parts: Mapping[str, bytes | Tail]) -> None:
        """Load all parts together, as the code of the class sees them. Not when there is a `Tail`."""
        if not any(isinstance(part, Tail) for part in parts.values()):
            data = joined(cast('Mapping[str, bytes]', parts))
            self._plan.coder.prove(value, data, self.path)

    def decode(self, parts: Parts) -> T:
        """Load a value. It shares nothing with any other.

        Args:
            parts: JSON by top-level key, or the whole text.

        Raises:
            CodecError: It does not fit the declared type; `path` says where.
        """
        data = joined(parts) if isinstance(parts, Mapping) else parts
        try:
            return self._plan.coder.load(data)
        except (ValidationError, ValueError, TypeError, RecursionError) as error:
            raise misfit(error, self.path) from error

    def seen(self, value: T) -> Seen:
        """What the `AppendOnly` fields hold, for the first `encode` after a `decode`."""
        lists: dict[str, _SeenList] = {}
        for each in self._plan.fields or ():
            if each.append_only:
                items = tuple(cast('list[Any]', _get(value, each.name)))
                element = cast('Coder', each.coder.items)
                at = f'{self.path}.{each.name}'
                last = _dumped(element, items[-1], at) if items else b''
                lists[each.name] = _SeenList(items, last)
        return Seen(lists)


def joined(parts: Mapping[str, bytes | bytearray]) -> bytes:
    """The JSON object that has these members."""
    pieces: list[bytes | bytearray | memoryview] = []
    render(parts, pieces)
    return b''.join(pieces)


def _get(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


def _dumped(coder: Coder, value: Any, path: str) -> bytes:
    try:
        return coder.dump(value)
    except Exception as error:  # whatever a user's serializer raises
        raise undumpable(coder, value, path, error) from error


def _dumped_items(
    element: Coder, items: Sequence[Any], path: str, start: int = 0
) -> list[bytes]:
    dump = element.dump
    index = start
    try:
        pieces: list[bytes] = []
        for index, item in enumerate(items, start):  # noqa: B007
            pieces.append(dump(item))
        return pieces
    except Exception as error:  # whatever a user's serializer raises
        raise undumpable(element, items[index - start], f'{path}[{index}]', error) from error


def _same_objects(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether a list begins with the elements it had. Fast: it is asked at every commit.

    Tuples compare identical elements at the speed of C; that unequal ones are not hidden behind an
    `==` of their own, a sample by identity shows.
    """
    start = new if len(new) == len(old) else new[: len(old)]
    try:
        if old != start:
            return False
    except Exception:  # a user's own __eq__
        return False
    return all(map(operator.is_, old[::_SAMPLE], start[::_SAMPLE]))


def _first_other(
    element: Coder, old: tuple[Any, ...], new: tuple[Any, ...], path: str
) -> int | None:
    """The first index at which there is another object that is encoded in another way."""
    for index, was in enumerate(old):
        now = new[index]
        if now is was:
            continue
        if difference(was, now, path) or _dumped(element, was, path) != _dumped(element, now, path):
            return index
    return None


def _changed(pieces: list[bytes], before: bytes | bytearray | None) -> tuple[int, int]:
    """The range of elements whose bytes are not those that a stored array begins or ends with."""
    if before is None:
        return 0, len(pieces)
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
