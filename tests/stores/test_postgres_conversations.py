"""What is special to Postgres about conversations: the stored form, costs, plans, damage."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from graphkeep import DamagedConversationError
from graphkeep.conversations import (
    ConversationQuery,
    EntriesQuery,
    StoredConversation,
    places_json,
)
from graphkeep.store import Store
from graphkeep.stores import postgres_schema
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.postgres_conversations import PostgresConversations
from graphkeep.stores.statements import migrations
from graphkeep.testing import Worker, eventually
from graphkeep.testing._talks import START, entry, ids, line, row, write
from tests.stores.postgres_talks import STATEMENTS, counts, stored
from tests.stores.postgres_tool import rows, run_sql, tool
from tests.stores.sql_databases import PostgresDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]


@pytest.fixture
async def store(fresh_postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(fresh_postgres_url) as store:
        yield store


# --- the stored form ------------------------------------------------------------------------------


async def test_a_conversation_is_stored_as_plain_rows(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    uuid = '0192f0c1-7e5b-7cc3-9a1b-0123456789ab'
    new = row('chat', 'r1', 'b', scope='ada', at=0.5, data=b'{"n":1.0, "t":"\\ud800"}')
    first = entry(uuid, data=b'{"blob":"","a":1E2}', blob=b'\0\xff')
    entries = [first, entry('b', uuid, data=b'[ "\\u0000" ]')]
    assert await store.write_conversation(write(new, entries, blobs=[b'\0\xff']))
    digest = sha256(b'\0\xff').digest()
    assert first.hashes == (digest.hex(),)
    common = {'refs': 1, 'library': '2.68.0'}
    packed = UUID(uuid).bytes
    assert await stored(fresh_postgres_url) == {
        'conversations': [
            {
                'updated_at': START + timedelta(seconds=0.5),
                'updated_slot': START,
                'expires_at': None,
                'expires_slot': None,
                'conversation_id': 'chat',
                'revision': 'r1',
                'scope': 'ada',
                'tips': [b'\xffb'],
                'data': '{"n":1.0, "t":"\\ud800"}',
            }
        ],
        'entries': [
            {
                'position': 0,
                'entry_id': packed,
                'parent_id': None,
                'places': places_json(first.places),
                'data': '{"blob":"","a":1E2}',
                **common,
            },
            {
                'position': 1,
                'entry_id': b'\xffb',
                'parent_id': packed,
                'places': None,
                'data': '[ "\\u0000" ]',
                **common,
            },
        ],
        'blobs': [{'uses': 1, 'hash': digest, 'data': b'\0\xff'}],
    }


async def test_the_tables_are_as_they_should_be(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    columns = await rows(
        fresh_postgres_url,
        """
        SELECT relname || '.' || attname AS name, format_type(atttypid, atttypmod) AS type,
               attcompression::text AS compression
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relname IN ('graphkeep_conversations', 'graphkeep_entries', 'graphkeep_blobs')
        AND attname IN ('data', 'places')
        """,
    )
    [server] = await rows(
        fresh_postgres_url,
        "SELECT 'lz4' = ANY (enumvals) AS lz4 FROM pg_settings "
        "WHERE name = 'default_toast_compression'",
    )
    compression = 'l' if server['lz4'] else ''
    assert {column['name']: (column['type'], column['compression']) for column in columns} == {
        'graphkeep_conversations.data': ('json', compression),
        'graphkeep_entries.data': ('json', compression),
        'graphkeep_entries.places': ('json', ''),
        'graphkeep_blobs.data': ('bytea', compression),
    }


async def test_tables_of_the_second_version_are_migrated_with_what_is_in_them(
    fresh_postgres_url: str, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_postgres_url
    with monkeypatch.context() as patch:
        old = {n: s for n, s in migrations('postgres', prefix='graphkeep').items() if n < 3}
        patch.setattr(postgres_schema, 'migrations', lambda *_, **__: old)
        async with PostgresStore(url) as before:
            worker = Worker(before)
            await worker.create()
            await worker.step()
    assert (await rows(url, 'SELECT value FROM graphkeep_meta')) == [{'value': '2'}]
    stores = [PostgresStore(url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    await worker.check(store=stores[0])
    assert await stores[1].write_conversation(write(row('c', 'r', 'a'), line('a')))
    await asyncio.gather(*(store.close() for store in stores))
    fresh = postgres_server.create_database()
    async with PostgresStore(fresh):
        pass
    assert await PostgresDatabase(url).schema() == await PostgresDatabase(fresh).schema()
    postgres_server.drop_database(fresh)


async def test_a_role_with_the_granted_rights_keeps_conversations(
    store: PostgresStore, fresh_postgres_url: str, postgres_server: Any
) -> None:
    role = f'graphkeep_talks_{os.getpid()}'
    postgres_server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        from graphkeep.stores.postgres_errors import grants

        await run_sql(fresh_postgres_url, 'REVOKE CREATE ON SCHEMA public FROM PUBLIC')
        await run_sql(fresh_postgres_url, grants('graphkeep').replace('<role>', role))
        parts = urlsplit(fresh_postgres_url)
        place = parts.netloc.rpartition('@')[2]
        url = parts._replace(netloc=f'{role}:secret@{place}').geturl()
        async with PostgresStore(url) as other:
            new = [entry('a', blob=b'x')]
            assert await other.write_conversation(write(row('c', 'r', 'a'), new, blobs=[b'x']))
            assert await ids(other, 'a') == ['a']
            assert await other.delete_conversation('c', revision='r')
        assert await counts(fresh_postgres_url) == [0, 0, 0]
    finally:
        name = urlsplit(fresh_postgres_url).path[1:]
        postgres_server.execute(f'DROP OWNED BY {role}', dbname=name)
        postgres_server.execute(f'DROP ROLE {role}')


# --- costs ----------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the server, in order."""
    statements: list[str] = []
    for name in ('execute', 'fetch', 'fetchrow', 'fetchval'):
        real = getattr(asyncpg.Connection, name)

        def spy(self: Any, query: str, *args: Any, _real: Any = real, **options: Any) -> Any:
            statements.append(next((n for n, sql in STATEMENTS.items() if sql == query), query))
            return _real(self, query, *args, **options)

        monkeypatch.setattr(asyncpg.Connection, name, spy)
    return statements


async def grown(store: Store, turns: int, *, first: int = 0) -> StoredConversation:
    """A conversation `c` that has had some turns."""
    new = row('c', f'r{first}')
    for n in range(first, first + turns):
        new = row('c', f'r{n}', f'{n}-b', at=n, scope='s')
        entries = line(f'{n}-a', f'{n}-b', after=f'{n - 1}-b' if n else None)
        expects = f'r{n - 1}' if n else None
        assert await store.write_conversation(write(new, entries, expects=expects))
    return new


async def test_a_save_is_one_statement(store: PostgresStore, sent: list[str]) -> None:
    await store.open()
    sent.clear()
    await grown(store, 5)
    await store.write_conversation(write(row('fork', 'r', 'f'), line('f', after='2-b')))
    await store.write_conversation(write(row('fork', 'r', 'f'), line('f', after='2-b')))
    assert sent == ['write_conversation'] * 7


async def test_a_history_is_one_statement(store: PostgresStore, sent: list[str]) -> None:
    await grown(store, 5)
    one = [entry('x', blob=b'x')]
    await store.write_conversation(write(row('d', 'r', 'x'), one, blobs=[b'x']))
    sent.clear()
    await ids(store, '4-b')
    await ids(store, 'x')
    assert sent == ['read_entries', 'read_entries', 'select_blobs']


async def test_a_save_writes_no_older_entry_and_touches_no_index_of_the_row(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    await grown(store, 1)
    sql = 'SELECT entry_id, ctid::text, xmin::text, xmax::text FROM graphkeep_entries '
    before = await rows(fresh_postgres_url, sql + 'ORDER BY entry_id')
    await grown(store, 60, first=1)
    after = await rows(fresh_postgres_url, sql + 'ORDER BY position, entry_id LIMIT 2')
    assert after == before

    async def statistics(table: str) -> tuple[int, int, int]:
        names = 'n_tup_ins AS i, n_tup_upd AS u, n_tup_hot_upd AS h'
        sql = f'SELECT {names} FROM pg_stat_user_tables WHERE relname = $1'
        [found] = await rows(fresh_postgres_url, sql, f'graphkeep_{table}')
        return found['i'], found['u'], found['h']

    async def counted() -> bool:
        return (await statistics('conversations'))[1] >= 60

    await eventually(counted, what='the server counts its updates', timeout=30)
    assert await statistics('entries') == (122, 0, 0)
    _, updated, hot = await statistics('conversations')
    assert updated == 60
    # A page that has just filled up is left once.
    assert hot >= 55


async def test_a_blob_is_stored_once_and_goes_with_the_last(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    for n in range(3):
        new = [entry(f'{n}-a', blob=b'x'), entry(f'{n}-b', f'{n}-a', blob=b'x')]
        await store.write_conversation(write(row(f'{n}', 'r', f'{n}-b'), new, blobs=[b'x']))
    sql = 'SELECT uses FROM graphkeep_blobs'
    for n in range(3):
        assert await rows(fresh_postgres_url, sql) == [{'uses': 6 - 2 * n}]
        assert await store.delete_conversation(f'{n}', revision='r')
    assert await counts(fresh_postgres_url) == [0, 0, 0]


async def test_a_long_chat_takes_little_more_than_its_messages(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    choose, head, messages = random.Random(1), None, 0
    words = [''.join(choose.choices('abcdefghijklmno', k=choose.randint(2, 9))) for _ in range(999)]
    for n in range(1_000):
        entries = []
        for k in range(2):
            text = ' '.join(choose.choices(words, k=200))[: choose.randint(300, 1_300)]
            part = {'content': text, 'timestamp': '2026-11-30T00:00:00Z', 'part_kind': 'text'}
            data = json.dumps({'parts': [part], 'kind': 'response'}).encode()
            time = (1_764_489_600_000 + 1_000 * n + k) << 80
            made = str(UUID(int=time | 7 << 76 | 2 << 62 | choose.getrandbits(62)))
            entries.append(entry(made, head, data=data))
            head, messages = made, messages + len(data)
        assert head is not None
        new = row('0192f0c1-7e5b-7cc3-9a1b-0123456789ab', f'r{n}', head, at=n, scope='user')
        expects = f'r{n - 1}' if n else None
        assert await store.write_conversation(write(new, entries, expects=expects))
    await run_sql(fresh_postgres_url, 'VACUUM graphkeep_entries')
    await run_sql(fresh_postgres_url, 'VACUUM graphkeep_conversations')
    [size] = await rows(
        fresh_postgres_url,
        "SELECT pg_total_relation_size('graphkeep_entries') AS entries, "
        "pg_total_relation_size('graphkeep_conversations') AS conversations",
    )
    # 1.24 was measured; what any table takes, whatever is in it, is 0.07 of it.
    assert (size['entries'] + size['conversations']) / messages <= 1.27


# --- plans ----------------------------------------------------------------------------------------

_FILLED = """
    INSERT INTO graphkeep_conversations (
      updated_at, expires_at, conversation_id, revision, scope, tips, data
    )
    SELECT
      now() + n * interval '1min', CASE WHEN n % 2 = 0 THEN now() + n * interval '1min' END,
      'c' || n, 'r', 's' || n % 100, '{}', '{}'
    FROM generate_series(-10000, 10000) AS n;
    INSERT INTO graphkeep_entries (position, refs, entry_id, parent_id, library, data)
    SELECT
      n, 1, int8send(n), CASE WHEN n > 0 THEN int8send(n - 1) END, '2',
      ('"' || repeat('x', 800) || '"')::json
    FROM generate_series(0, 19999) AS n;
"""


@pytest.fixture
async def filled(
    store: PostgresStore, fresh_postgres_url: str
) -> AsyncIterator[asyncpg.Connection]:
    """A database with many conversations, and a long history."""
    async with tool(fresh_postgres_url) as connection:
        await connection.execute(_FILLED)
        # The store prepares its statements: after a few calls one plan does for all values.
        await connection.execute('SET plan_cache_mode = force_generic_plan')
        yield connection


async def test_conversations_are_listed_from_their_indexes(
    filled: asyncpg.Connection, store: PostgresStore
) -> None:
    await filled.execute('ANALYZE')
    after = START, 'c1'
    for query, index in (
        (ConversationQuery(limit=20), 'newest'),
        (ConversationQuery(limit=20, after=after), 'newest'),
        (ConversationQuery(limit=20, scope='s7'), 'scope'),
        (ConversationQuery(limit=20, scope='s7', after=after), 'scope'),
        (ConversationQuery(limit=20, expired=True), 'expires'),
        (ConversationQuery(conversation_id='c7'), 'pkey'),
    ):
        talks: PostgresConversations = store._talks
        sql, values = talks._finding(query, query.limit)
        found = '\n'.join(r[0] for r in await filled.fetch(f'EXPLAIN {sql}', *values))
        assert f'graphkeep_conversations_{index}' in found, (query, found)
        assert 'Seq Scan' not in found, found


@pytest.mark.parametrize('analyzed', [False, True])
async def test_a_history_is_found_without_reading_others(
    filled: asyncpg.Connection, analyzed: bool
) -> None:
    if analyzed:
        await filled.execute('ANALYZE')
    head = (4_999).to_bytes(8)
    times: list[float] = []
    for _ in range(5):
        [[text]] = await filled.fetch(
            f'EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {STATEMENTS["read_entries"]}',
            *(head, 2_000, 0, None),
        )
        found = json.loads(text)[0]
        assert int(found['Plan']['Actual Rows']) == 2_001
        assert 'Seq Scan' not in text
        assert 'Tid Scan' in text
        assert found['Plan']['Shared Hit Blocks'] + found['Plan']['Shared Read Blocks'] < 12_000
        times.append(found['Execution Time'])
    # Of the fastest: others may be using the machine.
    assert min(times) < 50


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('change', ["tips = '{x}'", "tips = '{NULL}'", "data = '[]'"])
async def test_a_damaged_row_is_named_and_hides_no_other(
    store: PostgresStore, fresh_postgres_url: str, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    for n in range(6):
        await store.write_conversation(write(row(f'c{n}', 'r', at=n)))
    sql = f"UPDATE graphkeep_conversations SET {change} WHERE conversation_id IN ('c5', 'c3')"
    await run_sql(fresh_postgres_url, sql)
    with caplog.at_level(logging.WARNING, 'graphkeep'):
        found = await store.find_conversations(ConversationQuery(limit=3))
    assert [each.conversation_id for each in found] == ['c4', 'c2', 'c1']
    assert "Conversation 'c5'" in caplog.text
    with pytest.raises(DamagedConversationError) as caught:
        await store.find_conversations(ConversationQuery(conversation_id='c3'))
    assert caught.value.conversation_id == 'c3'
    assert await store.delete_conversation('c3', revision='r')


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ("DELETE FROM graphkeep_entries WHERE entry_id = '\\xff62'", 'c'),
        ("UPDATE graphkeep_entries SET position = 7 WHERE entry_id = '\\xff62'", 'c'),
        ("UPDATE graphkeep_entries SET position = 1 WHERE entry_id = '\\xff61'", 'b'),
        ("UPDATE graphkeep_entries SET parent_id = NULL WHERE entry_id = '\\xff62'", 'b'),
        ("UPDATE graphkeep_entries SET parent_id = '\\xff63' WHERE entry_id = '\\xff61'", 'a'),
        ("UPDATE graphkeep_entries SET places = '7' WHERE entry_id = '\\xff62'", 'b'),
        ('UPDATE graphkeep_entries SET places = \'[["x","base64",1]]\'', 'a'),
        ('DELETE FROM graphkeep_blobs', 'b'),
    ],
)
async def test_a_damaged_entry_is_named_and_can_be_removed(
    store: PostgresStore, fresh_postgres_url: str, change: str, named: str
) -> None:
    entries = [entry('a'), entry('b', 'a', blob=b'x'), entry('c', 'b')]
    await store.write_conversation(write(row('one', 'r', 'c'), entries, blobs=[b'x']))
    await store.write_conversation(write(row('other', 'r', 'o'), line('o')))
    await run_sql(fresh_postgres_url, change)
    with pytest.raises(DamagedConversationError) as caught:
        await store.find_entries(EntriesQuery(head_id='c'))
    assert caught.value.entry_id == named
    assert await store.delete_conversation('one', revision='r')
    assert await rows(fresh_postgres_url, 'SELECT 1 FROM graphkeep_entries WHERE refs = 0') == []
    assert await ids(store, 'c') is None


async def test_a_message_lost_on_the_disk_is_named(
    make_postgres: Callable[..., Any],
) -> None:
    server = make_postgres()
    url = server.create_database()
    noise = ''.join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(4_000))
    async with PostgresStore(url) as store:
        entries = [entry('a'), entry('b', 'a', data=json.dumps(noise).encode()), entry('c', 'b')]
        await store.write_conversation(write(row('one', 'r', 'c'), entries))
    [place] = await rows(
        url,
        "SELECT current_setting('data_directory') AS folder, pg_relation_filepath(reltoastrelid) "
        "AS file FROM pg_class WHERE relname = 'graphkeep_entries'",
    )
    server.stop()
    file = Path(place['folder']) / place['file']
    assert file.stat().st_size > 0
    file.write_bytes(b'\0' * file.stat().st_size)
    server.start()
    async with PostgresStore(url) as store:
        with pytest.raises(DamagedConversationError) as caught:
            await store.find_entries(EntriesQuery(head_id='c'))
        assert caught.value.entry_id == 'b'
        assert await ids(store, 'c', limit=1) == ['c']
        assert await ids(store, 'a') == ['a']
