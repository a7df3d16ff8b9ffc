"""Merging what parallel steps did to the state: rules, recursion, conflicts; never a lost
update.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from graphkeep import AppendOnly, StateConflictError, merge
from graphkeep.builder.merge import MISSING, Merger

STEPS = ('one', 'two')


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Inner:
    count: Annotated[int, merge.add] = 0
    note: str = ''


@dataclass
class Outer:
    plain: int = 0
    added: Annotated[int, merge.add] = 0
    most: Annotated[int, merge.maximum] = 0
    least: Annotated[int, merge.minimum] = 0
    text: Annotated[str, merge.append] = ''
    final: Annotated[str, merge.last] = ''
    tags: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    kept: Annotated[list[str], AppendOnly] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    counted: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    flag: bool = False
    color: Color | None = None
    mine: Annotated[int, lambda base, mine, committed: mine * committed] = 1


def merged(base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]) -> Outer:
    merger = Merger(Outer, rules={}, path='state')
    return merger.merge(Outer(**base), Outer(**mine), Outer(**theirs), steps=STEPS)


@pytest.mark.parametrize(
    ('base', 'mine', 'theirs', 'expected'),
    [
        ({}, {}, {'plain': 3}, {'plain': 3}),
        ({}, {'plain': 3}, {}, {'plain': 3}),
        ({'added': 5}, {'added': 7}, {'added': 15}, {'added': 17}),
        ({}, {'most': 3}, {'most': 9}, {'most': 9}),
        ({'least': 9}, {'least': 3}, {'least': 5}, {'least': 3}),
        ({'text': 'a'}, {'text': 'ab'}, {'text': 'ac'}, {'text': 'acb'}),
        ({}, {'final': 'm'}, {'final': 't'}, {'final': 'm'}),
        ({'tags': {'a', 'b'}}, {'tags': {'a', 'm'}}, {'tags': {'b', 't'}}, {'tags': {'m', 't'}}),
        ({'log': ['a']}, {'log': ['a', 'm']}, {'log': ['a', 't']}, {'log': ['a', 't', 'm']}),
        ({'kept': ['a']}, {'kept': ['a', 'm']}, {'kept': ['a', 't']}, {'kept': ['a', 't', 'm']}),
        (
            {'by_name': {'x': 1, 'y': 2}},
            {'by_name': {'x': 1, 'm': 3}},
            {'by_name': {'x': 7, 'y': 2}},
            {'by_name': {'x': 7, 'm': 3}},
        ),
        (
            {'counted': {'a': 1}},
            {'counted': {'a': 2, 'b': 1}},
            {'counted': {'a': 4, 'b': 1}},
            {'counted': {'a': 5, 'b': 2}},
        ),
        ({}, {'inner': Inner(2, '')}, {'inner': Inner(1, 'n')}, {'inner': Inner(3, 'n')}),
        ({}, {'flag': True}, {'flag': True}, {'flag': True}),
        ({}, {'color': Color.RED}, {'color': Color.RED}, {'color': Color.RED}),
        ({'color': Color.RED}, {'color': None}, {'color': None}, {'color': None}),
        ({}, {'mine': 2}, {'mine': 3}, {'mine': 6}),
    ],
)
def test_what_both_sides_did_comes_together(
    base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert merged(base, mine, theirs) == Outer(**expected)


@pytest.mark.parametrize(
    ('base', 'mine', 'theirs', 'path'),
    [
        ({}, {'plain': 1}, {'plain': 2}, 'state.plain'),
        # Two `n += 1` from 0 both give 1: the same number is still one update lost.
        ({}, {'plain': 1}, {'plain': 1}, 'state.plain'),
        ({}, {'inner': Inner(0, 'a')}, {'inner': Inner(0, 'a')}, 'state.inner.note'),
        ({}, {'by_name': {'a': 1}}, {'by_name': {'a': 1}}, "state.by_name['a']"),
        ({'by_name': {'a': 1}}, {'by_name': {}}, {'by_name': {'a': 2}}, "state.by_name['a']"),
        ({'log': ['a']}, {'log': ['b']}, {'log': ['a', 't']}, 'state.log'),
        ({}, {'color': Color.RED}, {'color': Color.BLUE}, 'state.color'),
        ({'flag': False}, {'plain': True}, {'plain': 1}, 'state.plain'),
    ],
)
def test_what_cannot_come_together_is_a_conflict(
    base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any], path: str
) -> None:
    with pytest.raises(StateConflictError) as caught:
        merged(base, mine, theirs)
    assert caught.value.path == path
    assert caught.value.steps == STEPS
    for word in ("'one'", "'two'", f'`{path}`', 'Annotated['):
        assert word in str(caught.value)


def test_changed_means_other_bytes_and_not_unequal() -> None:
    """`1 == True == 1.0`: what compares equal is a change all the same."""
    assert merged({'plain': 1}, {'plain': True}, {'plain': 1}).plain is True
    kept = merged({'plain': 1}, {'plain': 1}, {'plain': 1.0}).plain
    assert type(kept) is float


def test_a_field_that_does_not_compare_is_merged() -> None:
    @dataclass
    class Quiet:
        seen: list[str] = field(default_factory=list, compare=False)

    merger = Merger(Quiet, rules={}, path='state')
    both = merger.merge(Quiet(), Quiet(['m']), Quiet(['t']), steps=STEPS)
    assert both.seen == ['t', 'm']


def test_rules_by_class_are_of_the_exact_class() -> None:
    merger = Merger(Outer, rules={int: merge.add, Decimal: merge.add}, path='state')
    both = merger.merge(Outer(), Outer(plain=2), Outer(plain=3), steps=STEPS)
    assert both.plain == 5
    with pytest.raises(StateConflictError):
        Merger(dict, rules={int: merge.add}, path='s').merge(
            {'f': False}, {'f': True}, {'f': 7}, steps=STEPS
        )


def test_frozen_models_and_validated_assignments_are_merged() -> None:
    class Frozen(BaseModel):
        model_config = ConfigDict(frozen=True, validate_assignment=True, extra='allow')
        count: Annotated[int, merge.add] = 0
        tags: frozenset[str] = frozenset()

    merger = Merger(Frozen, rules={}, path='state')
    mine = Frozen.model_validate({'count': 2, 'tags': {'m'}, 'left': 'l'})
    theirs = Frozen.model_validate({'count': 3, 'tags': {'t'}, 'right': 'r'})
    both = merger.merge(Frozen(), mine, theirs, steps=STEPS)
    expected = {'count': 5, 'tags': {'m', 't'}, 'left': 'l', 'right': 'r'}
    assert both == Frozen.model_validate(expected)


def test_a_rule_that_raises_is_a_conflict_that_says_so() -> None:
    def refuse(base: Any, mine: Any, committed: Any) -> Any:
        raise ZeroDivisionError('no')

    @dataclass
    class Ruled:
        value: Annotated[int, refuse] = 0

    with pytest.raises(
        StateConflictError, match=r'refuse.*ZeroDivisionError.*Mend the rule, or'
    ) as caught:
        merger = Merger(Ruled, rules={}, path='state', namespace={'refuse': refuse})
        merger.merge(Ruled(), Ruled(1), Ruled(2), steps=STEPS)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_append_refuses_a_side_that_changed_more_than_the_end() -> None:
    with pytest.raises(StateConflictError, match='append'):
        merged({'text': 'ab'}, {'text': 'b'}, {'text': 'abc'})


def test_a_key_that_both_removed_stays_removed() -> None:
    both = merged({'by_name': {'a': 1, 'b': 2}}, {'by_name': {'b': 2}}, {'by_name': {'b': 3}})
    assert both.by_name == {'b': 3}


def test_the_base_may_be_missing() -> None:
    assert merge.add(MISSING, 2, 3) == 5
    assert merge.append(MISSING, [1], [2]) == [2, 1]
    assert merge.union(MISSING, {1}, {2}) == {1, 2}
    assert merge.union({}, {'a': 1}, {'a': 2, 'b': 3}) == {'a': 1, 'b': 3}


def test_a_rule_must_be_callable() -> None:
    with pytest.raises(TypeError, match='callable'):
        Merger(int, rules={int: 3}, path='state')  # pyright: ignore[reportArgumentType]


_values = st.dictionaries(st.sampled_from('abc'), st.integers(0, 2), max_size=3)


@given(base=_values, mine=_values, theirs=_values)
def test_no_update_is_lost_without_a_word(
    base: dict[str, int], mine: dict[str, int], theirs: dict[str, int]
) -> None:
    """Whatever one side changed is in the result, or it is a conflict."""
    merger = Merger(dict[str, int], rules={}, path='state')
    try:
        both = merger.merge(dict(base), dict(mine), dict(theirs), steps=STEPS)
    except StateConflictError:
        assert any(
            base.get(k) != mine.get(k) and base.get(k) != theirs.get(k)
            for k in {*base, *mine, *theirs}
        )
        return
    for key in {*base, *mine, *theirs}:
        old, ours, other = base.get(key), mine.get(key), theirs.get(key)
        assert both.get(key) == (ours if ours != old else other)


@given(
    start=st.integers(-5, 5),
    ours=st.lists(st.integers(-5, 5), max_size=4),
    others=st.lists(st.integers(-5, 5), max_size=4),
)
def test_additions_add_up(start: int, ours: list[int], others: list[int]) -> None:
    both = merged(
        {'added': start},
        {'added': start + sum(ours)},
        {'added': start + sum(others)},
    )
    assert both.added == start + sum(ours) + sum(others)
