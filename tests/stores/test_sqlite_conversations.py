"""What is special to SQLite in conversations: the stored form, what a save writes, and damage."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from graphkeep import SchemaError
from graphkeep.conversations import EntriesQuery, StoredEntry
from graphkeep.stores import sqlite_conversations
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.stores.sqlite_connections import Writer
from graphkeep.stores.sqlite_file import SQLiteFile
from graphkeep.testing._talks import entry, ids, line, row, write
from tests.stores.sqlite_children import child, output

TABLES = ('conversations', 'entries', 'messages', 'blobs')
GOLDEN = Path(__file__).parents[1] / 'golden'
LINE = [f'01989d2f-7a00-7000-8000-00000000000{n}' for n in range(4)]


def rows(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    return [dict(each) for each in connection.execute(f'SELECT * FROM graphkeep_{table}')]


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a file that has to do with conversations."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: connection.execute(f'SELECT * FROM graphkeep_{table} ORDER BY 1').fetchall()
            for table in TABLES
        }


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(path) as store:
        yield store


# --- the stored form ------------------------------------------------------------------------------


async def test_a_conversation_is_stored_as_plain_rows(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    first = entry(LINE[0], data='{"blob":"","text":"Größe"}'.encode(), blob=b'\0\xff')
    second = entry('turn-2', LINE[0], data=b'{"n":1.0}')
    new = row('chat', 'r1', 'turn-2', scope='ada', at=0.000001, data=b'{"title":"x"}')
    await store.write_conversation(write(new, [first, second], blobs=[b'\0\xff']))
    assert rows(tool, 'conversations') == [
        {
            'conversation_id': 'chat',
            'revision': 'r1',
            'scope': 'ada',
            'updated_at': 1795996800000001,
            'expires_at': None,
            'tips': '["turn-2"]',
            'data': '{"title":"x"}',
        }
    ]
    name = sha256(b'\0\xff').hexdigest()
    assert rows(tool, 'entries') == [
        {
            'entry': 1,
            'entry_id': UUID(LINE[0]).bytes,
            'parent': None,
            'position': 0,
            'refs': 1,
            'library': '2.68.0',
            'places': f'[["{name}","base64",{first.places[0].at}]]',
        },
        {
            'entry': 2,
            'entry_id': b'\xffturn-2',
            'parent': 1,
            'position': 1,
            'refs': 1,
            'library': '2.68.0',
            'places': None,
        },
    ]
    assert rows(tool, 'messages') == [
        {'entry': 1, 'data': '{"blob":"","text":"Größe"}'},
        {'entry': 2, 'data': '{"n":1.0}'},
    ]
    assert rows(tool, 'blobs') == [{'hash': bytes.fromhex(name), 'uses': 1, 'data': b'\0\xff'}]
    [found] = tool.execute(
        "SELECT json_extract(data, '$.text') FROM graphkeep_messages WHERE entry = 1"
    ).fetchone()
    assert found == 'Größe'


async def test_a_ttl_is_stored_as_a_time(store: SQLiteStore, tool: sqlite3.Connection) -> None:
    await store.write_conversation(write(row('c', 'r1'), ttl=60))
    await store.write_conversation(write(row('d', 'r1')))
    now = tool.execute("SELECT strftime('%s', 'now') * 1000000").fetchone()[0]
    [kept] = [each['expires_at'] for each in rows(tool, 'conversations') if each['expires_at']]
    assert 50_000_000 < kept - now < 70_000_000


async def test_a_file_of_the_schema_before_gets_the_tables(path: Path) -> None:
    shutil.copy(GOLDEN / 'v2' / 'runs.db', path)
    with closing(sqlite3.connect(path)) as before:
        runs = before.execute('SELECT * FROM graphkeep_runs ORDER BY run_id').fetchall()
    async with SQLiteStore(path) as store:
        assert len(await store.runs()) == len(runs) > 0
        await store.write_conversation(write(row('c', 'r', 'a'), line('a')))
        assert await ids(store, 'a') == ['a']
    with closing(sqlite3.connect(path)) as after:
        assert after.execute('SELECT * FROM graphkeep_runs ORDER BY run_id').fetchall() == runs
        assert after.execute('SELECT value FROM graphkeep_meta').fetchall() == [('3',)]


async def test_tables_of_another_program_are_not_touched(
    path: Path, tool: sqlite3.Connection
) -> None:
    shutil.copy(GOLDEN / 'v2' / 'runs.db', path)
    with closing(sqlite3.connect(path)) as other:
        other.execute('CREATE TABLE graphkeep_entries (id INTEGER)')
        other.commit()
    with pytest.raises(SchemaError, match='another table_prefix'):
        await SQLiteStore(path).open()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute('SELECT value FROM graphkeep_meta').fetchall() == [('2',)]


async def test_a_chat_takes_little_more_than_its_messages(path: Path) -> None:
    async with SQLiteStore(path):
        pass
    empty = path.stat().st_size
    sizes = random.Random(7)
    for name, size in (('equal', lambda: 800), ('mixture', lambda: sizes.randrange(400, 1200))):
        already = path.stat().st_size
        async with SQLiteStore(path, synchronous='NORMAL') as store:
            total, parent, revision = 0, None, None
            for turn in range(1_000):
                added: list[StoredEntry] = []
                for n in range(2):
                    made = str(UUID(int=(turn * 2 + n << 80) | (7 << 76) | len(name)))
                    text = b'"' + b'x' * (size() - 2) + b'"'
                    added.append(entry(made, parent, data=text))
                    parent, total = made, total + len(text)
                new = row(name, f'r{turn}', added[-1].entry_id, at=turn)
                assert await store.write_conversation(write(new, added, expects=revision))
                revision = new.revision
        ratio = (path.stat().st_size - already) / total
        print(f'{name}: {ratio:.3f} x the messages')
        assert ratio <= 1.2
    assert empty < 250_000


# --- what is written ------------------------------------------------------------------------------


@pytest.fixture
def noting(store: SQLiteStore, tool: sqlite3.Connection) -> None:
    """From now on the file itself notes which rows are written: see `note`."""
    tool.execute('CREATE TABLE log (what TEXT, name TEXT, number INTEGER)')
    for table in TABLES:
        for what, side in (('INSERT', 'new'), ('UPDATE', 'new'), ('DELETE', 'old')):
            tool.execute(
                f'CREATE TRIGGER log_{table}_{what} AFTER {what} ON graphkeep_{table} BEGIN '
                f"INSERT INTO log VALUES ('{what}', '{table}', {side}.rowid); END"
            )


def note(tool: sqlite3.Connection) -> list[tuple[str, str, int]]:
    noted = [tuple(each) for each in tool.execute('SELECT * FROM log ORDER BY rowid')]
    tool.execute('DELETE FROM log')
    return noted


@pytest.mark.usefixtures('noting')
async def test_a_save_writes_what_is_new_and_nothing_else(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    await store.write_conversation(write(row('c', 'r1', 'b'), line('a', 'b')))
    note(tool)
    await store.write_conversation(
        write(row('c', 'r2', 'd', at=1), line('c', 'd', after='b'), expects='r1')
    )
    assert note(tool) == [
        ('INSERT', 'entries', 3),
        ('INSERT', 'messages', 3),
        ('INSERT', 'entries', 4),
        ('INSERT', 'messages', 4),
        ('UPDATE', 'conversations', 1),
    ]
    # The same again, and one that is refused, write nothing.
    await store.write_conversation(
        write(row('c', 'r2', 'd', at=1), line('c', 'd', after='b'), expects='r1')
    )
    assert not await store.write_conversation(write(row('c', 'r3', 'x'), line('x'), expects='r1'))
    assert not await store.write_conversation(write(row('e', 'r3', 'x', 'gone'), line('x')))
    assert note(tool) == []
    # A fork raises the counter of the one entry that it stands on.
    await store.write_conversation(write(row('fork', 'r1', 'x'), line('x', after='b')))
    assert note(tool) == [
        ('INSERT', 'entries', 5),
        ('INSERT', 'messages', 5),
        ('UPDATE', 'entries', 2),
        ('INSERT', 'conversations', 2),
    ]
    await store.delete_conversation('fork', revision='r1')
    assert note(tool) == [
        ('DELETE', 'conversations', 2),
        ('UPDATE', 'entries', 5),
        ('DELETE', 'entries', 5),
        ('DELETE', 'messages', 5),
        ('UPDATE', 'entries', 2),
    ]


async def test_the_counters_are_those_that_counting_gives(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    trunk = [entry('a', blob=b'1'), entry('b', 'a', blob=b'1'), entry('c', 'b', blob=b'2')]
    await store.write_conversation(write(row('one', 'r', 'c', 'a'), trunk, blobs=[b'1', b'2']))
    await store.write_conversation(write(row('two', 'r', 'b', 'x'), line('x', 'y', after='a')))
    found = {bytes(each['entry_id'])[1:]: each['refs'] for each in rows(tool, 'entries')}
    # a: b, x and a tip; y is nobody's.
    assert found == {b'a': 3, b'b': 2, b'c': 1, b'x': 1}
    uses = {each['data']: each['uses'] for each in rows(tool, 'blobs')}
    assert uses == {b'1': 2, b'2': 1}


async def test_a_blob_is_stored_once_and_goes_with_the_last_that_needs_it(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    blob = b'picture' * 2_000
    twice = [entry('a', blob=blob), entry('b', 'a', blob=blob)]
    await store.write_conversation(write(row('one', 'r', 'b'), twice, blobs=[blob]))
    other = write(row('two', 'r', 'x'), [entry('x', blob=blob)], blobs=[blob])
    await store.write_conversation(other)
    await store.write_conversation(other)
    [kept] = rows(tool, 'blobs')
    assert (kept['data'], kept['uses']) == (blob, 3)
    await store.delete_conversation('one', revision='r')
    [kept] = rows(tool, 'blobs')
    assert kept['uses'] == 1
    await store.delete_conversation('two', revision='r')
    assert [rows(tool, table) for table in TABLES] == [[], [], [], []]


async def sent(store: SQLiteStore, call: Callable[[], Any]) -> list[str]:
    """The statements that a call makes in the writer's thread."""
    said: list[str] = []

    def trace(callback: Callable[[str], object] | None) -> Callable[[Writer], None]:
        return lambda writer: writer.connection.set_trace_callback(callback)

    await store._write(trace(lambda sql: said.append(' '.join(sql.split()[:3]))))
    assert await call()
    await store._write(trace(None))
    return said


@pytest.mark.parametrize('shape', ['line', 'tips'])
async def test_what_is_long_is_removed_by_few_statements(
    store: SQLiteStore, tool: sqlite3.Connection, shape: str
) -> None:
    names = [f'e{n}' for n in range(10_000)]
    entries, tips = line(*names), names[-1:]
    if shape == 'tips':
        entries, tips = [entry('t'), *(entry(name, 't') for name in names)], names[:]
    await store.write_conversation(write(row('c', 'r1', *tips), entries))
    said = await sent(store, lambda: store.delete_conversation('c', revision='r1'))
    assert [rows(tool, table) for table in TABLES] == [[], [], [], []]
    removing = [
        sql for sql in said if 'refs' not in sql and not sql.startswith(('SELECT', 'UPDATE'))
    ]
    assert len(removing) < 12, removing
    if shape == 'line':
        assert len(said) < 12, said


async def test_lists_are_read_in_the_order_of_an_index(
    store: SQLiteStore, tool: sqlite3.Connection
) -> None:
    talks = store._talks

    def plan(statement: str) -> str:
        values = dict.fromkeys(re.findall(r':(\w+)', statement))
        steps = tool.execute(f'EXPLAIN QUERY PLAN {statement}', values)
        return '\n'.join(step['detail'] for step in steps)

    plans = {
        'INDEX graphkeep_conversations_newest': talks._find_any,
        'INDEX graphkeep_conversations_scope (scope=?': talks._find_of_scope,
        'INDEX sqlite_autoindex_graphkeep_conversations_1': talks._find_of_id,
        'INDEX graphkeep_conversations_expiry (expires_at': talks._sql['find_expired'],
    }
    for expected, statement in plans.items():
        assert f'USING {expected}' in plan(statement)
        assert 'TEMP B-TREE' not in plan(statement)
    walk = plan(talks._sql['select_line'])
    assert 'TEMP B-TREE' not in walk
    assert walk.count('INTEGER PRIMARY KEY (rowid=?)') == 3
    doomed = plan(talks._sql['find_doomed'])
    assert doomed.count('INTEGER PRIMARY KEY (rowid=?)') == 2


# --- all or nothing -------------------------------------------------------------------------------

BLOB, OTHER = b'picture', b'sound'
BEFORE = [
    write(
        row('c', 'r1', 'c', 'x'),
        [entry('a', blob=BLOB), *line('b', 'c', after='a'), entry('x', 'a', blob=OTHER)],
        blobs=[BLOB, OTHER],
    ),
    write(row('shares', 'r1', 'b')),
]
AFTER = write(
    row('c', 'r2', 'e', at=1),
    [entry('d', 'a', blob=BLOB), entry('e', 'd', blob=b'new')],
    expects='r1',
    blobs=[BLOB, b'new'],
)


async def save(store: SQLiteStore) -> bool:
    return await store.write_conversation(AFTER)


async def delete(store: SQLiteStore) -> bool:
    return await store.delete_conversation('c', revision='r1')


class Breaking(dict[str, str]):
    """Statements of which one is never made."""

    def __init__(self, known: Any, number: int) -> None:
        super().__init__(known)
        self.left = number

    def __getitem__(self, name: str) -> str:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt(name)
        return super().__getitem__(name)


@pytest.mark.parametrize('call', [save, delete])
async def test_a_call_that_breaks_off_leaves_nothing(path: Path, call: Callable[..., Any]) -> None:
    async with SQLiteStore(path) as store:
        for each in BEFORE:
            await store.write_conversation(each)
        before, known, number = content(path), store._talks._sql, 0
        for number in range(1, 100):
            store._talks._sql = Breaking(known, number)
            try:
                assert await call(store)
            except KeyboardInterrupt:
                assert content(path) == before
            else:
                break
        assert 10 < number < 99
        assert content(path) != before


KILLED = """
from contextlib import closing
from graphkeep.stores.sqlite import SQLiteStore
from tests.stores.test_sqlite_conversations import delete, save
import signal
call = {'save': save, 'delete': delete}[sys.argv[2]]

async def die(path, number):
    def trace(writer):
        left = number
        def callback(sql):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        writer.connection.set_trace_callback(callback)
    store = SQLiteStore(path)
    await store.open()
    await store._write(trace)
    assert await call(store)
    os._exit(0)

for number in range(1, 100):
    # Each in a file of its own: what a killed process left in the WAL stays there.
    pid = os.fork()
    if pid == 0:
        asyncio.run(die(f'{path}-{number}', number))
    status = os.waitpid(pid, 0)[1]
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'done')
    if not os.WIFSIGNALED(status):
        break
"""


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork()')
@pytest.mark.parametrize('call', ['save', 'delete'])
async def test_a_process_that_is_killed_leaves_all_or_nothing(path: Path, call: str) -> None:
    async with SQLiteStore(path) as store:
        for each in BEFORE:
            await store.write_conversation(each)
    for number in range(1, 40):
        shutil.copy(path, f'{path}-{number}')
    before = content(path)
    async with SQLiteStore(path) as store:
        await {'save': save, 'delete': delete}[call](store)
    after = content(path)
    deaths = output(child(KILLED, path, call, cwd=Path(__file__).parents[2]))
    assert deaths[-1] == 'done'
    assert set(deaths[:-1]) == {'9'}
    assert len(deaths) > 10
    left = [content(Path(f'{path}-{n + 1}')) for n in range(len(deaths))]
    assert left == [before] * (len(deaths) - 1) + [after]


# --- a history in several rows --------------------------------------------------------------------


@pytest.mark.parametrize('most', [1, 2, 3, 19, 20, 21])
async def test_a_long_history_is_several_rows(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(sqlite_conversations, '_ROW', most)
    await several(store)


async def test_a_history_may_be_larger_than_a_row_can_be(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = SQLiteFile.connect

    def limited(file: SQLiteFile) -> sqlite3.Connection:
        connection = connect(file)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5_000)
        return connection

    monkeypatch.setattr(SQLiteFile, 'connect', limited)
    async with SQLiteStore(path) as store:
        await several(store)


async def several(store: SQLiteStore) -> None:
    parent, entries = None, list[StoredEntry]()
    for n in range(20):
        data = b'{"n":"%s"}' % (b'x' * n * 100)
        made = entry(f'e{n}', parent, data=data)
        if n % 3 == 0:
            made = entry(f'e{n}', parent, data=data, blob=b'%d' % n)
        entries.append(made._replace(library=f'2.{n // 6}', position=n))
        parent = f'e{n}'
    blobs = [b'%d' % n for n in range(0, 20, 3)]
    await store.write_conversation(write(row('c', 'r', 'e19'), entries, blobs=blobs))
    for start, stop in itertools.product(range(0, 22, 3), (None, *range(0, 22, 4))):
        query = EntriesQuery(head_id='e19', start=start, stop=stop)
        found = await store.find_entries(query)
        assert found is not None
        assert list(found.entries) == entries[start:stop]
    for limit in (1, 2, 7, 19, 20, 30):
        found = await store.find_entries(EntriesQuery(head_id='e19', limit=limit))
        assert found is not None
        assert list(found.entries) == entries[-limit:]
        assert set(found.blobs) == {name for e in entries[-limit:] for name in e.hashes}
