"""pydantic-ai's message histories, under both majors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import pytest
from pydantic import TypeAdapter

pytest.importorskip('pydantic_ai')

from pydantic_ai import messages as m
from pydantic_ai.usage import RequestUsage

from graphkeep.codec import AppendOnly, Codec
from graphkeep.document import Tail
from graphkeep.errors import LossyStateError

PNG = b'\x89PNG\r\n\x1a\n' + bytes(range(256))


@dataclass
class State:
    topic: str
    messages: list[m.ModelMessage] = field(default_factory=list)


@dataclass
class Log:
    messages: Annotated[list[m.ModelMessage], AppendOnly] = field(default_factory=list)


CODEC = Codec(State, path='state')
ONE: Codec[m.ModelMessage] = Codec(cast('Any', m.ModelMessage), path='message')


def prompt(content: Any) -> m.ModelMessage:
    return m.ModelRequest(parts=[m.UserPromptPart(content=content)])


def returned(content: Any) -> m.ModelMessage:
    return m.ModelRequest(
        parts=[m.ToolReturnPart(tool_name='f', tool_call_id='1', content=content)]
    )


MESSAGES = [
    m.ModelRequest(parts=[m.SystemPromptPart(content='be kind')], instructions='briefly'),
    prompt('what? \ud800 \x00'),
    prompt(['a', m.ImageUrl(url='https://example.org/y.png')]),
    prompt([m.ImageUrl(url='https://x.org/y', media_type='image/png', identifier='q')]),
    prompt([m.DocumentUrl(url='https://x.org/y.pdf', vendor_metadata={'a': 1})]),
    prompt([m.BinaryContent(data=b'\xff\x00', media_type='application/pdf')]),
    prompt([m.BinaryContent(data=PNG, media_type='image/png')]),
    prompt([m.BinaryContent(data=PNG, media_type='image/png', identifier='mine')]),
    prompt([m.BinaryImage(data=PNG, media_type='image/png')]),
    prompt(['x', m.CachePoint()]),
    returned('done'),
    returned({'lone \ud800': ['\udfff']}),
    returned([m.BinaryContent(data=PNG, media_type='image/png'), '\ud800', 1, None, 2.5]),
    returned({'rows': [1, 2.5, None, {'deep': True}]}),
    returned(m.BinaryContent(data=PNG, media_type='image/png')),
    returned(m.BinaryImage(data=PNG, media_type='image/png')),
    returned([m.BinaryContent(data=PNG, media_type='image/png'), {'a': 'b'}]),
    returned({'files': [m.BinaryImage(data=PNG, media_type='image/png')]}),
    returned({'file': m.ImageUrl(url='https://example.org/y.png')}),
    m.ModelResponse(
        parts=[m.TextPart(content='yes'), m.ThinkingPart(content='hm', signature='s')],
        usage=RequestUsage(input_tokens=3, details={'cached': 1}),
        model_name='model',
        provider_details={'x': 1.5},
    ),
    m.ModelResponse(parts=[m.ToolCallPart(tool_name='f', args={'a': 1}, tool_call_id='1')]),
    m.ModelResponse(parts=[m.ToolCallPart(tool_name='f', args='{"a":', tool_call_id='1')]),
    m.ModelResponse(parts=[m.FilePart(content=m.BinaryImage(data=PNG, media_type='image/png'))]),
    m.ModelResponse(parts=[m.FilePart(content=m.BinaryContent(data=PNG, media_type='image/png'))]),
]


def exactly_equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b) and not hasattr(a, 'utcoffset'):
        return False
    if dataclasses.is_dataclass(a):
        names = [each.name for each in dataclasses.fields(a) if each.compare]
        return all(exactly_equal(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(exactly_equal(a[key], b[key]) for key in a)
    return a == b


@pytest.mark.parametrize('message', MESSAGES, ids=lambda each: ascii(each.parts)[:60])
def test_a_message_comes_back(message: m.ModelMessage) -> None:
    state = State('x', [message])
    parts: Any = CODEC.encode(state).parts
    back = CODEC.decode(parts)
    assert back == state
    assert exactly_equal(back, state)
    assert CODEC.encode(back).parts == parts


@pytest.mark.parametrize('message', MESSAGES, ids=lambda each: ascii(each.parts)[:60])
def test_a_plain_message_is_the_same_loaded_plainly(message: m.ModelMessage) -> None:
    text = ONE.text(message)
    back = ONE.decode_all([text, text], plain=ONE.is_plain(message, text))
    assert back == [message, message]
    assert all(exactly_equal(each, message) for each in back)
    # Only the functions that tell an image from another file matter.
    assert ONE.is_plain(message, text) == ('BinaryImage' not in ascii(message.parts))


def test_what_its_usage_has_beyond_its_fields_is_not_plain() -> None:
    message = m.ModelResponse(parts=[m.TextPart('x')], usage=RequestUsage(input_tokens=1))
    text = ONE.text(message)
    assert ONE.is_plain(message, text)
    more = text.replace(b'"input_tokens":1', b'"input_tokens":1,"new_tokens":5')
    back: Any = ONE.decode_all([more])[0]
    if hasattr(back.usage, 'new_tokens'):  # pydantic-ai 2 keeps what a later version has written
        assert not ONE.is_plain(back, more)


def test_pydantic_ai_reads_what_is_stored() -> None:
    state = State('x', [each for each in MESSAGES if 'ud800' not in ascii(each)][2:])
    parts: Any = CODEC.encode(state).parts
    read = TypeAdapter(list[m.ModelMessage]).validate_json(parts['messages'])
    assert [each.kind for each in read] == [each.kind for each in state.messages]


@pytest.mark.parametrize(
    ('content', 'path'),
    [
        ({'a': (1, 2)}, "['a']"),
        (b'abc', ''),
        (float('nan'), ''),
        ([State('x')], '[0]'),
        ({1: 2}, '[1]'),
    ],
    ids=str,
)
def test_a_tool_result_that_json_changes_is_refused(content: Any, path: str) -> None:
    state = State('x', [prompt('?'), returned(content)])
    with pytest.raises(LossyStateError) as caught:
        CODEC.encode(state)
    assert caught.value.path == 'state.messages[1].parts[0].content' + path


def test_append_only_histories_are_encoded_from_the_old_length_on() -> None:
    codec = Codec(Log, path='state')
    log = Log([prompt('a')])
    seen = codec.encode(log).seen
    log.messages.append(prompt('b'))
    parts: Any = codec.encode(log, seen=seen).parts
    tail = parts['messages']
    assert isinstance(tail, Tail)
    assert (tail.start, tail.count) == (1, 1)
    assert TypeAdapter(list[m.ModelMessage]).validate_json(b'[' + tail.data + b']') == [
        log.messages[1]
    ]


def test_a_request_that_is_filled_in_late_is_noticed() -> None:
    codec = Codec(Log, path='state')
    log = Log([prompt('a')])
    seen = codec.encode(log).seen
    log.messages[0].instructions = 'late'  # type: ignore[union-attr]
    log.messages.append(prompt('b'))
    with pytest.raises(LossyStateError) as caught:
        codec.encode(log, seen=seen)
    assert caught.value.path == 'state.messages[0]'


def test_a_tool_return_that_json_changes_says_what_the_tool_should_return() -> None:
    @dataclass
    class Account:
        number: int

    part = m.ToolReturnPart(tool_name='look_up', content=Account(7), tool_call_id='1')
    codec = Codec[list[m.ModelMessage]](list[m.ModelMessage], path='state.messages')
    with pytest.raises(LossyStateError, match='Let the tool return a dict'):
        codec.encode([m.ModelRequest(parts=[part])])
