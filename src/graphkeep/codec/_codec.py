"""`Codec`: values of one declared type as canonical JSON parts, and back."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from ..errors import LossyStateError
from ..parts import Part, Tail, split, text_of
from ._coder import UNLOADABLE
from ._exact import undeclared
from ._fields import Field, Listed, dumped
from ._loss import misfit, short
from ._plan import plan_for

__all__ = ('Codec', 'Encoded', 'Parts', 'Seen')

T = TypeVar('T')

Parts = Part | Mapping[str, Part]
"""Encoded JSON: by top-level key when the value is a JSON object, else one text."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the `AppendOnly` fields held when the value was last encoded or decoded. Opaque."""

    lists: Mapping[str, Listed] = field(default_factory=dict[str, Listed])

    def tail(self, name: str) -> Tail | None:
        """What `encode` gives for a field that has not grown; `None` if it is not `AppendOnly`."""
        held = self.lists.get(name)
        return None if held is None else Tail(len(held.items), b'', 0)

    def updated(self, later: Seen) -> Seen:
        """With what was seen of some fields later."""
        return Seen({**self.lists, **later.lists}) if later.lists else self


_NOTHING_SEEN = Seen()


class Encoded(NamedTuple):
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

    Kept: classes and contents of everything that is declared, dictionary order, lone surrogates,
    NUL, integers of up to 4,300 digits, an `int` in a `float` field, `init=False` fields.

    Not kept, as pydantic does not: private attributes and others that start with an underscore,
    `model_fields_set`, whether two fields hold the same object, the name of a datetime's zone (its
    offset is). Anything else that would not come back raises `LossyStateError`.

    What is loaded back to find that out: everything when values of a class are first seen, or with
    `verify='always'`; after that those parts (of lists, elements) whose bytes changed and whose
    classes alone do not prove that JSON keeps them. An object that was replaced by one of a
    subclass with the very same JSON is not noticed then. A class with `__post_init__`,
    `model_post_init` or model validators is loaded as a whole whenever one of its parts changed,
    since its own code decides what comes back; not while it has `AppendOnly` fields that grow.

    Args:
        type_: The declared type of the values: any annotation pydantic understands.
        path: What the value is called in errors, e.g. `state`.
        namespace: Names that forward references in the type may use.
        verify: `changed` as above, or `always`.

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

    @property
    def by_field(self) -> bool:
        """Whether each part is one field (an attribute, or a key of a typed dict) and means the
        same whatever the others hold: no code of the class runs when it is loaded.
        """
        plan = self._plan
        return plan.fields is not None and not plan.hooked and not plan.hides

    def encode(
        self, value: T, *, previous: Parts | None = None, seen: Seen | None = None
    ) -> Encoded:
        """Dump a value; nothing it holds is changed.

        Args:
            value: A value of the declared type, of exactly that class.
            previous: The parts of the version before: what has the same bytes is not checked
                again. An `AppendOnly` field may be missing.
            seen: From the last `encode` that was committed, or from `seen()` after a `decode`. With
                it, `AppendOnly` fields are encoded as a `Tail`.

        Raises:
            LossyStateError: The value, or a part of it, would not come back as it is. `path` says
                which.
        """
        plan = self._plan
        cls: type[Any] = type(value)
        if plan.cls is not None and cls is not plan.cls:
            raise self._of_another_class(cls, plan.cls)
        everything = self._always or cls not in plan.proven
        if plan.fields is None:
            data = self._dump_whole(value, previous, everything=everything)
            encoded = Encoded(cast('bytes | dict[str, bytes | Tail]', split(data)), _NOTHING_SEEN)
        else:
            encoded = self._encode_fields(value, plan.fields, previous, seen, everything=everything)
        plan.proven.add(cls)
        return encoded

    def text(self, value: T) -> bytes:
        """The JSON of a value, as one text. As `encode`."""
        plan = self._plan
        if plan.fields is not None:
            return text_of(self.encode(value).parts)
        cls: type[Any] = type(value)
        data = self._dump_whole(value, None, everything=self._always or cls not in plan.proven)
        plan.proven.add(cls)
        return data

    def encode_fields(
        self, value: T, names: Container[str], *, previous: Parts | None = None, seen: Seen | None
    ) -> Encoded:
        """`encode`, of some of the fields, for a codec that is `by_field`.

        Args:
            value: A value of which the other fields are what they were.
            names: The fields that may have changed.
            previous: As for `encode`.
            seen: As for `encode`.

        Raises:
            LossyStateError: As for `encode`.
        """
        fields = tuple(each for each in self._plan.fields or () if each.name in names)
        return self._encode_fields(value, fields, previous, seen, everything=self._always)

    def _dump_whole(self, value: T, previous: Parts | None, *, everything: bool) -> bytes:
        plan = self._plan
        data = dumped(plan.coder, value, self.path)
        before = None if previous is None else text_of(previous)
        if everything or plan.hides or (data != before and not plan.certain(value)):
            plan.coder.prove(value, data, self.path)
        return data

    def _encode_fields(
        self,
        value: T,
        fields: tuple[Field, ...],
        previous: Parts | None,
        seen: Seen | None,
        *,
        everything: bool,
    ) -> Encoded:
        plan = self._plan
        old: Mapping[str, Part] = {}
        if previous is not None and not isinstance(previous, (bytes, bytearray)):
            old = previous
        parts: dict[str, bytes | Tail] = {}
        lists: dict[str, Listed] = {}
        changed = everything
        held = self._held(value)
        for each in fields:
            name = each.name
            if name not in held:
                if plan.cls is not dict or each.required:
                    raise self._not_set(each)
                continue
            item = held[name]
            if each.append_only:
                known = None if seen is None else seen.lists.get(name)
                part, lists[name] = each.grow(item, known, everything=everything)
                changed = changed or not isinstance(part, Tail) or part.count > 0
            else:
                before = old.get(name)
                part = each.encode(item, before, everything=everything)
                changed = changed or part != before
            parts[name] = part
        if len(held) > len(parts) and not held.keys() <= plan.declared:
            self._refuse_undeclared(value, held)
        if plan.hides or (plan.hooked and changed):
            self._prove_whole(value, parts)
        return Encoded(parts, Seen(lists) if lists else _NOTHING_SEEN)

    def _held(self, value: Any) -> Mapping[str, Any]:
        """What the fields hold, and maybe more."""
        if self._plan.cls is dict:
            return cast('dict[str, Any]', value)
        held = cast('dict[str, Any]', getattr(value, '__dict__', {}))
        if held.keys() >= self._plan.declared:
            return held
        # Slots, or a class attribute that stands for a default.
        slots = {name: getattr(value, name) for name in self._plan.declared if hasattr(value, name)}
        return {**held, **slots}

    def _prove_whole(self, value: Any, parts: Mapping[str, bytes | Tail]) -> None:
        """Load all parts together, as the code of the class sees them; not when there is a tail."""
        if not any(isinstance(part, Tail) for part in parts.values()):
            self._plan.coder.prove(value, text_of(parts), self.path)

    def _of_another_class(self, cls: type, declared: type) -> LossyStateError:
        name, expected = cls.__qualname__, declared.__qualname__
        if cls is type(None):
            return LossyStateError(
                f'`{self.path}` is None, but `{expected}` is declared. Nothing was written. Was it '
                f'forgotten? Pass `{self.path}={expected}(…)`.',
                path=self.path,
            )
        return LossyStateError(
            f'`{self.path}` is a `{name}`, but `{expected}` is declared: it would come back as a '
            f'`{expected}`. Nothing was written. Declare `{name}` as the type.',
            path=self.path,
        )

    def _not_set(self, each: Field) -> LossyStateError:
        return LossyStateError(
            f'`{each.path}` is declared but not set: it would not load again. Nothing was written.',
            path=each.path,
        )

    def _refuse_undeclared(self, value: Any, held: Mapping[str, Any]) -> None:
        """Fields are dumped one by one, so that what was set beside them shows nowhere else."""
        plan = self._plan
        if plan.cls is dict:
            extra = [(f'[{name!r}]', held[name]) for name in held.keys() - plan.declared]
        elif plan.hooked:
            return  # set by the class itself; loading it as a whole tells
        else:
            extra = [(f'.{name}', item) for name, item in undeclared(value, plan.declared)]
        for name, item in extra:
            raise LossyStateError(
                f'`{self.path}{name}` holds {short(item)}, but is not a declared field and would '
                'be lost. Nothing was written. Declare it, or start its name with an underscore if '
                'it need not be kept.',
                path=f'{self.path}{name}',
            )

    def decode(self, parts: Parts) -> T:
        """Load a value. It shares nothing with any other.

        Args:
            parts: JSON by top-level key, or the whole text.

        Raises:
            CodecError: It does not fit the declared type; `path` says where.
        """
        data = parts if isinstance(parts, (bytes, bytearray)) else text_of(parts)
        try:
            return self._plan.coder.load(data)
        except UNLOADABLE as error:
            raise misfit(error, self.path) from error

    def decode_all(self, texts: Sequence[bytes], *, plain: bool = False) -> list[T]:
        """Load values of which each is one text. As `decode`; a third faster than one by one.

        Args:
            texts: The texts.
            plain: Leave out the functions that classes put around loading: a quarter faster again.
                Only where `is_plain` said of each value that this makes no difference.
        """
        coder = self._plan.coder
        if plain and coder.plain is not None:
            with suppress(*UNLOADABLE):
                return coder.plain.load_all(texts)
        try:
            return coder.load_all(texts)
        except UNLOADABLE:
            return [self.decode(text) for text in texts]  # says which one

    def is_plain(self, value: T, text: bytes) -> bool:
        """Whether a `text` gives the very same value if it is loaded `plain`: that is tried."""
        return self._plan.coder.is_plain(value, text)

    def decode_field(self, name: str, part: Part) -> Any:
        """Load one field, for a codec that is `by_field`. As `decode`."""
        (found,) = (each for each in self._plan.fields or () if each.name == name)
        try:
            return found.coder.load(part)
        except UNLOADABLE as error:
            raise misfit(error, found.path) from error

    def seen(self, value: T) -> Seen:
        """What the `AppendOnly` fields hold, for the first `encode` after a `decode`."""
        fields = [each for each in self._plan.fields or () if each.append_only]
        if not fields:
            return _NOTHING_SEEN
        held = self._held(value)
        return Seen(
            {each.name: each.listed(held[each.name]) for each in fields if each.name in held}
        )
