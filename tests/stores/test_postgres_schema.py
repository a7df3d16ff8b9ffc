"""The tables of a Postgres store: set-up, migrations, roles and rights."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from graphkeep import SchemaError, StoreWriteError
from graphkeep.stores import postgres_schema
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.statements import migrations
from graphkeep.testing import Worker
from graphkeep.testing._worker import asks
from tests.servers import PostgresServer
from tests.stores.postgres_tool import name_of, rows, run_sql, tool
from tests.stores.sql_databases import PostgresDatabase, with_a_step

pytestmark = pytest.mark.postgres

GOLDEN = Path(__file__).parents[1] / 'golden'

_numbers = count()


# --- the schema -----------------------------------------------------------------------------------


@pytest.fixture
def two_urls(postgres_server: PostgresServer) -> Iterator[tuple[str, str]]:
    urls = postgres_server.create_database(), postgres_server.create_database()
    yield urls
    for url in urls:
        postgres_server.drop_database(url)


async def test_a_migrated_schema_is_the_same_as_a_fresh_one(
    two_urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, fresh = two_urls
    async with PostgresStore(old) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        before = await PostgresDatabase(old).schema()
        with_a_step(
            monkeypatch,
            postgres_schema,
            'ALTER TABLE graphkeep_runs ADD COLUMN note text',
            'CREATE TABLE graphkeep_notes (run_id text PRIMARY KEY)',
        )
        async with PostgresStore(old) as newer:
            await worker.check(store=newer)
            await worker.step()
        # A process of the old version, with prepared statements on the old tables, goes on.
        await worker.check(store=store)
    async with PostgresStore(fresh):
        pass
    assert await PostgresDatabase(old).schema() == await PostgresDatabase(fresh).schema() != before
    assert await rows(old, 'SELECT * FROM graphkeep_meta') == [
        {'name': 'schema_version', 'value': '4'}
    ]


async def test_tables_of_the_first_version_are_migrated_with_what_is_in_them(
    two_urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, fresh = two_urls
    with monkeypatch.context() as patch:
        first = {1: migrations('postgres', prefix='graphkeep')[1]}
        patch.setattr(postgres_schema, 'migrations', lambda *_, **__: first)
        async with PostgresStore(old):
            pass
    stored = json.loads((GOLDEN / 'v1' / 'postgres.json').read_text('ascii'))
    async with tool(old) as connection:
        for table in ('graphkeep_runs', 'graphkeep_snapshots'):
            for row in stored[table]:
                names = ', '.join(column.partition('::')[0] for column in row)
                values = ', '.join(
                    f'${n}::text::{column.partition("::")[2]}' for n, column in enumerate(row, 1)
                )
                await connection.execute(
                    f'INSERT INTO {table} ({names}) VALUES ({values})', *row.values()
                )
    before = await rows(old, 'SELECT * FROM graphkeep_runs ORDER BY run_id')
    assert 'answered' not in before[0]
    stores = [PostgresStore(old) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    after = await rows(old, 'SELECT * FROM graphkeep_runs ORDER BY run_id')
    assert after == [{**row, 'answered': 0, 'wake_at': None} for row in before]
    for run in await stores[0].runs():
        assert (run.answered, run.wake_at, run.due) == (0, None, False)
        await stores[0].document(run.run_id)
    worker = Worker(stores[1])
    await worker.create()
    await worker.pauses(asks())
    await stores[2].answer('run-1', '0:manager', {'ok': 1})
    await asyncio.gather(*(store.close() for store in stores))
    async with PostgresStore(fresh):
        pass
    assert await PostgresDatabase(old).schema() == await PostgresDatabase(fresh).schema()
    assert await rows(old, 'SELECT * FROM graphkeep_meta') == [
        {'name': 'schema_version', 'value': '3'}
    ]


async def test_stores_with_different_prefixes_do_not_see_each_other(
    fresh_postgres_url: str,
) -> None:
    async with (
        PostgresStore(fresh_postgres_url, table_prefix='one') as one,
        PostgresStore(fresh_postgres_url, table_prefix='other') as other,
    ):
        await Worker(one).create()
        assert len(await one.runs()) == 1
        assert await other.runs() == []
        await Worker(other).create()


@pytest.mark.parametrize(
    'prefix',
    [
        '',
        '1st',
        'Runs',
        'a-b',
        'a b',
        'a"b',
        "a'; DROP TABLE x; --",
        'a.b',
        'größe',
        'x' * 33,
        '$1',
    ],
)
def test_a_prefix_that_is_no_identifier_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match='table_prefix'):
        PostgresStore('postgresql://localhost/x', table_prefix=prefix)


async def test_tables_removed_under_a_store_are_a_schema_error(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        await run_sql(fresh_postgres_url, 'DROP TABLE graphkeep_snapshots')
        assert isinstance((await store.append(worker.commit())).error, SchemaError)
        with pytest.raises(SchemaError, match='graphkeep_meta'):
            await store.document('run-1')


@pytest.mark.parametrize('level', ['repeatable read', 'serializable'])
async def test_many_may_set_up_at_once_whatever_the_isolation(
    fresh_postgres_url: str, level: str
) -> None:
    name = name_of(fresh_postgres_url)
    await run_sql(
        fresh_postgres_url, f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"
    )
    stores = [PostgresStore(fresh_postgres_url) for _ in range(12)]
    await asyncio.gather(*(store.open() for store in stores))
    worker = Worker(stores[0])
    await worker.create()
    await worker.step()
    await worker.check()
    await asyncio.gather(*(store.close() for store in stores))


def test_twelve_processes_may_set_up_at_once(fresh_postgres_url: str) -> None:
    code = """
        import asyncio, sys
        from graphkeep import open_store

        async def main():
            sys.stdin.readline()
            async with open_store(sys.argv[1]) as store:
                print(len(await store.runs()))

        asyncio.run(main())
    """
    lines = '\n'.join(line[8:] for line in code.splitlines())
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', lines, fresh_postgres_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(12)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write('go\n')
        process.stdin.flush()
    for process in processes:
        printed, complaint = process.communicate(timeout=120)
        assert (process.returncode, printed, complaint) == (0, '0\n', '')


async def test_a_database_that_cannot_hold_every_text_is_refused(
    postgres_server: PostgresServer,
) -> None:
    name = f'graphkeep_ascii_{next(_numbers)}'
    postgres_server.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 "
        "LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    url = postgres_server.url(name)
    try:
        with pytest.raises(SchemaError, match='SQL_ASCII'):
            await PostgresStore(url).open()
    finally:
        postgres_server.drop_database(url)


# --- roles and rights -----------------------------------------------------------------------------


@pytest.fixture
def make_role(postgres_server: PostgresServer) -> Iterator[Callable[[str], str]]:
    """`make_role(url)`: `url` for a new role that may connect, and create nothing."""
    made: list[tuple[str, str]] = []

    def make(url: str) -> str:
        role, database = f'graphkeep_test_{id(made)}_{len(made)}', name_of(url)
        postgres_server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        made.append((role, database))
        postgres_server.execute('REVOKE CREATE ON SCHEMA public FROM PUBLIC', dbname=database)
        parts = urlsplit(url)
        place = parts.netloc.rpartition('@')[2]
        return urlunsplit(parts._replace(netloc=f'{role}:secret@{place}'))

    yield make
    for role, database in made:
        postgres_server.execute(f'DROP OWNED BY {role}', dbname=database)
        postgres_server.execute(f'DROP ROLE {role}')


async def test_a_role_that_may_not_create_tables_works_where_they_are(
    fresh_postgres_url: str, make_role: Callable[[str], str]
) -> None:
    url = make_role(fresh_postgres_url)
    role = urlsplit(url).username
    with pytest.raises(SchemaError, match='may not make them') as caught:
        await PostgresStore(url).open()
    assert 'secret' not in str(caught.value)
    assert await PostgresDatabase(fresh_postgres_url).schema() == []
    async with PostgresStore(fresh_postgres_url):
        pass
    with pytest.raises(SchemaError, match='GRANT SELECT, INSERT, UPDATE, DELETE') as caught:
        await PostgresStore(url).open()
    # The message has the very statement that helps.
    grant = str(caught.value).partition('Run: ')[2].replace('<role>', str(role))
    await run_sql(fresh_postgres_url, grant)
    async with PostgresStore(url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        await worker.check()
        await worker.pauses(asks())
        await store.answer('run-1', '0:manager', {'ok': 1})
        await store.expire('run-1')
        await store.delete('run-1', force=True)


async def test_a_role_that_may_not_write_reads(
    fresh_postgres_url: str, make_role: Callable[[str], str]
) -> None:
    url = make_role(fresh_postgres_url)
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        await run_sql(
            fresh_postgres_url,
            f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO {urlsplit(url).username}',
        )
        async with PostgresStore(url) as reader:
            await worker.check(store=reader)
            await refuses_to_write(reader, worker)
        await worker.check()


async def test_a_read_only_database_is_read(fresh_postgres_url: str) -> None:
    name = name_of(fresh_postgres_url)
    read_only = f'ALTER DATABASE {name} SET default_transaction_read_only = on'
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        await run_sql(fresh_postgres_url, read_only)
        async with PostgresStore(fresh_postgres_url) as reader:
            await worker.check(store=reader)
            await refuses_to_write(reader, worker)
        with pytest.raises(SchemaError, match='read-only'):
            await PostgresStore(fresh_postgres_url, table_prefix='other').open()
        # This store's connections are older than the setting.
        await worker.step()
        await worker.check()


async def refuses_to_write(store: PostgresStore, worker: Worker) -> None:
    """Assert that no write goes through `store`, and each says so."""
    other = Worker(store, 'run-2')
    writes = {
        'create': other.create,
        'claim': lambda: worker.successor(store).take(),
        'cancel': lambda: store.cancel('run-1'),
        'delete': lambda: store.delete('run-1', force=True),
        'release': lambda: store.release(worker.claim),
        'renew': lambda: store.renew([worker.claim]),
        'answer': lambda: store._answer('run-1', '0:manager', b'1', None),
        'expire': lambda: store.expire('run-1'),
    }
    for name, write in writes.items():
        with pytest.raises(StoreWriteError, match='Postgres at') as caught:
            await write()
        assert 'secret' not in str(caught.value), name
    ending = await store.append(worker.commit())
    assert isinstance(ending.error, StoreWriteError)
