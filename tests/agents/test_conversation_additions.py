"""What graphkeep adds to pydantic-ai's conversation store, on every store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry
from pydantic_ai.exceptions import UserError

from graphkeep import Store
from graphkeep.agents import Conversations
from graphkeep.agents.records import Unfinished
from tests.classic.conftest import every_store

from .talking import ask, branches, conversation, load, messages, new_id, turns

pytestmark = every_store


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


async def test_counting_and_ranges(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2, 3))
    name = talk.conversation_id
    assert await kept.count(name) is None
    assert await kept.load_range(name) is None
    await kept.save(talk, scope='ada')
    assert await kept.count(name, scope='ada') == 6
    for start in (0, 1, 4, 6, 9):
        for stop in (None, 0, 2, 5, 6, 9):
            part = await kept.load_range(name, start, stop, scope='ada')
            assert [entry.message for entry in part or ()] == talk.messages[start:stop]
    fork = await kept.fork(name, at=1)
    assert await kept.count(fork.conversation_id) == 1
    assert await kept.clear(name)
    assert (await kept.count(name), await kept.load_range(name)) == (0, [])


async def test_a_cleared_conversation_is_empty_and_keeps_its_usage(kept: Conversations) -> None:
    talk = conversation(*turns(1, 2))
    name = talk.conversation_id
    assert await kept.clear(name) is False
    entries = await kept.save(talk, scope='ada')
    await kept.branch(name, at=2, expected_revision=talk.revision)
    fork = await kept.fork(name, at=1)
    assert await kept.clear(name, scope='ada')
    empty = await load(kept, name)
    assert (empty.messages, empty.usage) == ([], talk.usage)
    assert await kept.load(name, scope='ada') == empty
    assert await branches(kept, name) == []
    for gone in entries[1:]:
        with pytest.raises(LookupError):
            await kept.read_entry(gone.id)
    assert await messages(kept, fork.conversation_id) == talk.messages[:1]
    with pytest.raises(ConversationConflict):
        await kept.save(talk)
    empty.messages += turns(5)
    await kept.save(empty)
    assert await messages(kept, name) == empty.messages


async def test_an_expired_conversation_is_not_there_and_its_messages_are_for_others(
    store: Store, kept: Conversations
) -> None:
    short = Conversations(store, ttl=timedelta(milliseconds=200))
    scope = new_id()
    talk, lasting = conversation(*turns(1, 2)), conversation(*turns(3))
    name = talk.conversation_id
    entries = await short.save(talk, scope=scope)
    await kept.save(lasting, scope=scope)
    fork = await kept.fork(name, at=2)
    async with asyncio.timeout(20):
        while await kept.load(name) is not None:
            await asyncio.sleep(0.02)  # the clock is the database's
    assert {record.conversation_id for record in await kept.list_conversations(scope=scope)} == {
        fork.conversation_id,
        lasting.conversation_id,
    }
    with pytest.raises(UserError):
        await kept.fork(name)
    with pytest.raises(ConversationConflict):
        await kept.save(talk)
    assert await kept.count(name) is None
    assert await kept.prune() >= 1
    with pytest.raises(LookupError):
        await kept.read_entry(entries[3].id)
    assert await messages(kept, fork.conversation_id) == talk.messages[:2]
    again = conversation(*turns(4), name=name)
    await kept.save(again)
    await kept.prune()
    assert await messages(kept, name) == again.messages


async def test_a_run_that_was_given_up_is_a_branch(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    name = talk.conversation_id
    assert await kept.discard(name) is False
    await kept.save(talk, scope='ada')
    assert await kept.discard(name) is False
    for number, scope in enumerate((None, 'ada')):
        record = await kept.read_record(name)
        assert record is not None
        half = ConversationEntry(parent_id=record.head_id, message=ask(f'half {number}'))
        run = Unfinished(run_id='r', owner=None, tip=half.id, count=1)
        under_way = replace(record, revision=new_id())
        await kept.put(under_way, [half], expected_revision=record.revision, unfinished=run)
        assert await messages(kept, name) == talk.messages
        assert await kept.discard(name, scope='bob') is False
        assert await kept.discard(name, scope=scope) is True
        assert await kept.discard(name, scope=scope) is False
        left = await branches(kept, name)
        assert len(left) == number + 1
        assert left[number] == [*talk.messages, half.message]
    assert await messages(kept, name) == talk.messages
