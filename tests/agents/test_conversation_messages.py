"""Messages come back as they are or are refused; one that cannot be read takes no other with it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import pytest
from pydantic import BaseModel

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import messages as m
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RequestUsage

import graphkeep.agents.messages
from graphkeep import LossyStateError, Store
from graphkeep.agents import Conversations
from graphkeep.agents.messages import LIBRARY
from graphkeep.codec import Codec
from graphkeep.conversations import EntriesQuery
from tests.classic.conftest import every_store
from tests.test_codec_messages import MESSAGES, exactly_equal

from .talking import ask, branches, conversation, load, messages, turns

pytestmark = every_store

PNG = b'\x89PNG\r\n\x1a\n' + bytes(range(256))
HUGE = 10**40


@dataclass
class Point:
    x: int


class Model(BaseModel):
    x: int


def returned(content: Any, **options: Any) -> m.ModelRequest:
    part = m.ToolReturnPart('look', content, tool_call_id='c', **options)
    return m.ModelRequest(parts=[part])


MORE: list[m.ModelMessage] = [
    ask(['hear', m.BinaryContent(b'RIFF\x00', media_type='audio/wav'), m.CachePoint()]),
    ask([m.BinaryContent(b'%PDF', media_type='application/pdf', identifier='mine')]),
    ask([m.TextContent('tagged', metadata={'a': [1, None]})]),
    returned({'deep': [{'file': m.BinaryContent(PNG, media_type='image/png')}, 1.0, 1]}),
    returned({'image': m.BinaryImage(PNG, media_type='image/png'), 'huge': [HUGE, -HUGE]}),
    returned([1.0, 1, -0.0, 1e300, True, None, '', {}, []]),
    returned('x', metadata={'n': {'deep': [1.0, 1]}}, outcome='failed'),
    returned({'kind': 'image-url', 'url': 'no file'}),
    returned('2026-11-30T10:00:00Z'),
    m.ModelRequest(
        parts=[m.SystemPromptPart('kind', dynamic_ref='f'), m.UserPromptPart('\x00 \ud800')],
        instructions='brief \udfff\x00',
        metadata={'key \x00': ['\ud800']},
        run_id='r',
        conversation_id='c',
    ),
    returned('again', outcome='retried'),
    m.ModelRequest(
        parts=[m.RetryFeedbackPart('again', retry=m.RetryInfo(cause='validation_error'))]
    ),
    m.ModelResponse(
        parts=[
            m.ThinkingPart('hm', signature='c2ln', id='t', provider_name='p'),
            m.ThinkingPart('', signature='x' * 500, provider_details={'a': {'b': [1, 1.5]}}),
            m.TextPart('a', provider_details={'n': HUGE}),
            m.ToolCallPart('look', '{"broken', tool_call_id='c', provider_details={'k': 1}),
            m.ToolCallPart('look', {'a': 1.0, 'b': 1, 'h': HUGE}, tool_call_id='d', id='i'),
            m.ToolCallPart('look', None, tool_call_id='e'),
            m.NativeToolCallPart('web_search', {'q': 'x'}, tool_call_id='f', provider_name='p'),
            m.NativeToolReturnPart('web_search', {'hits': [1]}, tool_call_id='f'),
            m.FilePart(m.BinaryContent(b'\xff\xfe', media_type='video/mp4')),
        ],
        usage=RequestUsage(input_tokens=3, details={'cached': 1}),
        model_name='model',
        provider_name='p',
        provider_details={'x': 1.5},
        provider_response_id='id',
        finish_reason='tool_call',
        metadata={'rated': 5},
    ),
]
ALL = [*MESSAGES, *MORE]


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


# --- equal, or refused ----------------------------------------------------------------------------


@pytest.mark.parametrize('inline', [0, 100, 65_536])
async def test_messages_come_back_as_they_are(store: Store, inline: int) -> None:
    kept = Conversations(store, inline=inline)
    talk = conversation(*ALL)
    await kept.save(talk)
    # By a reader that knows nothing of how they were stored.
    back = await load(store.conversations, talk.conversation_id)
    for got, given in zip(back.messages, ALL, strict=True):
        assert exactly_equal(got, given), ascii(given)
    # What is compared with what is stored is found to be the same.
    talk.new_message_index = None
    assert await kept.save(talk) == []
    assert await branches(kept, talk.conversation_id) == []


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Model(x=1), 'model'),
    (lambda: Point(1), 'dataclass'),
    (lambda: {'a': (1, 2)}, 'tuple'),
    (lambda: {1, 2}, 'set'),
    (lambda: [{1: 'a'}], 'int keys'),
    (lambda: math.nan, 'NaN'),
    (lambda: {'a': [-math.inf]}, 'infinity'),
    (lambda: b'bytes', 'bytes'),
    (lambda: {'a': b'\xff'}, 'bytes that are no text'),
    (object, 'object'),
    (lambda: ValueError('x'), 'exception'),
    (lambda: [Point], 'class'),
]
refused = pytest.mark.parametrize(
    'make', [make for make, _ in REFUSED], ids=[name for _, name in REFUSED]
)


@refused
async def test_what_would_change_is_refused_by_name(
    make: Callable[[], Any], kept: Conversations
) -> None:
    new = conversation(*turns(1), ask('look!'), returned(make()), *turns(2))
    name = new.conversation_id
    with pytest.raises(LossyStateError) as caught:
        await kept.save(new)
    said = str(caught.value)
    for part in ('new message 3', repr(name), 'ToolReturnPart', "tool 'look'", "'c'"):
        assert part in said
    assert new.revision is None
    assert await kept.load(name) is None
    old = conversation(*turns(1), name=name)
    await kept.save(old)
    before = await load(kept, name)
    old.messages += [m.ModelRequest(parts=[m.UserPromptPart('x'), *returned(make()).parts])]
    with pytest.raises(LossyStateError, match=r'new message 0.*ToolReturnPart of tool .look.'):
        await kept.save(old)
    assert await load(kept, name) == before


@refused
async def test_what_would_change_elsewhere_is_refused_too(
    make: Callable[[], Any], kept: Conversations
) -> None:
    for message in (
        m.ModelRequest(parts=[m.UserPromptPart('x')], metadata={'a': make()}),
        m.ModelResponse(parts=[m.TextPart('x', provider_details={'a': make()})]),
        m.ModelResponse(parts=[m.ToolCallPart('look', {'a': make()})]),
        returned('x', metadata=make()),
    ):
        talk = conversation(ask('x'), message)
        with pytest.raises(LossyStateError, match='new message 1 of conversation'):
            await kept.save(talk)
        assert await kept.load(talk.conversation_id) is None


async def test_a_dict_that_would_come_back_as_a_file_is_refused(kept: Conversations) -> None:
    like = {'kind': 'binary', 'data': 'AAAA', 'media_type': 'image/png'}
    with pytest.raises(LossyStateError, match="tool 'look'"):
        await kept.save(conversation(returned(like)))


async def test_audio_comes_back_as_the_class_that_it_was(kept: Conversations) -> None:
    audio = m.BinaryAudio(b'RIFF', media_type='audio/wav')
    plain = m.BinaryContent(b'RIFF', media_type='audio/wav')
    talk = conversation(ask([audio, plain]), returned({'a': [audio, plain]}))
    await kept.save(talk)
    back = await messages(kept, talk.conversation_id)
    assert back == talk.messages
    kinds = [type(each) for each in back[0].parts[0].content]
    assert kinds == [m.BinaryAudio, m.BinaryContent]


def repr_of(value: object) -> str:
    """An id of a test without the address of an object."""
    return type(value).__name__


@pytest.mark.parametrize('metadata', [math.nan, object(), (1,), {1: 2}, Point(1)], ids=repr_of)
async def test_what_waits_with_metadata_that_would_change_is_refused(
    metadata: Any, kept: Conversations
) -> None:
    talk = conversation(*turns(1))
    talk.deferred_tool_requests = DeferredToolRequests(
        calls=[m.ToolCallPart('look', {}, tool_call_id='c')], metadata={'c': {'a': metadata}}
    )
    with pytest.raises(LossyStateError, match=repr(talk.conversation_id)):
        await kept.save(talk)
    assert await kept.load(talk.conversation_id) is None


async def test_what_a_tool_returned_is_stored_as_the_model_sees_it(store: Store) -> None:
    kept = Conversations(store, on_lossy='plain')
    given = [Model(x=1), Point(2), {'a': (1, 2)}, {3}, {1: 'a'}, b'ab', [HUGE, 1.0]]
    talk = conversation(*(returned(each) for each in given))
    await kept.save(talk)
    back = [
        part.content
        for message in await messages(kept, talk.conversation_id)
        for part in message.parts
        if isinstance(part, m.ToolReturnPart)
    ]
    plain = [{'x': 1}, {'x': 2}, {'a': [1, 2]}, [3], {'1': 'a'}, 'YWI=', [HUGE, 1.0]]
    assert back == plain
    assert isinstance(back[-1][1], float)
    for bad in (math.nan, object(), ValueError('x')):
        with pytest.raises(LossyStateError, match="tool 'look'"):
            await kept.save(conversation(returned(bad)))


async def test_a_history_that_ends_in_an_open_call_stays_so(kept: Conversations) -> None:
    call = m.ModelResponse(parts=[m.ToolCallPart('look', {'at': 1}, tool_call_id='c')])
    talk = conversation(ask('look!'), call)
    await kept.save(talk)
    again = await load(kept, talk.conversation_id)
    assert again.messages == [*talk.messages]
    again.messages.append(returned('seen'))
    await kept.save(again)
    assert await messages(kept, talk.conversation_id) == again.messages


# --- what is large and binary ---------------------------------------------------------------------


async def stored(store: Store, kept: Conversations, name: str) -> Any:
    record = await kept.read_record(name)
    assert record is not None
    assert record.head_id is not None
    found = await store.find_entries(EntriesQuery(head_id=record.head_id))
    assert found is not None
    return found


async def test_the_versions_say_how_a_message_is_read(
    store: Store, kept: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation(*turns(1, 2), ask(['see', m.BinaryImage(PNG, media_type='image/png')]))
    await kept.save(talk)
    found = await stored(store, kept, talk.conversation_id)
    here = f'{version("pydantic-ai-slim")} pydantic {version("pydantic")} plain 1'
    assert [*found.entries.libraries] == [here, here, here, here, LIBRARY]
    asked: list[bool] = []
    decode_all = Codec.decode_all

    def decoding(codec: Any, texts: Any, *, plain: bool = False) -> Any:
        asked.append(plain)
        return decode_all(codec, texts, plain=plain)

    monkeypatch.setattr(Codec, 'decode_all', decoding)
    assert (await load(kept, talk.conversation_id)).messages == talk.messages
    part = await kept.load_range(talk.conversation_id, 0, 4)
    assert [entry.message for entry in part or ()] == talk.messages[:4]
    # Another version of either reads the same rows with all its functions.
    monkeypatch.setattr(graphkeep.agents.messages, '_PLAIN', here + '1')
    part = await kept.load_range(talk.conversation_id, 0, 4)
    assert [entry.message for entry in part or ()] == talk.messages[:4]
    assert asked == [False, True, False]


async def test_what_is_large_is_stored_once_by_its_content(
    store: Store, kept: Conversations
) -> None:
    data = PNG * 1_000
    key = sha256(data).hexdigest()
    file = m.BinaryContent(data, media_type='image/png')
    one = conversation(
        ask(['a', file, m.BinaryContent(data, media_type='application/pdf')]),
        m.ModelResponse(parts=[m.FilePart(m.BinaryImage(data, media_type='image/png'))]),
        returned({'deep': [{'file': file}]}),
        ask(['other', m.BinaryContent(data + b'x', media_type='image/png')]),
    )
    two = conversation(ask([file]))
    for talk in (one, two):
        await kept.save(talk)
        found = await stored(store, kept, talk.conversation_id)
        assert all(len(entry.data) < 2_000 for entry in found.entries)
        assert found.blobs[key] == data
        assert len(found.blobs) == (2 if talk is one else 1)
        assert await messages(kept, talk.conversation_id) == talk.messages
    fork = await kept.fork(one.conversation_id, at=1)
    await kept.delete(one.conversation_id)
    assert await messages(kept, two.conversation_id) == two.messages
    await kept.delete(two.conversation_id)
    assert (await messages(kept, fork.conversation_id)) == one.messages[:1]


async def test_what_is_small_stays_in_its_message(store: Store) -> None:
    kept, little = store.conversations, Conversations(store, inline=1_000)
    sizes = {700: True, 800: False}
    for size, stays in sizes.items():
        talk = conversation(ask([m.BinaryContent(b'\xfe' * size, media_type='image/png')]))
        await little.save(talk)
        found = await stored(store, little, talk.conversation_id)
        assert (not found.blobs) == stays
        assert await messages(kept, talk.conversation_id) == talk.messages
        talk = conversation(*talk.messages)
        await kept.save(talk)
        assert not (await stored(store, kept, talk.conversation_id)).blobs


async def test_text_that_looks_binary_is_text(store: Store) -> None:
    kept = Conversations(store, inline=8)
    texts = ['A' * 99, 'A' * 100, 'AB' * 50 + '=', 'A' * 97 + 'B==', '_-' * 50, '+/_-' * 20]
    texts += [base64.b64encode(PNG).decode(), 'ABCDEFGH', 'ABCD\\"EFGHIJKL\\', 'ä' + 'A' * 64]
    talk = conversation(*(ask(text) for text in texts), returned({text: text for text in texts}))
    await kept.save(talk)
    assert await messages(kept, talk.conversation_id) == talk.messages
