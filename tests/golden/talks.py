"""Conversations as a release stores them.

Runs of 1.x can only be made beside pydantic-ai 1.x, which has no conversations: what
`Conversations` and `KeepRun` hand to a store was written down once, beside 2.x, in `talks.json`,
with `python -m tests.golden.talks`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from datetime import datetime
from pathlib import Path
from typing import Any

from graphkeep import Store
from graphkeep.conversations import (
    ConversationWrite,
    StoredConversation,
    StoredEntry,
    places_json,
    places_of,
)
from graphkeep.owner import current

from .graphs import WORDS

TALKS = Path(__file__).parent / 'talks.json'
PICTURE = bytes(range(256)) * 2
INLINE = 300


def as_json(write: ConversationWrite) -> dict[str, Any]:
    row = write.conversation
    return {
        'conversation': {
            'conversation_id': row.conversation_id,
            'revision': row.revision,
            'scope': row.scope,
            'updated_at': row.updated_at.isoformat(),
            'tips': list(row.tips),
            'data': row.data.decode('ascii').replace(current(), 'elsewhere/1/-/-/-/0'),
        },
        'expected_revision': write.expected_revision,
        'entries': [
            [each.entry_id, each.parent_id, each.data.decode(), each.library, _places(each)]
            for each in write.entries
        ],
        'blobs': {name: b64encode(blob).decode() for name, blob in write.blobs.items()},
        'ttl': write.ttl,
    }


def _places(entry: StoredEntry) -> str | None:
    return places_json(entry.places)


def from_json(kept: dict[str, Any]) -> ConversationWrite:
    row = kept['conversation']
    values = row | {
        'updated_at': datetime.fromisoformat(row['updated_at']),
        'tips': tuple(row['tips']),
        'data': row['data'].encode(),
    }
    return ConversationWrite(
        conversation=StoredConversation(**values),
        expected_revision=kept['expected_revision'],
        entries=[
            StoredEntry(
                entry_id=entry_id,
                parent_id=parent_id,
                data=data.encode(),
                library=library,
                places=places_of(places),
            )
            for entry_id, parent_id, data, library, places in kept['entries']
        ],
        blobs={name: b64decode(blob) for name, blob in kept['blobs'].items()},
        ttl=kept['ttl'],
    )


async def write(store: Store) -> None:
    """Everything that was written down."""
    for kept in json.loads(TALKS.read_text('ascii')):
        assert await store.write_conversation(from_json(kept))


def messages() -> list[Any]:
    from pydantic_ai.messages import (
        BinaryContent,
        ModelRequest,
        ModelResponse,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    at = datetime.fromisoformat('2026-11-30T12:00:00.000001+00:00')
    words = '|'.join(WORDS)
    picture = BinaryContent(PICTURE, media_type='image/png')
    call = ToolCallPart('weigh', {'order': words, 'n': 2**80}, tool_call_id='call-1')
    thought = ThinkingPart('hm', signature='s1g', provider_name='p', provider_details={'a': 1.0})
    returned = ToolReturnPart(
        tool_name='weigh', content={'kg': 1.0, 'x': [None]}, tool_call_id='call-1', timestamp=at
    )
    return [
        ModelRequest(parts=[UserPromptPart([words, picture], timestamp=at)], timestamp=at),
        ModelResponse(parts=[thought, call], model_name='m', timestamp=at),
        ModelRequest(parts=[returned], timestamp=at, run_id='r1', conversation_id='chat'),
        ModelResponse(parts=[TextPart('one kilo \0 \ud800')], model_name='m', timestamp=at),
    ]


async def check(store: Store) -> None:
    """What a reader may want of them, and a run that goes on."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    from graphkeep.agents import KeepRun

    conversations = store.conversations
    first, second, third, fourth = messages()
    chat = await conversations.load('chat', scope='zoë')
    assert chat is not None
    assert chat.messages == [first, second]
    assert chat.usage.requests == 2
    record = await conversations.read_record('chat')
    assert record is not None
    (left,) = record.branches
    history = await conversations.read_history(left)
    assert [entry.message for entry in history] == [first, second, third, fourth]
    fork = await conversations.load('fork {1}')
    assert fork is not None
    assert fork.messages == [first, second, third]
    assert [r.conversation_id for r in await conversations.list_conversations()] == [
        'half-way',
        'chat',
        'fork {1}',
    ]
    await conversations.delete('chat')
    assert (await conversations.load('fork {1}')) == fork

    def never() -> str:
        raise AssertionError('the tool has returned before')

    said = [TextPart('done')]
    agent = Agent(FunctionModel(lambda *_: ModelResponse(parts=said), model_name='m'))
    agent.tool_plain(name='weigh')(never)
    result = await agent.run(
        None, conversation_id='half-way', capabilities=[KeepRun(conversations)]
    )
    assert result.output == 'done'
    loaded = await conversations.load('half-way')
    assert loaded is not None
    kinds = ['user-prompt', 'tool-call', 'tool-return', 'text']
    assert [part.part_kind for m in loaded.messages for part in m.parts] == kinds


async def make() -> list[dict[str, Any]]:
    from pydantic_ai import Agent
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RunUsage

    from graphkeep.agents import Conversations, KeepRun
    from graphkeep.errors import StoreClosedError
    from graphkeep.stores.memory import MemoryStore

    written: list[ConversationWrite] = []

    class Noting(MemoryStore):
        async def write_conversation(self, write: ConversationWrite) -> bool:
            if len(written) == 7:
                raise StoreClosedError('the process has died')
            written.append(write)
            return await super().write_conversation(write)

    conversations = Conversations(Noting(), inline=INLINE, ttl=3e9)
    chat = Conversation(
        conversation_id='chat', messages=messages(), usage=RunUsage(requests=2, tool_calls=1)
    )
    await conversations.save(chat, scope='zoë')
    await conversations.fork('chat', at=3, new_conversation_id='fork {1}')
    assert chat.revision is not None
    await conversations.branch('chat', at=2, expected_revision=chat.revision)
    await conversations.save(Conversation(conversation_id='half-way'))
    agent = Agent(
        FunctionModel(
            lambda *_: ModelResponse(parts=[ToolCallPart('weigh', {}, tool_call_id='c')]),
            model_name='m',
        )
    )

    @agent.tool_plain
    def weigh() -> str:
        return 'two kilos'

    try:
        keep = KeepRun(conversations)
        await agent.run('weigh it', conversation_id='half-way', capabilities=[keep])
    except StoreClosedError:
        pass
    return [as_json(each) for each in written]


if __name__ == '__main__':
    if TALKS.exists():
        sys.exit('talks.json exists: what a release has stored is not written again')
    TALKS.write_text(json.dumps(asyncio.run(make()), indent=1) + '\n', 'ascii')
