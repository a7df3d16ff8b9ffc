"""Documents and deltas: exact, and in the form that is pinned."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from graphkeep.document import Change, Document, Tail, replay
from graphkeep.parts import elements
from graphkeep.splices import edits, splice, triples
from tests.documents import FULL, GOLDEN, changes, copy, documents, expected


@given(documents)
def test_a_document_is_split_and_rendered_to_the_same_bytes(document: Document) -> None:
    data = document.to_json()
    again = Document.from_json(data)
    assert again.to_json() == data
    assert (again.state, again.tasks, again.joins) == (
        document.state,
        document.tasks,
        document.joins,
    )
    assert list(again.tasks) == list(document.tasks)
    assert again.size == document.size == len(data)
    assert document.size_after(Change()) == len(data)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.data())
def test_a_delta_gives_the_exact_bytes(data: st.DataObject) -> None:
    document = data.draw(documents)
    stored = copy(document)
    first = document.to_json()
    deltas: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 4))):
        change = data.draw(changes(document))
        before = document.to_json()
        after = expected(document, change)
        delta = document.delta(change)
        assert document.to_json(change) == after
        assert document.size_after(change) == len(after)
        assert document.to_json() == before, 'only advance() may change the document'
        document.advance(change)
        assert document.to_json() == after
        assert document.size == len(after)
        assert (delta == b'') == (before == after)
        if delta:
            json.loads(delta)
            deltas.append(delta)
            stored.apply(delta)
        assert stored.to_json() == after
        assert stored.size == len(after)
    assert replay(first, deltas).to_json() == document.to_json()


@settings(deadline=None)
@given(st.text('ab1é日😀"\\,:{}', max_size=200), st.data())
def test_splices_are_exact_and_cut_between_characters(old: str, data: st.DataObject) -> None:
    new = old
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(new)))
        end = data.draw(st.integers(at, min(len(new), at + 10)))
        new = new[:at] + data.draw(st.text('ab1é日😀😁èê', max_size=40)) + new[end:]
    old = old * data.draw(st.sampled_from([1, 3]))
    was, will_be = old.encode(), new.encode()
    done = 0
    for a, b, c, d in edits(was, will_be):
        assert done <= a <= b
        done = b
        for text, start, end in ((was, a, b), (will_be, c, d)):
            assert text[:start].decode() + text[start:end].decode() == text[:end].decode()
    stored = triples(was, will_be)
    if stored is not None:
        assert len(stored) < len(will_be)
        if stored != b'[]':
            assert splice(was, json.loads(stored)) == will_be
        else:
            assert was == will_be


def test_edits_of_large_texts_are_exact() -> None:
    chance = random.Random(7)
    for size in (100, 1_000, 5_000, 70_000):
        for _ in range(25):
            old = json.dumps([chance.choice(['x', 'é', i, str(i)]) for i in range(size // 5)])
            new = old
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(new))
                new = new[:at] + '😀' * chance.randrange(30) + new[at + chance.randrange(500) :]
            was, will_be = old.encode(), new.encode()
            made = b''
            done = 0
            for a, b, c, d in edits(was, will_be):
                made += was[done:a] + will_be[c:d]
                done = b
            assert made + was[done:] == will_be


@pytest.mark.parametrize(('change', 'delta'), [case[1:] for case in GOLDEN], ids=lambda _: '')
def test_the_stored_form_of_a_delta(change: Change, delta: str) -> None:
    document = Document.from_json(FULL)
    after = document.to_json(change)
    assert document.delta(change).decode() == delta
    assert replay(FULL, [delta.encode()]).to_json() == after


def test_the_stored_form_of_a_document() -> None:
    document = Document(
        state={'a': b'1.0', '\0"\ud800é': b'[]'},
        tasks={'1': b'{"node":"n"}'},
        next=b'{"task":2,"fork":0}',
        output=b'null',
    )
    assert document.to_json().decode() == (
        '{"format":1,"state":{"a":1.0,"\\u0000\\"\\ud800é":[]},"tasks":{"1":{"node":"n"}},'
        '"joins":{},"next":{"task":2,"fork":0},"output":null}'
    )


def test_several_splices_of_one_part_are_stored_in_one_list() -> None:
    filler = ' '.join(map(str, range(100_000, 100_040)))
    old = f'{{"first":"é","filler":"{filler}","last":"日"}}'.encode()
    new = old.replace('é'.encode(), 'è'.encode()).replace('日'.encode(), b'x')
    document = Document(state={'a': old})
    delta = document.delta(Change(state={'a': new}))
    assert delta.decode() == '{"format":1,"state":{"a":[10,2,"è",313,3,"x"]}}'
    document.apply(delta)
    assert document.state == {'a': new}


def test_a_delta_that_changes_nothing_may_be_stored() -> None:
    document = Document.from_json(FULL)
    assert (
        document.delta(Change(next=b'{"task":9,"fork":4}', tasks={'8': b'{"node":"review"}'}))
        == b''
    )
    document.apply(b'{"format":1}')
    assert document.to_json() == FULL


def test_a_key_called_values_is_not_taken_for_the_values() -> None:
    document = Document(state={'values': b'[' + b'"values",' * 20 + b'1]', 'a': b'1'})
    new: dict[str, bytes | Tail] = {
        'values': b'[' + b'"values",' * 21 + b'1]',
        ',"values":[': b'{"x":1,"values":[]}',
    }
    delta = document.delta(Change(state=new))
    assert b'null,"values":[' in delta, 'looks like the values, one level too deep'
    document.apply(delta)
    assert document.state == new


def test_a_state_given_as_the_text_of_an_object_is_split() -> None:
    document = Document(state=b'{"a":1,"b":[2]}')
    assert document.state == {'a': b'1', 'b': b'[2]'}
    change = Change(state=b'{"a":1,"b":[3]}')
    assert document.delta(change) == b'{"format":1,"state":{"b":3},"values":[[3]]}'
    document.advance(change)
    assert document.state == {'a': b'1', 'b': b'[3]'}


def test_deeper_nesting_than_pydantic_reads_survives() -> None:
    deep = b'[' * 400 + b']' * 400
    document = Document(state={'a': b'1'})
    delta = document.delta(Change(state={'a': deep}))
    document.apply(delta)
    assert Document.from_json(document.to_json()).state == {'a': deep}


def test_spelling_alone_is_a_change() -> None:
    for old, new in (('1', '1.0'), ('0.0', '-0.0'), ('1', 'true'), ('"é"', '"\\u00e9"')):
        document = Document(state={'a': old.encode()})
        delta = document.delta(Change(state={'a': new.encode()}))
        assert delta
        document.apply(delta)
        assert document.state == {'a': new.encode()}


def test_a_tail_grows_a_part_in_place() -> None:
    document = Document(state={'a': b'[]'})
    document.advance(Change(state={'a': Tail(start=0, data=b'1', count=1)}))
    assert isinstance(document.state, dict)
    part = document.state['a']
    change = Change(state={'a': Tail(start=1, data=b'2,3', count=2), 'b': Tail(0, b'', 0)})
    document.advance(change)
    assert document.state['a'] is part
    assert document.state == {'a': b'[1,2,3]', 'b': b'[]'}


@given(
    items=st.lists(st.binary(max_size=8).map(lambda b: to_json(b.hex())), max_size=6),
    more=st.lists(st.lists(st.integers(), max_size=3), max_size=5),
)
def test_a_join_grows_by_tails_at_the_end_of_its_object(
    items: list[bytes], more: list[list[int]]
) -> None:
    """A buffer's array is its last member: an item costs its own bytes, not the buffer's."""

    def buffer(elements: list[bytes]) -> bytes:
        return b'{"forks":[],"items":[' + b','.join(elements) + b']}'

    document = Document(state=b'null', joins={'collect/3': buffer(items)})
    stored = Document.from_json(document.to_json())
    held = list(items)
    for numbers in more:
        new = [b'%d' % n for n in numbers]
        change = Change(joins={'collect/3': Tail(len(held), b','.join(new), len(new), b']}')})
        held += new
        whole = document.to_json(change)
        assert document.size_after(change) == len(whole)
        delta = document.delta(change)
        assert bool(delta) == bool(new)
        document.advance(change)
        assert document.to_json() == whole
        assert document.size == len(whole)
        if delta:
            stored.apply(delta)
        assert stored.to_json() == whole
    assert bytes(document.joins['collect/3']) == buffer(held)


def test_a_tail_for_a_join_that_is_not_there_is_refused() -> None:
    change = Change(joins={'collect/3': Tail(0, b'1', 1, b']}')})
    with pytest.raises(ValueError, match='collect/3'):
        Document(state=b'null').delta(change)


@given(st.lists(st.recursive(st.integers() | st.text(), st.lists, max_leaves=4), max_size=5))
def test_elements_are_cut_out_byte_for_byte(values: list[object]) -> None:
    array = b'[' + b','.join(to_json(v) for v in values) + b']'
    assert elements(array) == [to_json(v) for v in values]


@pytest.mark.parametrize('damaged', [b'', b'[', b'[1', b'[1,]', b'[1]x', b'{}', b'[,1]'])
def test_elements_of_what_is_no_array_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r'.'):
        elements(damaged)


def test_has_state_is_byte_for_byte_and_key_by_key() -> None:
    document = Document(state={'a': b'1', 'b': b'[1]'})
    assert document.has_state({'a': b'1', 'b': b'[1]'})
    assert document.has_state({'a': b'1', 'b': Tail(1, b'', 0)})
    assert not document.has_state({'b': b'[1]', 'a': b'1'})
    assert not document.has_state({'a': b'1.0', 'b': b'[1]'})
    assert not document.has_state({'a': b'1', 'b': Tail(1, b'2', 1)})
    assert not document.has_state(b'null')
