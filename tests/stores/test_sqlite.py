"""What is special to SQLite: the stored form, the modes, damage, and other connections."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from graphkeep import DamagedRunError, StoreError, StoreUnavailableError, StoreWriteError
from graphkeep.stores import sqlite_connections
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.stores.sqlite_connections import Writer
from graphkeep.testing import Worker
from tests.stores.sql_databases import sqlite_schema, two_runs, with_a_step


def rows(connection: sqlite3.Connection, sql: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(sql)]


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# --- the stored form ------------------------------------------------------------------------------


async def test_a_run_is_stored_as_plain_rows(path: Path, tool: sqlite3.Connection) -> None:
    started = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
    async with SQLiteStore(path, lease=60) as store:
        worker = Worker(store, 'order-42', owner='host/1', ttl=60)
        created = await worker.create(graph='orders', labels={'städt': '"1"'})
        await worker.step(node='Price', task='0', started_at=started, duration=0.25)
        run = await store.run('order-42')
        assert rows(tool, 'SELECT * FROM graphkeep_runs') == [
            {
                'run_id': 'order-42',
                'graph': 'orders',
                'status': 'running',
                'seq': 1,
                'full_seq': 0,
                'epoch': micros(created.created_at),
                'owner': 'host/1',
                'lease_until': micros(run.updated_at) + 60_000_000,
                'nonce': rows(tool, 'SELECT nonce FROM graphkeep_runs')[0]['nonce'],
                'labels': '{"st\\u00e4dt":"\\"1\\""}',
                'error': None,
                'parent_run_id': None,
                'parent_seq': None,
                'created_at': micros(created.created_at),
                'updated_at': micros(run.updated_at),
                'answered': 0,
                'wake_at': None,
            }
        ]
        assert rows(tool, 'SELECT * FROM graphkeep_snapshots') == [
            {
                'run_id': 'order-42',
                'seq': 0,
                'kind': 'full',
                'event': 'start',
                'data': worker.texts[0].decode(),
                'node': None,
                'task': None,
                'started_at': None,
                'duration': None,
                'error': None,
                'created_at': micros(created.created_at),
            },
            {
                'run_id': 'order-42',
                'seq': 1,
                'kind': 'delta',
                'event': 'step',
                'data': (await store.snapshots('order-42'))[1].data.decode(),
                'node': 'Price',
                'task': '0',
                'started_at': micros(started),
                'duration': 0.25,
                'error': None,
                'created_at': micros(run.updated_at),
            },
        ]
        assert rows(tool, 'SELECT * FROM graphkeep_meta') == [
            {'name': 'schema_version', 'value': '3'}
        ]


async def test_a_run_that_failed_has_its_error_in_the_header(
    path: Path, tool: sqlite3.Connection
) -> None:
    error = {'type': 'ValueError', 'message': 'not \ud800 UTF-8, nor \0'}
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step(status='failed', event='error', error=error)
        stored = '{"type":"ValueError","message":"not \\ud800 UTF-8, nor \\u0000"}'
        [run] = rows(tool, 'SELECT status, owner, lease_until, error FROM graphkeep_runs')
        assert run == {'status': 'failed', 'owner': None, 'lease_until': None, 'error': stored}
        assert rows(tool, 'SELECT error FROM graphkeep_snapshots WHERE seq = 1') == [
            {'error': stored}
        ]
        assert (await store.run('run-1')).error == error


async def test_payloads_are_text_that_sqlite_can_query(
    path: Path, tool: sqlite3.Connection
) -> None:
    text = '{"topic":"Größe 🙂","escaped":"\\ud800 \\u0000","number":1.0}'
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create(state={'order': text.encode()})
        [found] = rows(
            tool,
            "SELECT typeof(data) AS type, json_extract(data, '$.state.order.topic') AS topic,"
            " json_extract(data, '$.state.order') AS part FROM graphkeep_snapshots",
        )
        assert (found['type'], found['topic']) == ('text', 'Größe 🙂')
        assert text in rows(tool, 'SELECT data FROM graphkeep_snapshots')[0]['data']
        await worker.check()


async def test_a_prefix_of_ones_own_keeps_two_stores_in_one_file_apart(
    path: Path, tool: sqlite3.Connection
) -> None:
    async with SQLiteStore(path) as one, SQLiteStore(path, table_prefix='other') as two:
        await Worker(one, 'a').create()
        await Worker(two, 'b').create()
        assert [run.run_id for run in await one.runs()] == ['a']
        assert [run.run_id for run in await two.runs()] == ['b']
    names = {row['name'] for row in rows(tool, "SELECT name FROM sqlite_master WHERE type='table'")}
    assert names == {
        f'{prefix}_{table}'
        for prefix in ('graphkeep', 'other')
        for table in (
            *('blobs', 'conversations', 'entries', 'messages'),
            *('meta', 'requests', 'runs', 'snapshots'),
        )
    }


@pytest.mark.parametrize('prefix', ['sqlite_x', 'a-b', 'x"; DROP TABLE y; --', ''])
def test_a_prefix_that_cannot_name_tables_is_refused(path: Path, prefix: str) -> None:
    with pytest.raises(ValueError, match='table_prefix'):
        SQLiteStore(path, table_prefix=prefix)


async def test_lists_are_read_in_the_order_of_an_index(
    path: Path, tool: sqlite3.Connection
) -> None:
    async with SQLiteStore(path) as store:
        statements = store._file.statements

    values = dict.fromkeys(re.findall(r':(\w+)', statements['find_runs']))

    def plan(name: str) -> str:
        steps = tool.execute(f'EXPLAIN QUERY PLAN {statements[name]}', values)
        return '\n'.join(step['detail'] for step in steps)

    assert 'USING INDEX graphkeep_runs_newest' in plan('find_runs')
    assert 'USING INDEX graphkeep_runs_unfinished' in plan('find_unfinished')
    assert 'TEMP B-TREE' not in plan('find_runs') + plan('find_unfinished')


async def test_a_commit_is_two_statements_in_one_transaction(path: Path) -> None:
    async with SQLiteStore(path) as store:
        workers = [Worker(store, f'run-{number}') for number in range(3)]
        for worker in workers:
            await worker.create()
        sent: list[str] = []

        def trace(callback: Callable[[str], object] | None) -> Callable[[Writer], None]:
            return lambda writer: writer.connection.set_trace_callback(callback)

        await store._write(trace(lambda sql: sent.append(sql.split('\n')[0][:15])))
        await workers[0].step()
        await asyncio.gather(*(store.append(worker.commit()) for worker in workers))
        await store._write(trace(None))
    update, insert = 'UPDATE graphkee', 'INSERT INTO gra'
    one = ['SAVEPOINT one', update, insert, 'RELEASE one']
    assert sent == [
        *('BEGIN IMMEDIATE', update, insert, 'COMMIT'),
        *('BEGIN IMMEDIATE', *one, *one, *one, 'COMMIT'),
    ]


# --- modes ----------------------------------------------------------------------------------------


async def pragma(store: SQLiteStore, name: str) -> object:
    return await store._write(
        lambda writer: writer.connection.execute(f'PRAGMA {name}').fetchone()[0]
    )


@pytest.mark.parametrize(('synchronous', 'level'), [('FULL', 2), ('NORMAL', 1)])
async def test_the_modes_are_in_force(path: Path, synchronous: Any, level: int) -> None:
    async with SQLiteStore(path, synchronous=synchronous) as store:
        assert await pragma(store, 'journal_mode') == 'wal'
        assert await pragma(store, 'synchronous') == level
        assert await pragma(store, 'wal_autocheckpoint') == 0
        assert Path(f'{path}-wal').exists()
    assert not Path(f'{path}-wal').exists()


async def test_full_is_the_default(path: Path) -> None:
    async with SQLiteStore(path) as store:
        assert await pragma(store, 'synchronous') == 2


def test_other_modes_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="'FULL' or 'NORMAL', got 'OFF'"):
        SQLiteStore(path, synchronous='OFF')  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('pragma', 'answer', 'reason'),
    [
        ('PRAGMA journal_mode', 'delete', 'journal mode .*local file system'),
        ('PRAGMA synchronous', 0, 'synchronous=0, not 2'),
        ('PRAGMA encoding', 'UTF-16le', 'encoding UTF-16le, graphkeep needs UTF-8'),
    ],
)
async def test_a_mode_that_does_not_take_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str, answer: object, reason: str
) -> None:
    real = sqlite_connections._value
    monkeypatch.setattr(
        sqlite_connections,
        '_value',
        lambda connection, sql: answer if sql.startswith(pragma) else real(connection, sql),
    )
    with pytest.raises(StoreError, match=reason):
        await SQLiteStore(path).open()


async def test_the_wal_is_written_back_as_it_grows(path: Path) -> None:
    wal = Path(f'{path}-wal')
    largest = 0
    async with SQLiteStore(path, synchronous='NORMAL') as store:
        worker = Worker(store, always_full=True)
        await worker.create()
        for number in range(60):
            await worker.step(state={'text': 'x' * 1_000_000, 'number': number})
            largest = max(largest, wal.stat().st_size)
    assert path.stat().st_size > 60_000_000
    assert largest < 12_000_000


async def test_what_a_killed_process_left_in_the_wal_is_written_back(path: Path) -> None:
    # Another program keeps the file open, so closing our stores does not write the WAL back.
    async with SQLiteStore(path) as store:
        await Worker(store, always_full=True).create(state={'text': 'x' * 5_000_000})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute('PRAGMA wal_autocheckpoint = 0')
        other.execute('UPDATE graphkeep_snapshots SET node = ?', ('y' * 5_000_000,))
        assert path.stat().st_size < 6_000_000
        async with SQLiteStore(path) as store:
            await Worker(store, 'run-2').create()
            await pragma(store, 'data_version')
            assert path.stat().st_size > 9_000_000


# --- the schema -----------------------------------------------------------------------------------


async def test_a_migrated_schema_is_the_same_as_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, fresh = tmp_path / 'old.db', tmp_path / 'fresh.db'
    async with SQLiteStore(old) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
    before = sqlite_schema(old)
    with_a_step(
        monkeypatch,
        sqlite_connections,
        'ALTER TABLE graphkeep_runs ADD COLUMN note TEXT',
        'CREATE TABLE graphkeep_notes (run_id TEXT NOT NULL PRIMARY KEY)',
    )
    async with SQLiteStore(old) as store:
        await worker.check(store=store)
    async with SQLiteStore(fresh):
        pass
    assert sqlite_schema(old) == sqlite_schema(fresh) != before
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute('SELECT * FROM graphkeep_meta').fetchall() == [
            ('schema_version', '4')
        ]


async def test_the_file_may_have_tables_of_others(path: Path, tool: sqlite3.Connection) -> None:
    tool.execute('CREATE TABLE orders (id INTEGER)')
    tool.execute('INSERT INTO orders VALUES (7)')
    async with SQLiteStore(path) as store:
        await Worker(store).create()
    assert rows(tool, 'SELECT * FROM orders') == [{'id': 7}]


async def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, 'sqlite_version_info', (3, 34, 1))
    with pytest.raises(StoreError, match=r'needs 3\.35\.0'):
        await SQLiteStore(path).open()
    assert not path.exists()


# --- damage ---------------------------------------------------------------------------------------


async def test_a_snapshot_in_the_place_of_the_next_is_damage(
    path: Path, tool: sqlite3.Connection
) -> None:
    async with SQLiteStore(path) as store:
        other = await two_runs(store)
        worker = Worker(store, 'next')
        await worker.create()
        tool.execute("UPDATE graphkeep_snapshots SET run_id = 'next', seq = 1 WHERE seq = 2")
        commits = [worker.commit(), other.commit()]
        endings = await asyncio.gather(*map(store.append, commits))
        assert isinstance(endings[0].error, DamagedRunError)
        assert (endings[0].error.run_id, endings[0].error.seq) == ('next', 1)
        assert endings[1].error is None
        assert (await store.run('next')).seq == 0
        with pytest.raises(DamagedRunError):
            (await store.append(worker.commit())).unwrap()


async def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b'These are not the bytes you are looking for. ' * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match='not a database') as caught:
        await SQLiteStore(path).open()
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


async def test_a_damaged_page_is_an_error_that_says_what_to_do(path: Path) -> None:
    async with SQLiteStore(path) as store:
        worker = Worker(store, always_full=True)
        await worker.create()
        for _ in range(5):
            await worker.step(state={'text': 'x' * 10_000})
    with closing(sqlite3.connect(path)) as tool:
        [page] = tool.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'graphkeep_snapshots'"
        ).fetchone()
        [size] = tool.execute('PRAGMA page_size').fetchone()
    with path.open('r+b') as file:
        file.seek((page - 1) * size)
        file.write(b'\xff' * size)
    async with SQLiteStore(path) as store:
        with pytest.raises(StoreError, match=r'damaged.*\.recover') as caught:
            await store.document('run-1')
        assert str(path) in str(caught.value)
        assert (await store.run('run-1')).seq == 5


# --- no room --------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_what_does_not_fit_and_nothing_else(path: Path) -> None:
    async with SQLiteStore(path) as store:
        small, large = Worker(store, 'small'), Worker(store, 'large')
        await small.create()
        await large.create()
        pages = await pragma(store, 'page_count')
        assert await pragma(store, f'max_page_count = {pages}') == pages
        commits = [small.commit(), large.commit(state={'text': 'x' * 1_000_000})]
        endings = await asyncio.gather(*map(store.append, commits))
        assert endings[0].error is None
        assert isinstance(endings[1].error, StoreWriteError)
        assert 'Make room' in str(endings[1].error)
        small.written(commits[0])
        await small.check()
        await large.check()
        await pragma(store, 'max_page_count = 1000000')
        # The claim is as it was: the very same commit goes through now.
        await large.append(commits[1])
        await large.check()


async def test_a_create_that_does_not_fit_leaves_nothing(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await Worker(store, 'small').create()
        await pragma(store, f'max_page_count = {await pragma(store, "page_count")}')
        with pytest.raises(StoreWriteError):
            await Worker(store, 'large').create(state={'text': 'x' * 1_000_000})
        assert [run.run_id for run in await store.runs()] == ['small']


# --- other connections ----------------------------------------------------------------------------


async def test_a_lock_of_another_program_is_waited_for(
    path: Path, tool: sqlite3.Connection
) -> None:
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create()
        tool.execute('BEGIN IMMEDIATE')
        commit = worker.commit()
        writing = asyncio.create_task(store.append(commit))
        # Reading goes on meanwhile.
        assert (await store.run('run-1')).seq == 0
        assert not writing.done()
        tool.execute('COMMIT')
        assert (await writing).error is None
        worker.written(commit)
        await worker.check()


async def test_a_lock_that_stays_is_an_error_and_nothing_is_written(
    path: Path, tool: sqlite3.Connection
) -> None:
    async with SQLiteStore(path, retry=0) as store:
        worker = Worker(store)
        await worker.create()
        tool.execute('BEGIN IMMEDIATE')
        commit = worker.commit()
        ending = await store.append(commit)
        assert isinstance(ending.error, StoreUnavailableError)
        assert 'Another process holds its lock' in str(ending.error)
        tool.execute('ROLLBACK')
        await worker.check()
        await worker.append(commit)
        await worker.check()


async def test_a_lock_on_a_new_file_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = sqlite_connections._value, list[str]()
    # Another process is changing the file to WAL. It has done so when we have been refused once.
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute('BEGIN IMMEDIATE')

        def value(connection: sqlite3.Connection, pragma: str) -> object:
            try:
                return real(connection, pragma)
            except sqlite3.OperationalError as e:
                refused.append(e.sqlite_errorname)
                other.execute('ROLLBACK')
                raise

        monkeypatch.setattr(sqlite_connections, '_value', value)
        async with SQLiteStore(path, retry=0) as store:
            assert await pragma(store, 'journal_mode') == 'wal'
    assert refused == ['SQLITE_BUSY']


async def test_a_lock_on_a_new_file_that_stays_is_an_error(
    path: Path, tool: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connections, 'BUSY', 0.05)
    tool.execute('BEGIN IMMEDIATE')
    store = SQLiteStore(path, retry=0)
    with pytest.raises(StoreUnavailableError, match='Another process holds its lock'):
        await store.open()
    tool.execute('ROLLBACK')
    async with store:
        await Worker(store).create()


async def test_stores_of_one_process_share_a_file(path: Path, tool: sqlite3.Connection) -> None:
    async with SQLiteStore(path) as one, SQLiteStore(path) as two:
        workers = [Worker(store, f'{name}-{n}') for n in range(8) for name, store in
                   (('one', one), ('two', two))]  # fmt: skip

        async def work(worker: Worker) -> None:
            await worker.create()
            for number in range(20):
                await worker.step(state={'text': f'{number}' * 5_000})

        await asyncio.gather(*map(work, workers))
        for worker in workers:
            await worker.check(store=two)
    assert tool.execute('PRAGMA integrity_check').fetchone()[0] == 'ok'


async def test_a_header_that_is_no_text_stops_no_other_run(path: Path) -> None:
    async with SQLiteStore(path) as store:
        for name in ('bad', 'good'):
            await Worker(store, name).create()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE graphkeep_runs SET labels = CAST(x'61ff' AS TEXT) WHERE run_id = 'bad'"
        )
        connection.commit()
    async with SQLiteStore(path) as store:
        assert [run.run_id for run in await store.runs()] == ['good']
        with pytest.raises(DamagedRunError) as caught:
            await store.run('bad')
        assert caught.value.run_id == 'bad'
