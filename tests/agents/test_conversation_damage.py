"""Messages and rows that cannot be read, and bad input: an error that says what, and no loss."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry
from pydantic_ai.exceptions import UserError

from graphkeep import (
    DamagedConversationError,
    FormatVersionError,
    Store,
    UnreadableMessageError,
)
from graphkeep.agents import Conversations
from graphkeep.agents.messages import LIBRARY
from graphkeep.agents.records import row_of
from graphkeep.conversations import ConversationWrite, StoredEntry
from tests.classic.conftest import every_store

from .talking import ask, branches, conversation, load, messages, new_id, say, turns

pytestmark = every_store

FOREIGN = json.dumps({'kind': 'request', 'parts': [{'part_kind': 'smell', 'content': 'x'}]})


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


@pytest.fixture
def lenient(store: Store) -> Conversations:
    return Conversations(store, on_unreadable='skip')


async def add(store: Store, name: str, data: str = FOREIGN) -> str:
    """Add a message that another version has written."""
    kept = store.conversations
    record = await kept.read_record(name)
    assert record is not None
    entry = StoredEntry(new_id(), record.head_id, data.encode(), '9.9.9')
    changed = replace(
        record, head_id=entry.entry_id, revision=new_id(), updated_at=datetime.now(tz=UTC)
    )
    write = ConversationWrite(
        conversation=row_of(changed), expected_revision=record.revision, entries=[entry]
    )
    assert await store.write_conversation(write)
    return entry.entry_id


async def with_foreign(store: Store, kept: Conversations, *, last: bool = False) -> tuple[str, str]:
    """A conversation with two messages, one that cannot be read, and two more."""
    talk = conversation(*turns(1))
    await kept.save(talk, scope='ada')
    name = talk.conversation_id
    foreign = await add(store, name)
    if not last:
        record = await kept.read_record(name)
        assert record is not None
        entries = [ConversationEntry(parent_id=foreign, message=ask('question 2'))]
        entries.append(ConversationEntry(parent_id=entries[0].id, message=say('answer 2')))
        changed = replace(record, head_id=entries[1].id, revision=new_id())
        await kept.write_record(changed, new_entries=entries, expected_revision=record.revision)
    return name, foreign


async def is_stored(kept: Conversations, entry_id: str) -> bool:
    try:
        await kept.read_entry(entry_id)
    except UnreadableMessageError:
        return True
    except LookupError:
        return False
    raise AssertionError('it cannot be read')


def said(found: Conversation | list[ConversationEntry] | None) -> list[Any]:
    assert found is not None
    each = found.messages if isinstance(found, Conversation) else [e.message for e in found]
    return [part.content for message in each for part in message.parts]  # type: ignore[union-attr]


# --- messages of other versions -------------------------------------------------------------------


async def test_a_message_that_cannot_be_read_is_named(store: Store, kept: Conversations) -> None:
    name, foreign = await with_foreign(store, kept)
    for reading in (
        kept.load(name),
        kept.load(name, limit=3),
        kept.load_entries(name),
        kept.load_range(name, 2, 3),
        kept.read_entry(foreign),
        kept.fork(name),
    ):
        with pytest.raises(UnreadableMessageError, match='smell') as caught:
            await reading
        error = caught.value
        assert (error.entry_id, error.position, error.library) == (foreign, 2, '9.9.9')
        for part in (foreign, '9.9.9', LIBRARY, 'Message 2'):
            assert part in str(error)
    # What is not asked for need not be read.
    assert said(await kept.load(name, limit=2)) == ['question 2', 'answer 2']
    assert said(await kept.load_range(name, 0, 2)) == ['question 1', 'answer 1']
    assert await kept.count(name) == 5
    assert [r.conversation_id for r in await kept.list_conversations(scope='ada')].count(name) == 1


async def test_the_other_messages_are_read(
    store: Store, kept: Conversations, lenient: Conversations, caplog: pytest.LogCaptureFixture
) -> None:
    name, foreign = await with_foreign(store, kept)
    everything = ['question 1', 'answer 1', 'question 2', 'answer 2']
    with caplog.at_level(logging.WARNING, 'graphkeep'):
        assert said(await lenient.load(name)) == everything
    assert foreign in caplog.text
    assert said(await lenient.load_entries(name)) == everything
    assert said(await lenient.load_range(name, 1, 4)) == everything[1:3]
    with pytest.raises(UnreadableMessageError):
        await lenient.read_entry(foreign)
    talk = await load(lenient, name)
    talk.messages += turns(3)
    await lenient.save(talk)
    assert said(await lenient.load(name)) == [*everything, 'question 3', 'answer 3']
    assert await is_stored(kept, foreign)
    assert await lenient.count(name) == 7
    assert await branches(lenient, name) == []


async def test_other_conversations_are_as_ever(store: Store, kept: Conversations) -> None:
    talk = conversation(*turns(1))
    await kept.save(talk)
    fork = await kept.fork(talk.conversation_id)
    await add(store, talk.conversation_id)
    with pytest.raises(UnreadableMessageError):
        await kept.load(talk.conversation_id)
    assert await messages(kept, fork.conversation_id) == talk.messages
    await kept.delete(talk.conversation_id)
    assert await kept.load(talk.conversation_id) is None
    assert await messages(kept, fork.conversation_id) == talk.messages


@pytest.mark.parametrize('data', ['null', '[]', '{"kind":"x"}', '1', '{"kind":"request"}'])
async def test_a_damaged_message_is_named(store: Store, kept: Conversations, data: str) -> None:
    talk = conversation(*turns(1))
    await kept.save(talk)
    damaged = await add(store, talk.conversation_id, data)
    with pytest.raises(UnreadableMessageError) as caught:
        await kept.load(talk.conversation_id)
    assert caught.value.entry_id == damaged
    skipping = Conversations(store, on_unreadable='skip')
    assert await messages(skipping, talk.conversation_id) == talk.messages


async def test_a_skipped_message_is_not_lost_by_a_branch(
    store: Store, kept: Conversations, lenient: Conversations
) -> None:
    for at in (1, 2):
        name, foreign = await with_foreign(store, kept, last=True)
        talk = await load(lenient, name)
        await lenient.branch(name, at=at, expected_revision=talk.revision)
        assert await is_stored(kept, foreign)


async def test_a_skipped_message_is_not_lost_by_a_save_that_compares(
    store: Store, kept: Conversations, lenient: Conversations
) -> None:
    name, foreign = await with_foreign(store, kept, last=True)
    talk = await load(lenient, name)
    talk.new_message_index = None
    talk.messages += turns(3)
    await lenient.save(talk)
    assert await is_stored(kept, foreign)


async def test_a_skipped_message_doubles_no_other(
    store: Store, kept: Conversations, lenient: Conversations
) -> None:
    name, _ = await with_foreign(store, kept)
    talk = ConversationTypeAdapter.validate_json(
        ConversationTypeAdapter.dump_json(await load(lenient, name))
    )
    assert talk.new_message_index == 4
    talk.messages += turns(3)
    await lenient.save(talk)
    assert await messages(lenient, name) == talk.messages


# --- damaged rows ---------------------------------------------------------------------------------


async def damage(store: Store, name: str, data: bytes) -> str:
    kept = store.conversations
    record = await kept.read_record(name)
    assert record is not None
    row = replace(row_of(record), data=data, revision=new_id())
    write = ConversationWrite(conversation=row, expected_revision=record.revision)
    assert await store.write_conversation(write)
    return row.revision


BROKEN = pytest.mark.parametrize(
    'data',
    [b'{}', b'null', b'[]', b'"x"', b'{"format":1}', b'{"format":1,"head":null,"usage":{}}',
     b'{"format":1,"head":7,"usage":{}}', b'{"format":true}', b'{"format":null}'],
    ids=bytes.decode,
)  # fmt: skip


@BROKEN
async def test_a_damaged_conversation_is_named_and_others_are_read(
    store: Store, kept: Conversations, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    scope = new_id()
    talk, other = conversation(*turns(1)), conversation(*turns(2))
    await kept.save(talk, scope=scope)
    await kept.save(other, scope=scope)
    fork = await kept.fork(talk.conversation_id)
    await damage(store, talk.conversation_id, data)
    name = talk.conversation_id
    for reading in (kept.load(name), kept.count(name), kept.fork(name), kept.clear(name)):
        with pytest.raises(DamagedConversationError) as caught:
            await reading
        assert caught.value.conversation_id == name
    talk.messages += turns(3)
    with pytest.raises(DamagedConversationError):
        await kept.save(talk)
    listed = await kept.list_conversations(scope=scope)
    assert {r.conversation_id for r in listed} == {other.conversation_id, fork.conversation_id}
    assert name in caplog.text
    assert await messages(kept, other.conversation_id) == other.messages
    assert await messages(kept, fork.conversation_id) == talk.messages[:2]


async def test_a_damaged_conversation_can_be_deleted(store: Store, kept: Conversations) -> None:
    talk = conversation(*turns(1))
    await kept.save(talk)
    fork = await kept.fork(talk.conversation_id)
    await damage(store, talk.conversation_id, b'{}')
    await kept.delete(talk.conversation_id)  # as the error says
    assert await kept.load(talk.conversation_id) is None
    assert await messages(kept, fork.conversation_id) == talk.messages


async def test_a_conversation_of_a_newer_graphkeep(store: Store, kept: Conversations) -> None:
    talk = conversation(*turns(1))
    await kept.save(talk)
    await damage(store, talk.conversation_id, b'{"format":2,"head":"x"}')
    with pytest.raises(FormatVersionError):
        await kept.load(talk.conversation_id)


# --- bad input ------------------------------------------------------------------------------------

HOSTILE = [
    "'; DROP TABLE conversations; --", '../../etc/passwd', '{tag}', '}{', 'a:b:c', '*', '?', '[a]',
    '\n\r\t', '%s %d', '\\', '"', '$1', ' ', 'x ', 'X', 'é', 'e\u0301', '\U0001f41d', 'x' * 512,
    '\x01\x7f', 'null', '0', '-1',
]  # fmt: skip


async def test_hostile_ids_are_ids(kept: Conversations) -> None:
    tag = new_id()[:14]
    names = [f'{each[: 512 - len(tag)]}{tag}' for each in HOSTILE]
    talks = [conversation(*turns(n), name=name) for n, name in enumerate(names)]
    for talk in talks:
        await kept.save(talk, scope=talk.conversation_id)
    for talk in talks:
        name = talk.conversation_id
        assert await kept.load(name, scope=name) == talk
        (record,) = await kept.list_conversations(scope=name)
        assert record.conversation_id == name
        fork = await kept.fork(name, new_conversation_id=f'{name[:500]}-fork', scope=tag)
        assert fork.messages == talk.messages
    assert len(await kept.list_conversations(scope=tag)) == len(talks)
    for talk in talks[::2]:
        await kept.delete(talk.conversation_id)
    for number, talk in enumerate(talks):
        found = await kept.load(talk.conversation_id)
        assert found == (talk if number % 2 else None)


@pytest.mark.parametrize('name', ['', 'a\x00b', 'a\ud800', 'x' * 513, 'é' * 257], ids=ascii)
async def test_what_can_be_no_id_is_refused(name: str, kept: Conversations) -> None:
    talk, good = conversation(*turns(1), name=name), conversation(*turns(1))
    await kept.save(good)
    made: list[Callable[[], Awaitable[Any]]] = [
        lambda: kept.load(name),
        lambda: kept.save(talk),
        lambda: kept.save(conversation(), scope=name),
        lambda: kept.delete(name),
        lambda: kept.branch(name, at=0, expected_revision=None),
        lambda: kept.fork(name),
        lambda: kept.fork(good.conversation_id, new_conversation_id=name),
        lambda: kept.list_conversations(scope=name),
        lambda: kept.count(name),
        lambda: kept.load_range(name),
        lambda: kept.clear(name),
        lambda: kept.discard(name),
        lambda: kept.read_entry(name),
    ]
    for doing in made:
        with pytest.raises(ValueError, match=r'conversation_id|scope|entry_id'):
            await doing()
    # Where it is only compared, it is simply another one.
    assert await kept.load(good.conversation_id, scope=name) is None
    with pytest.raises(ConversationConflict):
        await kept.save(good, scope=name)
    with pytest.raises(ConversationConflict):
        await kept.delete_record(good.conversation_id, expected_revision=name)
    with pytest.raises(ConversationConflict):
        await kept.branch(good.conversation_id, at=0, expected_revision=name)
    with pytest.raises(UserError):
        await kept.branch(good.conversation_id, from_entry=name, expected_revision=good.revision)
    assert await load(kept, good.conversation_id) == good


async def test_negative_numbers_are_refused(kept: Conversations) -> None:
    talk = conversation(*turns(1))
    name = talk.conversation_id
    await kept.save(talk)
    for doing in (
        kept.load(name, limit=-1),
        kept.load_entries(name, limit=-1),
        kept.list_conversations(limit=-1),
    ):
        with pytest.raises(UserError):
            await doing
    for doing in (kept.load_range(name, -1), kept.load_range(name, 0, -1)):
        with pytest.raises(ValueError, match='start and stop'):
            await doing


async def test_options_that_are_none_are_refused(store: Store) -> None:
    options: list[dict[str, Any]] = [
        {'on_unreadable': 'ignore'},
        {'on_lossy': 'pickle'},
        {'ttl': 0},
        {'ttl': -1.0},
        {'ttl': float('inf')},
        {'ttl': float('nan')},
        {'inline': -1},
    ]
    for option in options:
        with pytest.raises(ValueError, match=next(iter(option))):
            Conversations(store, **option)
