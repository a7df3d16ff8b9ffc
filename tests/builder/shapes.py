"""A small grammar of graphs, and what an interpreter of the same grammar says of each.

Upstream's runner is no oracle: it disagrees with itself on some graphs (two joins that wait for
each other's buffers, a join behind a slow sibling). The interpreter is: it follows the structure
and knows neither forks nor buffers. `drawing` makes the graphs.

A graph computes on integers. What changes the state does so under a name of its own, which parallel
steps share by the rules of merging.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from graphkeep import AppendOnly, merge


@dataclass
class Tally:
    """The state: how often each step has changed it, and what it saw."""

    hits: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    total: Annotated[int, merge.add] = 0
    seen: set[str] = field(default_factory=set)
    begun: list[str] = field(default_factory=list)
    """Written before a step waits; a list, to which several may add at a time."""
    trail: Annotated[list[str], AppendOnly] = field(default_factory=list)

    def begin(self, name: str) -> None:
        self.begun.append(name)

    def end(self, name: str, value: int) -> None:
        self.hits[name] = self.hits.get(name, 0) + 1
        self.total += value
        self.seen.add(name)
        self.trail.append(name)


# --- the grammar ----------------------------------------------------------------------------------

Joining = Literal['sum', 'list', 'context']
"""The reducer of a join: of numbers, of a list, or one that changes the state."""


@dataclass(frozen=True)
class Work:
    """A step: `x -> x * factor + 1`; it may change the state, and may wait."""

    factor: int
    counts: bool
    turns: int
    node: bool
    """It is a `BaseNode`, which hands over to a step."""
    asks: bool
    """It draws a number, `once`."""


@dataclass(frozen=True)
class Both:
    """A broadcast: every branch gets the value, a join adds their results up."""

    branches: tuple[Shape, ...]
    joining: Joining


@dataclass(frozen=True)
class Staged:
    """A broadcast with two joins: the first one's sum goes on to the second."""

    early: tuple[Shape, ...]
    between: Shape
    late: tuple[Shape, ...]
    joining: tuple[Joining, Joining]


@dataclass(frozen=True)
class Each:
    """A map over `x % (most + 1)` items: a body for each, and a join of all results."""

    most: int
    body: Shape
    joining: Joining
    streams: bool
    """The items come one by one."""


@dataclass(frozen=True)
class Choice:
    """A decision by whether the value is even."""

    even: Shape
    odd: Shape


@dataclass(frozen=True)
class Until:
    """A loop: a body is repeated, and a step that adds 1, until the value divides."""

    divisor: int
    body: Shape | None
    counts: bool


@dataclass(frozen=True)
class Then:
    """One after the other; on the way a transform may change the state."""

    parts: tuple[Shape, ...]
    marks: bool


Shape = Work | Both | Staged | Each | Choice | Until | Then

_works = st.builds(
    Work, st.integers(1, 3), st.booleans(), st.integers(0, 3), st.booleans(), st.booleans()
)
_loops = st.builds(Until, st.integers(2, 4), st.none(), st.booleans())
_joining = st.sampled_from(Joining.__args__)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3).map(tuple)
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Both, several, _joining),
        st.builds(Each, st.integers(1, 4), inner, _joining, st.booleans()),
        st.builds(Choice, inner, inner),
        st.builds(Then, some, st.booleans()),
        st.builds(Until, st.integers(2, 3), inner, st.booleans()),
        st.builds(Staged, several, inner, some, st.tuples(_joining, _joining)),
    )


shapes = st.recursive(_works | _loops, _nested, max_leaves=7)


def joins_deep(shape: Shape) -> int:
    """How many joins of a shape wait for one another, at most."""
    inside = max((joins_deep(part) for part in _parts(shape)), default=0)
    if isinstance(shape, Staged):
        return inside + 2
    return inside + isinstance(shape, Both | Each)


def is_staged(shape: Shape) -> bool:
    """Whether anywhere in it two joins are of the same fork."""
    return isinstance(shape, Staged) or any(is_staged(part) for part in _parts(shape))


def _parts(shape: Shape) -> list[Shape]:
    match shape:
        case Both(branches):
            return [*branches]
        case Staged(early, between, late):
            return [*early, between, *late]
        case Choice(even, odd):
            return [even, odd]
        case Then(parts):
            return [*parts]
        case Each(_, body) | Until(_, body):
            return [] if body is None else [body]
        case Work():
            return []


# --- the interpreter ------------------------------------------------------------------------------


class TooLongError(Exception):
    """A run of this shape would not end, or not soon."""


@dataclass
class Expected:
    """What an undisturbed run gives."""

    output: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def check(self, output: int, state: Tally) -> None:
        """Whether a run gave just that."""
        assert output == self.output
        assert Counter(state.hits) == self.hits
        assert state.total == self.total
        assert state.seen == set(self.hits)
        assert Counter(state.begun) == self.hits
        assert Counter(state.trail) == self.hits


def interpret(shape: Shape, value: int, *, longest: int = 120) -> Expected:
    """What a run of this shape gives.

    Args:
        shape: Its shape.
        value: Its inputs.
        longest: Most steps that may run.

    Raises:
        TooLongError: More would run.
    """
    interpreter = _Interpreter(longest)
    interpreter.expected.output = interpreter.run(shape, value, '')
    return interpreter.expected


class _Interpreter:
    def __init__(self, longest: int) -> None:
        self.expected = Expected()
        self._left = longest

    def run(self, shape: Shape, value: int, at: str) -> int:
        match shape:
            case Work(factor, counts):
                self._ran(f'w{at}', value, counts=counts)
                return small(value * factor + 1)
            case Until(divisor, body, counts):
                while True:
                    if body is not None:
                        value = self.run(body, value, f'{at}_b')
                    self._ran(f'u{at}', value, counts=counts)
                    value += 1
                    if value % divisor == 0:
                        return value
            case Then(parts, marks):
                for number, part in enumerate(parts):
                    if number and marks:
                        self._changed(f't{at}', value)
                    value = self.run(part, value, f'{at}_{number}')
                return value
            case Choice(even, odd):
                chosen, side = (even, 'e') if value % 2 == 0 else (odd, 'o')
                return self.run(chosen, value, f'{at}_{side}')
            case Both(branches, joining):
                results = [self.run(b, value, f'{at}_{n}') for n, b in enumerate(branches)]
                return self._joined(f'j{at}', joining, results)
            case Staged(early, between, late, (first, second)):
                results = [self.run(e, value, f'{at}_f{n}') for n, e in enumerate(early)]
                early_sum = self._joined(f'j{at}f', first, results)
                results = [self.run(s, value, f'{at}_s{n}') for n, s in enumerate(late)]
                results.append(self.run(between, early_sum, f'{at}_m'))
                return self._joined(f'j{at}s', second, results)
            case Each(most, body, joining, streams):
                if streams:
                    self._ran(f'm{at}', value, counts=True)
                results = [self.run(body, item, f'{at}_b') for item in items(value, most)]
                return self._joined(f'j{at}', joining, results)

    def _ran(self, name: str, value: int, *, counts: bool) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooLongError
        self.expected.runs[name] += 1
        if counts:
            self._changed(name, value)

    def _changed(self, name: str, value: int) -> None:
        self.expected.hits[name] += 1
        self.expected.total += value

    def _joined(self, name: str, joining: Joining, results: list[int]) -> int:
        if joining == 'context':
            for result in results:
                self._changed(name, result)
        return small(sum(results))


def small(value: int) -> int:
    return value % 997


def items(value: int, most: int) -> list[int]:
    """What a map is over."""
    return list(range(value, value + value % (most + 1)))
