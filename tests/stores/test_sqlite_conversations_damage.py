"""Damage in the conversations of a SQLite file: named, and nothing else is stopped by it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from graphkeep.conversations import ConversationQuery, EntriesQuery
from graphkeep.errors import DamagedConversationError
from graphkeep.stores import sqlite_conversations
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing._talks import entry, ids, line, row, write
from tests.stores.test_sqlite_conversations import LINE, rows


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path) as store:
        yield store


@pytest.mark.parametrize(
    'change',
    [
        "data = '['",
        "data = '[1]'",
        "data = ''",
        "data = x'7b22ff'",
        "revision = x'00'",
        "scope = x'00'",
        'updated_at = -9e17',
        "tips = 'x'",
        "tips = '{}'",
        "tips = '[1]'",
        "tips = x'5b5d'",
    ],
)
async def test_a_damaged_row_is_named_and_hides_no_other(
    store: SQLiteStore, tool: sqlite3.Connection, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    for n, name in enumerate(('x', 'damaged', 'y')):
        await store.write_conversation(write(row(name, 'r', name, at=n), line(name)))
    tool.execute(f"UPDATE graphkeep_conversations SET {change} WHERE conversation_id = 'damaged'")
    with pytest.raises(DamagedConversationError) as caught:
        await store.find_conversations(ConversationQuery(conversation_id='damaged'))
    assert (caught.value.conversation_id, caught.value.entry_id) == ('damaged', None)
    with caplog.at_level(logging.WARNING, 'graphkeep'):
        found = await store.find_conversations(ConversationQuery(limit=3))
    assert [each.conversation_id for each in found] == ['y', 'x']
    assert "'damaged'" in caplog.text
    assert await ids(store, 'damaged') == ['damaged']
    if 'revision' not in change:
        assert await store.delete_conversation('damaged', revision='r')
        assert [each['conversation_id'] for each in rows(tool, 'conversations')] == ['x', 'y']


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ('UPDATE graphkeep_entries SET parent = 77 WHERE position = 2', 2),
        ('UPDATE graphkeep_entries SET parent = NULL WHERE position = 2', 2),
        ('UPDATE graphkeep_entries SET parent = entry WHERE position = 2', 2),
        ('UPDATE graphkeep_entries SET parent = entry + 1 WHERE position = 2', 2),
        ('UPDATE graphkeep_entries SET parent = 4 WHERE position = 0', 0),
        ("UPDATE graphkeep_entries SET parent = 'x' WHERE position = 2", 2),
        ('DELETE FROM graphkeep_entries WHERE position = 1', 2),
        ('UPDATE graphkeep_entries SET position = 7 WHERE position = 1', 2),
        ("UPDATE graphkeep_entries SET position = 'x' WHERE position = 1", 2),
        ('UPDATE graphkeep_entries SET position = position + 1', 0),
        ('UPDATE graphkeep_entries SET position = 7 WHERE position = 3', 3),
        ("UPDATE graphkeep_entries SET position = 'x' WHERE position = 3", 3),
        ('UPDATE graphkeep_entries SET position = -1 WHERE position = 3', 3),
        ('DELETE FROM graphkeep_messages WHERE entry = 2', 1),
        ("UPDATE graphkeep_entries SET places = '[' WHERE position = 1", 1),
        ("UPDATE graphkeep_entries SET places = '7' WHERE position = 1", 1),
        ("UPDATE graphkeep_entries SET places = '' WHERE position = 1", 1),
        ("UPDATE graphkeep_entries SET places = '' WHERE position = 2", 2),
        ("UPDATE graphkeep_entries SET places = x'ff' WHERE position = 1", 1),
        ("""UPDATE graphkeep_entries SET places = '[["x","base64",0]]' WHERE position = 1""", 1),
        ("UPDATE graphkeep_entries SET library = x'ff' WHERE position = 1", 1),
        ("UPDATE graphkeep_entries SET entry_id = x'00' WHERE position = 1", None),
        ('UPDATE graphkeep_entries SET entry_id = 7 WHERE position = 1', None),
        ('DELETE FROM graphkeep_blobs', 0),
    ],
)
@pytest.mark.parametrize('most', [256, 1, 2, 3])
async def test_a_damaged_entry_is_named_and_stops_no_other(
    store: SQLiteStore,
    tool: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    named: int | None,
    most: int,
) -> None:
    monkeypatch.setattr(sqlite_conversations, '_ROW', most)
    entries = [entry(LINE[0], blob=b'x'), *line(*LINE[1:], after=LINE[0])]
    await store.write_conversation(write(row('damaged', 'r', LINE[3]), entries, blobs=[b'x']))
    tool.execute(change)
    await store.write_conversation(write(row('fine', 'r', 'y'), line('x', 'y')))
    with pytest.raises(DamagedConversationError) as caught:
        await store.find_entries(EntriesQuery(head_id=LINE[3]))
    if named is not None:
        assert caught.value.entry_id == LINE[named]
    assert await ids(store, 'y') == ['x', 'y']


@pytest.mark.parametrize('most', [256, 1, 2, 3])
@pytest.mark.parametrize('parent', [1, 3, 4, 5, 7, 8])
async def test_a_chain_that_is_bent_is_found_at_the_edge_of_a_row(
    store: SQLiteStore,
    tool: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    parent: int,
    most: int,
) -> None:
    monkeypatch.setattr(sqlite_conversations, '_ROW', most)
    await store.write_conversation(write(row('bent', 'r', 'd'), line('a', 'b', 'c', 'd')))
    await store.write_conversation(write(row('other', 'r', 'h'), line('e', 'f', 'g', 'h')))
    tool.execute('UPDATE graphkeep_entries SET parent = ? WHERE entry = 3', (parent,))
    with pytest.raises(DamagedConversationError) as caught:
        await store.find_entries(EntriesQuery(head_id='d'))
    assert caught.value.entry_id == 'c'
    assert await ids(store, 'h') == ['e', 'f', 'g', 'h']


@pytest.mark.parametrize('start', [0, 2, 3])
async def test_a_chain_that_breaks_is_found_from_any_part(
    store: SQLiteStore, tool: sqlite3.Connection, start: int
) -> None:
    await store.write_conversation(write(row('c', 'r', 'f'), line(*'abcdef')))
    tool.execute('DELETE FROM graphkeep_entries WHERE position = 3')
    for query in (
        EntriesQuery(head_id='f', start=start, stop=4),
        EntriesQuery(head_id='f', limit=2),
    ):
        with pytest.raises(DamagedConversationError) as caught:
            await store.find_entries(query)
        assert caught.value.entry_id == 'e'
    assert await ids(store, 'f', limit=1) == ['f']
    assert await ids(store, 'c') == ['a', 'b', 'c']


async def test_what_is_damaged_can_be_deleted(
    store: SQLiteStore, tool: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [entry('a', blob=b'x'), *line('b', 'c', 'd', after='a')]
    await store.write_conversation(write(row('c', 'r', 'd'), entries, blobs=[b'x']))
    await store.write_conversation(write(row('ring', 'r', 'z'), line('x', 'y', 'z')))
    await store.write_conversation(write(row('gone', 'r', 'n'), line('m', 'n')))
    tool.execute("UPDATE graphkeep_entries SET places = '[' WHERE places IS NOT NULL")
    tool.execute('UPDATE graphkeep_entries SET parent = 7 WHERE entry = 6')
    tool.execute('DELETE FROM graphkeep_entries WHERE entry = 9')
    with caplog.at_level(logging.WARNING, 'graphkeep'):
        for name in ('c', 'ring', 'gone'):
            assert await store.delete_conversation(name, revision='r')
    assert 'the blobs of entry 1 stay' in caplog.text
    assert rows(tool, 'conversations') == []
    # What was before the ring, and before the entry that is gone.
    assert [each['entry'] for each in rows(tool, 'entries')] == [5, 8]


async def test_nothing_is_stored_on_a_damaged_entry(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    await store.write_conversation(write(row('c', 'r', 'a'), line('a')))
    tool.execute("UPDATE graphkeep_entries SET position = 'x'")
    with pytest.raises(DamagedConversationError) as caught:
        await store.write_conversation(write(row('d', 'r', 'b'), line('b', after='a')))
    assert caught.value.entry_id == 'a'
    assert len(rows(tool, 'conversations')) == 1
