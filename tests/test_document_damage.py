"""Damaged documents and deltas, and changes that do not fit: refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkeep.document import FORMAT, Change, Document, NewerFormatError, Tail
from tests.documents import FULL, GOLDEN, parts


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'null',
        b'{',
        b'{}',
        b'\xff',
        b'{"format":1}',
        b'{"format":1,"state":}',
        b'{"format":1.0,"state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":true,"state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":"1","state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":0,"state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":-1,"state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":1,"tasks":[],"joins":{},"next":{}}',
        b'{"format":1,"state":1,"joins":{},"tasks":{},"next":{}}',
        b'{"format":1,"state":1,"tasks":{},"joins":{}}',
        b'{"format":1,"state":1,"tasks":{},"joins":{},"next":{}',
        b'{"format":1,"state":1,"tasks":{},"joins":{},"next":{}}}',
        b'{"format":1,"state":1,"tasks":{},"joins":{},"next":{},"other":1}',
        b'{"format":1,"state":1,"tasks":{},"joins":{},"next":{},"output":}',
        b'{"format":1, "state":1,"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":01,"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":{"a":1,"a":2},"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":{"a":1,"\\u0061":2},"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":{"a":1,},"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":{a:1},"tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":"\xff","tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":"\xed\xa0\x80","tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":"\n","tasks":{},"joins":{},"next":{}}',
        b'{"format":1,"state":' + b'[' * 100_000 + b']' * 100_000 + b',"tasks":{}}',
    ],
    ids=repr,
)
def test_a_damaged_document_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r'.') as caught:
        Document.from_json(data)
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize(
    'data', [b'{"format":2,"state":{}}', b' { "format" : 2 }', b'{"format":2}']
)
def test_a_newer_format_is_told_from_damage(data: bytes) -> None:
    with pytest.raises(NewerFormatError) as caught:
        Document.from_json(data)
    assert caught.value.found == FORMAT + 1 == 2
    with pytest.raises(NewerFormatError):
        Document.from_json(FULL).apply(data)


@pytest.mark.parametrize(
    'delta',
    [
        '',
        '{}',
        '[]',
        '{"format":1,',
        '{"format":1,"state":{}',
        '{"format":1,"other":1}',
        '{"format":1,"format":2,"tasks":1}',
        '{"format":1,"tasks":1,"values":[1]}',
        '{"format":1,"tasks":null}',
        '{"format":1,"tasks":{"1":null}}',
        '{"format":1,"tasks":{"7":true}}',
        '{"format":1,"tasks":{"7":"x"}}',
        '{"format":1,"tasks":{"7":1.5}}',
        '{"format":1,"tasks":{"7":{}}}',
        '{"format":1,"tasks":{"7":[]}}',
        '{"format":1,"tasks":{"7":[0,0]}}',
        '{"format":1,"tasks":{"7":[0,0,1]}}',
        '{"format":1,"tasks":{"7":[0,true,"x"]}}',
        '{"format":1,"tasks":{"7":[0.0,0,"x"]}}',
        '{"format":1,"tasks":{"7":[-1,0,"x"]}}',
        '{"format":1,"tasks":{"7":[4,-1,"x"]}}',
        '{"format":1,"tasks":{"7":[0,1000,"x"]}}',
        '{"format":1,"tasks":{"7":[1000,0,"x"]}}',
        '{"format":1,"tasks":{"7":[1000000000000000000000000,0,"x"]}}',
        '{"format":1,"tasks":{"7":[0,1,"x",0,1,"y"]}}',
        '{"format":1,"tasks":{"7":[5,1,"x",2,1,"y"]}}',
        '{"format":1,"tasks":{"7":[0,1,"x",2,1]}}',
        '{"format":1,"tasks":{"7":[0,1,"x",2,null,"y"]}}',
        '{"format":1,"tasks":{"7":[0,1,"\\ud800"]}}',
        '{"format":1,"tasks":{"1":[0,0,"x"]}}',
        '{"format":1,"state":[0,0,"x"]}',
        '{"format":1,"state":null}',
        '{"format":1,"output":[0,0,"x"]}',
        '{"format":1,"output":null}',
        '{"format":1,"next":null}',
        '{"format":1,"next":1}',
        '{"format":1,"next":0,"values":[]}',
        '{"format":1,"next":-1,"values":[1]}',
        '{"format":1,"next":1,"values":[]}',
        '{"format":1,"next":1,"values":[1,2]}',
        '{"format":1,"next":1,"values":[11]}',
        '{"format":1,"next":9,"values":[1]}',
        '{"format":1,"next":1,"values":[1],"order":{}}',
        '{"format":1,"next":1,"values":[1]',
        '{"format":1,"tasks":{},"values":[]}',
        '{"format":1,"tasks":{},"values":{}}',
        '{"format":1,"tasks":{"1":2,"2":2},"values":[1,234]}',
        '{"format":1,"state":6,"values":[{"a":}]}',
        '{"format":1,"state":13,"values":[{"a":1,"a":1}]}',
        '{"format":1,"order":[]}',
        '{"format":1,"order":{"tasks":["7"]}}',
        '{"format":1,"order":{"state":"topic"}}',
        '{"format":1,"order":{"state":["nowhere"]}}',
        '{"format":1,"order":{"state":[1]}}',
        '{"format":1,"order":{"state":["topic"],"tasks":["7"]}}',
    ],
)
def test_a_damaged_delta_is_refused(delta: str) -> None:
    with pytest.raises(ValueError, match=r'.'):
        Document.from_json(FULL).apply(delta.encode())


def test_the_whole_of_a_state_cannot_be_operated_on_as_an_object_when_it_is_none() -> None:
    document = Document(state=b'[1]')
    with pytest.raises(ValueError, match='is not an object'):
        document.apply(b'{"format":1,"state":{"a":null}}')
    with pytest.raises(ValueError, match='order'):
        document.apply(b'{"format":1,"order":{"state":["a"]}}')


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_mutated_bytes_raise_value_errors_only(data: st.DataObject) -> None:
    delta = data.draw(st.sampled_from(GOLDEN))[2]
    for original in (FULL, delta.encode()):
        damaged = bytearray(original)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(damaged)))
            end = data.draw(st.integers(at, min(len(damaged), at + 5)))
            damaged[at:end] = data.draw(
                st.binary(max_size=4)
                | st.sampled_from([b'"', b'[', b'{', b'}', b'null', b'9', b','])
            )
        try:
            document = Document.from_json(bytes(damaged))
        except ValueError:
            pass
        else:
            assert document.to_json() == damaged or b'\\u' in damaged
        document = Document.from_json(FULL)
        try:
            document.apply(bytes(damaged))
        except ValueError:
            continue
        assert document.size == len(document.to_json())


@settings(deadline=None)
@given(st.binary(max_size=200), parts)
def test_random_bytes_raise_value_errors_only(noise: bytes, part: bytes) -> None:
    for data in (noise, part, b'{"format":1,' + noise, b'{"format":1,"state":' + part + noise):
        with pytest.raises(ValueError, match=r'.'):
            Document.from_json(data)
        try:
            Document.from_json(FULL).apply(data)
        except ValueError:
            pass


@pytest.mark.parametrize(
    'change',
    [
        Change(tasks={'1': None}),
        Change(joins={'1': None}),
        Change(state={'topic': Tail(start=1, data=b'1', count=1)}),
        Change(state={'messages': Tail(start=0, data=b'1', count=1)}),
        Change(state={'elsewhere': Tail(start=3, data=b'1', count=1)}),
    ],
    ids=lambda _: '',
)
def test_a_change_that_does_not_fit_changes_nothing(change: Change) -> None:
    document = Document.from_json(FULL)
    for method in (document.delta, document.size_after, document.advance):
        with pytest.raises(ValueError, match='not'):
            method(change)
    assert document.to_json() == FULL
