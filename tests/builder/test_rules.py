"""Merge rules: what each makes of which values, what it refuses, and what is refused as a rule."""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic_graph import GraphBuilder, StepContext
from typing_extensions import TypedDict

import graphkeep
from graphkeep import StateConflictError, merge
from graphkeep.builder.merge import MISSING, Merger

STEPS = ('one', 'two')
NAN = math.nan


class Flag(enum.IntFlag):
    A = 1
    B = 2


@pytest.mark.parametrize(
    ('rule', 'base', 'mine', 'committed', 'expected'),
    [
        (merge.add, 1, 3, 11, 13),
        (merge.add, None, 3, 11, 14),
        (merge.add, Decimal(1), Decimal('1.5'), Decimal(2), Decimal('2.5')),
        (merge.add, timedelta(1), timedelta(3), timedelta(2), timedelta(4)),
        (merge.add, 0.0, math.inf, 3.0, math.inf),
        (merge.append, [1], [1, 2], [1, 3], [1, 3, 2]),
        (merge.append, None, [2], [3], [3, 2]),
        (merge.append, 'a', 'ab', 'ac', 'acb'),
        (merge.append, (1,), (1, 2), (1, 3), (1, 3, 2)),
        (merge.union, {1, 2}, {2, 3}, {1, 4}, {3, 4}),
        (merge.union, None, {1}, {2}, {1, 2}),
        (merge.union, None, {'a': 1}, {'b': 2}, {'a': 1, 'b': 2}),
        # Each key by itself: what only one of them set, or removed, is what counts.
        (merge.union, {'a': 1}, {'a': 1, 'b': 2}, {'a': 5}, {'a': 5, 'b': 2}),
        (merge.union, {'a': 1}, {'a': 2}, {'a': 3}, {'a': 2}),
        (merge.union, {'a': 1, 'b': 1}, {'b': 1}, {'a': 1}, {}),
        (merge.union, {'a': 1}, {}, {'a': 2}, {'a': 2}),
        (merge.union, {'a': 1}, {'a': 2}, {}, {'a': 2}),
        (merge.maximum, 0, 3, 5, 5),
        (merge.minimum, 0, 3, 5, 3),
        (merge.maximum, None, 'b', 'a', 'b'),
        (merge.maximum, False, True, False, True),
        (merge.last, 0, 'b', {}, 'b'),
    ],
)
def test_what_a_rule_makes_of_two_values(
    rule: Any, base: Any, mine: Any, committed: Any, expected: Any
) -> None:
    assert rule(base, mine, committed) == expected


def test_a_dict_keeps_its_class_in_a_union() -> None:
    one, two = (collections.defaultdict[str, int](int, {name: 1}) for name in 'ab')
    both = merge.union(MISSING, one, two)
    assert type(both) is collections.defaultdict
    assert both == {'a': 1, 'b': 1}
    assert two == {'b': 1}, 'what was given is left as it was'


@pytest.mark.parametrize(
    ('rule', 'base', 'mine', 'committed', 'says'),
    [
        (merge.union, 0, 1, 2, 'sets and dicts, got int, int, int'),
        (merge.union, Flag(0), Flag.A, Flag.B, 'sets and dicts, got Flag'),
        (merge.union, [], [1], [2], 'sets and dicts, got list'),
        (merge.union, MISSING, {1}, {'a': 1}, 'sets and dicts, got set, dict'),
        (merge.union, MISSING, {'a': 1}, {1}, 'sets and dicts, got dict, set'),
        (merge.add, False, True, True, 'numbers and durations, got bool'),
        (merge.add, 0, True, 2, 'numbers and durations, got int, bool, int'),
        (merge.add, Flag(0), Flag.A, Flag.B, 'numbers and durations, got Flag'),
        (merge.add, MISSING, 'a', 'b', 'numbers and durations, got str, str'),
        (merge.add, MISSING, [1], [2], 'numbers and durations, got list, list'),
        (merge.add, 5, 7, None, 'numbers and durations, got int, int, NoneType'),
        (
            merge.add,
            collections.Counter('a'),
            collections.Counter(),
            collections.Counter('aa'),
            'numbers and durations, got Counter',
        ),
        (merge.append, 0, 1, 2, 'lists and strings, got int'),
        (merge.append, {}, {'a': 1}, {'b': 1}, 'lists and strings, got dict'),
        (merge.append, set(), {1}, {2}, 'lists and strings, got set'),
        (merge.append, [], [1], None, 'lists and strings, got list, list, NoneType'),
        (merge.maximum, 0, 1, None, 'not supported between'),
    ],
)
def test_a_rule_refuses_what_it_is_not_for(
    rule: Any, base: Any, mine: Any, committed: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        rule(base, mine, committed)


@pytest.mark.parametrize(
    ('rule', 'base', 'mine', 'committed', 'says'),
    [
        (merge.add, math.inf, 5.0, 7.0, 'subtracted from inf'),
        (merge.add, Decimal('NaN'), Decimal(1), Decimal(2), 'subtracted from NaN'),
        (merge.maximum, 0.0, NAN, 3.0, 'merge.maximum: neither value is larger'),
        (merge.minimum, 0.0, 3.0, NAN, 'merge.minimum: neither value is larger'),
        (merge.maximum, set(), {1}, {2}, 'neither value is larger'),
        (merge.append, ['a'], ['b'], ['a', 'c'], 'more than the end'),
    ],
)
def test_a_rule_refuses_values_it_has_no_answer_for(
    rule: Any, base: Any, mine: Any, committed: Any, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        rule(base, mine, committed)


# --- what a conflict advises ----------------------------------------------------------------------


@dataclass
class Inner:
    number: int = 0


@dataclass
class State:
    number: int = 0
    maybe: int | None = None
    title: str = ''
    log: list[str] = field(default_factory=list)
    any: Any = None
    by_name: dict[str, int] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    joined: Annotated[int, merge.union] = 0
    summed: Annotated[str, merge.add] = ''
    longer: Annotated[list[int], merge.append] = field(default_factory=list)
    newest: Annotated[int | None, merge.add] = 5


def conflict(
    base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any], **rules: Any
) -> str:
    merger = Merger(State, rules={}, path='state', **rules)
    with pytest.raises(StateConflictError) as caught:
        merger.merge(State(**base), State(**mine), State(**theirs), steps=STEPS)
    assert "Steps 'one' and 'two'" in str(caught.value)
    assert 'let only one of them change it' in str(caught.value)
    return str(caught.value)


def test_the_advice_names_the_type_of_the_field_and_the_class_of_the_value() -> None:
    said = conflict({}, {'number': 1}, {'number': 2})
    assert '`Annotated[int, merge.add]`' in said
    assert 'for all values of a type, persist(merge={int: merge.add})' in said
    said = conflict({'maybe': 0}, {'maybe': 1}, {'maybe': 2})
    assert '`Annotated[int | None, merge.add]`' in said
    assert 'persist(merge={int: merge.add})' in said
    said = conflict({}, {'any': 1}, {'any': 2})
    assert '`Annotated[int, merge.add]`' in said


def test_no_rule_by_class_is_advised_where_the_classes_differ() -> None:
    said = conflict({'any': 0}, {'any': 'a'}, {'any': 2})
    assert '`Annotated[str, merge.last]`' in said
    assert 'persist(merge=' not in said


def test_append_is_advised_only_where_it_could_answer() -> None:
    said = conflict({}, {'title': 'bees!'}, {'title': 'On bees'})
    assert '`Annotated[str, merge.last]` (merge.append where both only add to the end)' in said
    said = conflict({'title': 'a'}, {'title': 'b'}, {'title': 'ab'})
    assert '`Annotated[str, merge.last]`' in said
    assert 'append' not in said
    # Both could have been extended without a rule: whoever is here has done something else.
    said = conflict({'log': ['a', 'b']}, {'log': ['a']}, {'log': ['a', 'b', 'c']})
    assert '`Annotated[list[str], merge.last]`' in said
    assert 'append' not in said


def test_a_removed_key_is_the_affair_of_the_dict() -> None:
    said = conflict({'by_name': {'a': 1}}, {'by_name': {}}, {'by_name': {'a': 2}})
    assert '1 became nothing' in said
    assert 'Annotated[dict[…], merge.union]' in said


@pytest.mark.parametrize(
    ('name', 'mine', 'theirs', 'raised', 'advised'),
    [
        ('joined', 1, 2, 'union for `state.joined` raised TypeError', 'Annotated[int, merge.add]'),
        (
            'summed',
            'a',
            'b',
            'add for `state.summed` raised TypeError',
            'Annotated[str, merge.last',
        ),
        ('newest', None, 6, 'add for `state.newest` raised TypeError', '[int | None, merge.last]'),
    ],
)
def test_a_rule_that_could_not_answer_is_not_advised_again(
    name: str, mine: Any, theirs: Any, raised: str, advised: str
) -> None:
    said = conflict({}, {name: mine}, {name: theirs})
    assert f'The merge rule {raised}' in said
    _, _, advice = said.partition('Use another rule')
    assert advised in advice
    assert f'merge.{raised.split(maxsplit=1)[0]}' not in advice


# --- what is given to persist() -------------------------------------------------------------------


def graph_of(state_type: Any) -> Any:
    g = GraphBuilder(state_type=state_type, input_type=int, output_type=int)

    @g.step
    async def same(ctx: StepContext[Any, None, int]) -> int:
        return ctx.inputs

    g.add(g.edge_from(g.start_node).to(same), g.edge_from(same).to(g.end_node))
    return g.build()


class Typed(TypedDict):
    number: int


async def waits(base: Any, mine: Any, committed: Any) -> Any:
    return mine


class Callable3:
    def __call__(self, base: Any, mine: Any, committed: Any) -> Any:
        return mine


@pytest.mark.parametrize(
    ('rules', 'says'),
    [
        (
            {'number': merge.add},
            r"'number': .*keys are types.*`number: Annotated\[…, merge\.add\]`",
        ),
        ({'State.number': merge.add}, r'`number: Annotated\[…, merge\.add\]`'),
        ({'int': merge.last}, r'keys are types'),
        ({list[int]: merge.append}, r'list\[int\].*without arguments: give \{list: …\}'),
        ({int | None: merge.last}, r'int \| None.*of a union, name its members'),
        ({3: merge.last}, r'3: ….*keys are the classes of values'),
        ({Typed: merge.last}, r'Typed.*plain dicts.*`Annotated\[Typed, merge\.last\]`'),
        ({State: merge.last}, r'State is the state itself.*field by field.*Annotate its fields'),
        ({int: 1}, r'int: ….*must be callable, got 1; a rule is a function \(base, mine, commi'),
        ({int: 'add'}, r"must be callable, got 'add'"),
        ({int: lambda a, b: a}, r'<lambda> cannot be called with three values'),
        ({int: int}, r'int cannot be called with three values'),
        ({int: waits}, r'waits is async'),
        (merge.add, r'must be a mapping of types to rules, \{int: merge\.add\}, got <function'),
        ([int], r'must be a mapping of types to rules'),
    ],
)
def test_what_is_no_rule_is_refused_by_persist(rules: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        graphkeep.persist(graph_of(State), merge=rules)


@pytest.mark.parametrize('rule', [merge.last, max, Callable3(), lambda a, b, *rest: b])
def test_whatever_takes_three_values_is_a_rule(rule: Callable[..., Any]) -> None:
    graphkeep.persist(graph_of(State), merge={int: rule, Inner: rule})


def test_a_rule_for_the_whole_of_a_state_with_fields_is_refused() -> None:
    for state_type in (Annotated[State, merge.last], Annotated[Typed, merge.last]):
        with pytest.raises(TypeError, match='is the state itself'):
            graphkeep.persist(graph_of(state_type))
    # Of a state without fields it is the rule for the value.
    merger = Merger(dict[str, int], rules={dict: merge.union}, path='state')
    assert merger.merge({'a': 1}, {'a': 2}, {'a': 3}, steps=STEPS) == {'a': 2}
    graphkeep.persist(graph_of(Annotated[int, merge.add]), merge={int: merge.add})


def test_a_rule_that_is_async_is_found_out() -> None:
    @dataclass
    class Waiting:
        number: Annotated[int, waits] = 0

    merger = Merger(Waiting, rules={}, path='state', namespace={'waits': waits})
    with pytest.raises(
        StateConflictError, match=r'rule waits for `state\.number`.*must not be async'
    ):
        merger.merge(Waiting(), Waiting(1), Waiting(2), steps=STEPS)
