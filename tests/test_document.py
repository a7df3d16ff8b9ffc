"""Documents and deltas: exact, small, and refused when damaged."""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from graphkeep.document import (
    FORMAT,
    Change,
    Document,
    NewerFormatError,
    Tail,
    replay,
    wants_full,
)
from graphkeep.parts import elements
from graphkeep.splices import edits, splice, triples

# JSON *texts*, not values: `1`, `1.0`, escapes and surrogates are told apart.

NUMBERS = ['0', '-0', '0.0', '-0.0', '1', '1.0', '1e0', '1E+2', '12345678901234567890123', '0.1']
STRINGS = [
    '""',
    '"a"',
    '"\\u0061"',
    '"é"',
    '"\\u00e9"',
    '"日本語"',
    '"😀"',
    '"😁"',
    '"\\ud83d"',
    '"\\ude00"',
    '"\\u0000"',
    '"\\"},{[\\\\"',
    '",\\"values\\":["',
]


def text_of(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).encode('utf-8', 'backslashreplace').decode()


scalars = (
    st.sampled_from(['null', 'true', 'false', *NUMBERS, *STRINGS])
    | st.text(max_size=12).map(text_of)
    | st.text('aé日😀', min_size=20, max_size=300).map(text_of)
)
keys = st.sampled_from(
    ['', 'a', 'b', 'values', 'format', 'state', '"', '\\', '\0', 'é', '日', '😀', '\ud800', 'a"b,{']
) | st.text(max_size=4)


def _object(members: dict[str, str]) -> str:
    return '{' + ','.join(f'{text_of(k)}:{v}' for k, v in members.items()) + '}'


texts = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=6).map(lambda items: '[' + ','.join(items) + ']')
        | st.dictionaries(keys, inner, max_size=5).map(_object)
    ),
    max_leaves=20,
)
parts = texts.map(str.encode)
objects = st.dictionaries(keys, parts, max_size=5)
states = objects | parts


def _documents(task_ids: Any = keys) -> st.SearchStrategy[Document]:
    return st.builds(
        Document,
        state=states,
        tasks=st.dictionaries(task_ids, parts, max_size=4),
        joins=st.dictionaries(task_ids, parts, max_size=3),
        next=parts,
        output=st.none() | parts,
    )


documents = _documents()


def copy(document: Document) -> Document:
    return Document.from_json(document.to_json())


@st.composite
def edited(draw: st.DrawFn, text: bytes) -> bytes:
    """A part like `text`, with some of its JSON changed."""
    how = draw(st.sampled_from(['new', 'digits', 'element', 'word', 'same']))
    source = text.decode()
    if how == 'new':
        return draw(parts)
    if how == 'digits':
        source = source.replace('1', draw(st.sampled_from(['2', '1.0', '11'])))
    elif how == 'element' and source.startswith('[') and source != '[]':
        source = source[:-1] + ',' + draw(texts) + ']'
    elif how == 'word':
        source = source.replace('é', draw(st.sampled_from(['è', 'e', '日', '😀'])))
    try:
        json.loads(source)
    except ValueError:  # a digit of an escape
        return text
    return source.encode()


@st.composite
def changes(draw: st.DrawFn, document: Document) -> Change:
    change = Change()
    if draw(st.booleans()):
        change.state = draw(parts)
    if isinstance(document.state, dict) and draw(st.integers(0, 3)):
        order = list(document.state)
        if draw(st.booleans()):
            order = draw(st.permutations(order))
        state: dict[str, bytes | Tail] = {}
        for key in order:
            part = bytes(document.state[key])
            if not draw(st.integers(0, 5)):
                continue
            state[key] = draw(edited(bytes(part)))
            if part.startswith(b'[') and draw(st.booleans()):
                new = draw(st.lists(texts, max_size=3))
                start = len(json.loads(part))
                state[key] = Tail(start=start, data=','.join(new).encode(), count=len(new))
        if draw(st.booleans()):
            new_members: dict[str, bytes | Tail] = {**draw(objects)}
            state = {**new_members, **state} if draw(st.booleans()) else {**state, **new_members}
        change.state = state
    for old, new in ((document.tasks, change.tasks), (document.joins, change.joins)):
        for key, part in old.items():
            what = draw(st.integers(0, 3))
            if what < 2:
                new[key] = None if what else draw(edited(bytes(part)))
        for key, part in draw(st.dictionaries(keys, parts, max_size=2)).items():
            new.setdefault(key, part)
    change.next = draw(st.none() | parts)
    change.output = draw(st.none() | parts)
    return change


def expected(document: Document, change: Change) -> bytes:
    """What the document becomes, by the plainest code there is."""
    state = document.state
    if isinstance(change.state, bytes):
        state = change.state
    elif change.state is not None:
        old = document.state if isinstance(document.state, dict) else {}
        state = {}
        for key, part in change.state.items():
            if isinstance(part, Tail):
                inside = bytes(old.get(key, b'[]'))[1:-1]
                pieces = [piece for piece in (inside, part.data) if piece]
                part = b'[' + b','.join(pieces) + b']'
            state[key] = part
    tasks, joins = dict(document.tasks), dict(document.joins)
    for parts_, new in ((tasks, change.tasks), (joins, change.joins)):
        for key, part in new.items():
            if part is None:
                del parts_[key]
            else:
                cast('dict[str, Any]', parts_)[key] = part

    def rendered(members: Any) -> str:
        if isinstance(members, (bytes, bytearray)):
            return members.decode()
        return _object({key: bytes(part).decode() for key, part in members.items()})

    members = {
        'state': rendered(state),
        'tasks': rendered(tasks),
        'joins': rendered(joins),
        'next': (change.next or document.next).decode(),
    }
    output = change.output or document.output
    if output is not None:
        members['output'] = output.decode()
    return _object({'format': '1', **members}).encode()


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


# The stored form, pinned: what is in databases must stay readable.

FULL = (
    '{"format":1,"state":{"topic":"ünï","messages":[{"role":"user"}],"draft":null,"count":1},'
    '"tasks":{"7":{"node":"write","inputs":{"a":1.0},"born":1764489600000001},'
    '"8":{"node":"review"}},"joins":{"collect/3":{"items":[]}},"next":{"task":9,"fork":4}}'
).encode()

LONG = b'{"node":"write","inputs":{"a":1.0},"born":1764489600000009}'

GOLDEN: list[tuple[str, Change, str]] = [
    (
        'a step',
        Change(
            state={
                'topic': '"ünï"'.encode(),
                'messages': Tail(start=1, data='{"role":"bot","text":"ja é"}'.encode(), count=1),
                'draft': b'null',
                'count': b'2',
            },
            tasks={'7': None, '9': b'{"node":"send"}'},
            next=b'{"task":10,"fork":4}',
        ),
        (
            '{"format":1,"state":{"messages":[16,0,",{\\"role\\":\\"bot\\",\\"text\\":\\"ja é\\"}"'
            '],"count":1},"tasks":{"7":null,"9":15},"next":20,'
            '"values":[2,{"node":"send"},{"task":10,"fork":4}]}'
        ),
    ),
    (
        'a splice of a task, a join removed',
        Change(tasks={'7': LONG}, joins={'collect/3': None}),
        '{"format":1,"tasks":{"7":[57,1,"9"]},"joins":{"collect/3":null}}',
    ),
    (
        'a key removed, one new, one moved',
        Change(
            state={
                'messages': b'[{"role":"user"}]',
                'count': b'1',
                'new "\0é\ud800': b'{"x":[]}',
                'topic': '"ünï"'.encode(),
            }
        ),
        (
            '{"format":1,"state":{"draft":null,"new \\"\\u0000é\\ud800":8},'
            '"order":{"state":["topic"]},"values":[{"x":[]}]}'
        ),
    ),
    (
        'another state, and the output',
        Change(state=b'[1,-0.0]', output=b'null'),
        '{"format":1,"state":8,"output":4,"values":[[1,-0.0],null]}',
    ),
    (
        'an order alone',
        Change(
            state={
                'count': b'1',
                'topic': '"ünï"'.encode(),
                'messages': b'[{"role":"user"}]',
                'draft': b'null',
            }
        ),
        '{"format":1,"order":{"state":["topic","messages","draft"]}}',
    ),
]


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


# Damage


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


# Sizes


def message(number: int) -> str:
    return json.dumps(
        {'role': 'user', 'n': number, 'text': f'{number:06} ' * 53}, separators=(',', ':')
    )


def task(number: int, node: str = 'Reply') -> bytes:
    return (
        f'{{"node":"{node}","inputs":{{"n":{number}}},"forks":[["__start__","0",0]],'
        f'"born":1764489600000001}}'
    ).encode()


class Run:
    """A run that writes what the policy says, and remembers what it wrote."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.rows: list[tuple[str, bytes]] = [('full', document.to_json())]

    def commit(self, change: Change) -> None:
        delta = self.document.delta(change)
        last = max(i for i, row in enumerate(self.rows) if row[0] == 'full')
        since = [len(data) for _, data in self.rows[last + 1 :]]
        if wants_full(
            self.document.size_after(change),
            len(delta),
            full=len(self.rows[last][1]),
            deltas=len(since),
            since=sum(since),
        ):
            self.rows.append(('full', self.document.to_json(change)))
        else:
            self.rows.append(('delta', delta))
        self.document.advance(change)

    @property
    def written(self) -> int:
        return sum(len(data) for _, data in self.rows)

    @property
    def to_read(self) -> list[bytes]:
        last = max(i for i, row in enumerate(self.rows) if row[0] == 'full')
        return [data for _, data in self.rows[last:]]


@pytest.mark.parametrize('tails', [False, True])
def test_400_steps_that_append_a_message_store_at_most_3_times_the_document(tails: bool) -> None:
    run = Run(Document(state={'topic': b'"x"', 'messages': b'[]'}, tasks={'0': task(0)}))
    messages: list[str] = []
    for number in range(400):
        messages.append(message(number))
        state: dict[str, bytes | Tail] = {'topic': b'"x"'}
        state['messages'] = (
            Tail(start=number, data=messages[-1].encode(), count=1)
            if tails
            else f'[{",".join(messages)}]'.encode()
        )
        run.commit(
            Change(
                state=state,
                tasks={str(number): None, str(number + 1): task(number + 1)},
                next=b'{"task":%d,"fork":0}' % (number + 2),
            )
        )
    final = run.document.to_json()
    assert run.written <= 3 * len(final)
    assert sum(map(len, run.to_read)) <= 4 * len(final)
    assert replay(run.to_read[0], run.to_read[1:]).to_json() == final


def test_a_large_document_with_a_counter_is_rewritten_rarely() -> None:
    blob = b'"%b"' % (b'x' * 20_000)
    run = Run(Document(state={'blob': blob, 'count': b'0'}))
    for number in range(2_000):
        run.commit(Change(state={'blob': blob, 'count': b'%d' % number}))
    fulls = sum(kind == 'full' for kind, _ in run.rows)
    assert fulls <= 2_000 * 300 / (3 * 20_000)
    assert len(run.to_read) <= 4 * 20_000 / 200


def test_a_small_document_is_read_from_one_row() -> None:
    run = Run(Document(state={'n': b'0'}, tasks={'0': task(0)}))
    for number in range(100):
        run.commit(
            Change(
                state={'n': b'%d' % number},
                tasks={str(number): None, str(number + 1): task(number + 1)},
                next=b'{"task":%d,"fork":0}' % (number + 2),
            )
        )
    assert len(run.to_read) <= 2
    assert run.written <= 101 * (run.document.size + 20)


def test_a_document_that_shrinks_is_written_in_full() -> None:
    run = Run(Document(state={'blob': b'"%b"' % (b'x' * 20_000), 'more': b'"%b"' % (b'y' * 1_000)}))
    run.commit(Change(state={'more': b'"%b"' % (b'y' * 1_000)}))
    assert run.rows[-1][0] == 'full'


def test_one_of_1000_tasks_changes_with_a_small_delta() -> None:
    tasks = {str(n): task(n, 'Branch') for n in range(1_000)}
    document = Document(state={'n': b'0'}, tasks=dict(tasks))
    ends = document.delta(Change(tasks={'500': None}))
    assert ends == b'{"format":1,"tasks":{"500":null}}'
    waits = tasks['500'][:-1] + b',"waits":{"id":"r1"}}'
    assert len(document.delta(Change(tasks={'500': waits}))) < 80
    grows = document.delta(Change(tasks={'500': None, '1000': task(1000)}))
    assert len(grows) < len(task(1000)) + 70


def _results(numbers: range) -> dict[str, Any]:
    return {f'task-{n:04}': {'status': 'pending', 'result': None, 'tries': 0} for n in numbers}


def _delta_of(old: object, new: object) -> bytes:
    was, will_be = (
        json.dumps(value, separators=(',', ':'), ensure_ascii=False).encode()
        for value in (old, new)
    )
    document = Document(state={'a': was})
    delta = document.delta(Change(state={'a': will_be}))
    document.apply(delta)
    assert document.state == {'a': will_be}
    return delta


def test_distant_changes_in_one_part_are_stored_apart() -> None:
    old, new = _results(range(1_000)), _results(range(1_000))
    for n in (3, 400, 990):
        new[f'task-{n:04}'].update(status='done', result={'text': f'é {n}'}, tries=1)
    assert len(_delta_of(old, new)) < 250
    del new['task-0100'], new['task-0700']
    new['task-1000'] = {'status': 'new'}
    assert len(_delta_of(old, new)) < 400
    listed = list(new.values())
    listed.insert(500, {'status': 'between'})
    assert len(_delta_of(list(old.values()), listed)) < 700


def test_every_entry_changed_is_no_larger_than_setting_the_part() -> None:
    old, new = _results(range(1_000)), _results(range(1_000))
    for entry in new.values():
        entry['tries'] = 1
    size = len(json.dumps(new, separators=(',', ':')))
    assert len(_delta_of(old, new)) <= size + 100
    other = [random.Random(1).random() for _ in range(5_000)]
    assert len(_delta_of(old, other)) <= len(json.dumps(other, separators=(',', ':'))) + 100


@pytest.mark.parametrize('seed', range(20))
def test_random_edits_of_a_large_object_cost_what_they_change(seed: int) -> None:
    chance = random.Random(seed)
    old, new = _results(range(1_000)), _results(range(1_000))
    changed = 0
    for _ in range(chance.randrange(1, 12)):
        key = f'task-{chance.randrange(1_000):04}'
        what = chance.randrange(3)
        if what == 0:
            new.pop(key, None)
        elif what == 1:
            new[key] = {'status': 'x' * chance.randrange(100), 'n': chance.random()}
        else:
            new[key + 'b'] = chance.random()
        changed += len(json.dumps(new.get(key))) + 40
    assert len(_delta_of(old, new)) <= 200 + 3 * changed


def test_the_last_element_of_a_list_grows_by_what_is_new() -> None:
    old = [message(n) for n in range(100)]
    assert len(_delta_of(old, [*old[:-1], old[-1] + 'more'])) < 60


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
