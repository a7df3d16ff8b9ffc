"""Documents and changes to draw from, what becomes of them, and the stored form, pinned."""

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import strategies as st

from graphkeep.document import Change, Document, Tail

__all__ = ('FULL', 'GOLDEN', 'changes', 'copy', 'documents', 'expected', 'parts')

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


documents = st.builds(
    Document,
    state=states,
    tasks=st.dictionaries(keys, parts, max_size=4),
    joins=st.dictionaries(keys, parts, max_size=3),
    next=parts,
    output=st.none() | parts,
)


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
