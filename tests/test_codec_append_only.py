"""`AppendOnly`: the cost of a commit follows what was appended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from graphkeep.codec import AppendOnly, Codec
from graphkeep.document import Tail
from graphkeep.errors import LossyStateError, UnstorableTypeError
from tests.codec_classes import Probe


class Word(BaseModel):
    text: str = ''


@dataclass
class State:
    log: Annotated[list[Word | int | None], AppendOnly] = field(default_factory=list)
    n: int = 0


CODEC = Codec(State, path='state')


def parts_of(state: State, seen: Any = None) -> dict[str, Any]:
    parts = CODEC.encode(state, seen=seen).parts
    assert isinstance(parts, dict)
    return parts


def test_the_first_encode_has_the_whole_list() -> None:
    assert parts_of(State([1, Word(text='a')])) == {'log': b'[1,{"text":"a"}]', 'n': b'0'}


def test_after_that_only_new_elements_are_encoded() -> None:
    state = State([1])
    seen = CODEC.encode(state).seen
    assert parts_of(state, seen)['log'] == Tail(1, b'', 0)
    state.log += [2, Word(text='b')]
    encoded = CODEC.encode(state, seen=seen)
    assert encoded.parts == {'log': Tail(1, b'2,{"text":"b"}', 2), 'n': b'0'}
    state.log.append(None)
    assert parts_of(state, encoded.seen)['log'] == Tail(3, b'null', 1)


def test_an_encode_that_was_not_committed_can_be_repeated() -> None:
    state = State([1])
    seen = CODEC.encode(state).seen
    state.log.append(2)
    assert CODEC.encode(state, seen=seen).parts == CODEC.encode(state, seen=seen).parts


def test_seen_after_decoding() -> None:
    state = CODEC.decode({'log': b'[1,{"text":"a"}]', 'n': b'3'})
    seen = CODEC.seen(state)
    state.log.append(5)
    assert parts_of(state, seen)['log'] == Tail(2, b'5', 1)


def test_an_empty_list_grows_from_nothing() -> None:
    state = State()
    seen = CODEC.encode(state).seen
    state.log.append(5)
    assert parts_of(state, seen)['log'] == Tail(0, b'5', 1)


def test_equal_elements_in_other_objects_are_accepted() -> None:
    state = State([Word(text='a'), Word(text='b')])
    seen = CODEC.encode(state).seen
    state.log = [Word(text='a'), Word(text='b'), 3]
    assert parts_of(state, seen)['log'] == Tail(2, b'3', 1)


def shorten(log: list[Any]) -> None:
    log.pop()


def replace_first(log: list[Any]) -> None:
    log[0] = Word(text='z')


def replace_by_equal(log: list[Any]) -> None:
    log[0] = True  # == 1


def change_last(log: list[Any]) -> None:
    log[-1].text = 'late'


def reorder(log: list[Any]) -> None:
    log.reverse()


@pytest.mark.parametrize(
    ('change', 'path'),
    [
        (shorten, 'state.log'),
        (replace_first, 'state.log[0]'),
        (replace_by_equal, 'state.log[0]'),
        (change_last, 'state.log[1]'),
        (reorder, 'state.log[0]'),
    ],
)
def test_a_list_that_did_more_than_grow_is_refused(change: Any, path: str) -> None:
    state = State([1, Word(text='b')])
    seen = CODEC.encode(state).seen
    change(state.log)
    with pytest.raises(LossyStateError, match='drop the annotation') as caught:
        CODEC.encode(state, seen=seen)
    assert caught.value.path == path


def test_new_elements_are_checked_for_loss() -> None:
    state = State([1])
    seen = CODEC.encode(state).seen
    state.log += [2, True]
    with pytest.raises(LossyStateError) as caught:
        CODEC.encode(state, seen=seen)
    assert caught.value.path == 'state.log[2]'


def test_it_must_be_a_list() -> None:
    with pytest.raises(LossyStateError, match='must hold a list'):
        CODEC.encode(State((1,)))  # type: ignore[arg-type]

    @dataclass
    class Wrong:
        log: Annotated[set[int], AppendOnly]

    with pytest.raises(UnstorableTypeError, match='plain list'):
        Codec(Wrong, path='state')


@dataclass
class Probed:
    log: Annotated[list[Annotated[int, Probe]], AppendOnly]


@pytest.mark.parametrize('length', [10, 10_000])
def test_a_step_costs_the_same_at_any_length(length: int) -> None:
    codec = Codec(Probed, path='state')
    codec.encode(Probed([1]))
    state = Probed(list(range(length)))
    encoded = codec.encode(state)
    state.log.append(7)
    Probe.dumped = Probe.loaded = 0
    codec.encode(state, seen=encoded.seen)
    # The new element, what it loads as, and the last old one.
    assert (Probe.dumped, Probe.loaded) == (3, 1)


def test_pydantic_models_and_typed_aliases_may_carry_it() -> None:
    class Model(BaseModel):
        log: Annotated[list[int], AppendOnly] = []

    codec = Codec(Model, path='state')
    state = Model(log=[1])
    seen = codec.encode(state).seen
    state.log.append(2)
    assert codec.encode(state, seen=seen).parts == {'log': Tail(1, b'2', 1)}


@given(st.lists(st.lists(st.integers() | st.none(), max_size=4), max_size=5))
@settings(deadline=None)
def test_tails_put_together_are_the_whole(additions: list[list[int | None]]) -> None:
    state = State()
    encoded = CODEC.encode(state)
    pieces: list[bytes] = []
    for addition in additions:
        state.log += addition
        encoded = CODEC.encode(state, seen=encoded.seen)
        assert isinstance(encoded.parts, dict)
        tail = encoded.parts['log']
        assert isinstance(tail, Tail)
        assert tail.start == len(state.log) - len(addition)
        assert tail.count == len(addition)
        pieces += [tail.data] if addition else []
    assert b'[' + b','.join(pieces) + b']' == parts_of(state)['log']
