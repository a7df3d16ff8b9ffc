"""A Postgres store and its connections: pools, opening, pgbouncer, secrets."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from graphkeep import SchemaError, StoreClosedError, StoreError, StoreUnavailableError, open_store
from graphkeep.stores.postgres import PostgresStore
from graphkeep.testing import Worker, eventually
from tests.servers import PostgresServer
from tests.stores.postgres_tool import at, connections, no_connection

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]


# --- pools ----------------------------------------------------------------------------------------


async def test_a_store_connects_late_and_leaves_no_connection(fresh_postgres_url: str) -> None:
    store = PostgresStore(fresh_postgres_url)
    assert await connections(fresh_postgres_url) == 0
    async with store:
        worker = Worker(store)
        await worker.create()
        await asyncio.gather(worker.step(), *(store.run('run-1') for _ in range(30)))
        assert 1 <= await connections(fresh_postgres_url) <= 10
    await eventually(no_connection(fresh_postgres_url), what='the connections end')
    with pytest.raises(StoreClosedError):
        await store.runs()


@pytest.mark.parametrize('whose', ['ours', "the user's"])
async def test_one_connection_is_enough(fresh_postgres_url: str, whose: str) -> None:
    settings = {'application_name': 'graphkeep'}
    async with (
        asyncpg.create_pool(
            fresh_postgres_url, min_size=0, max_size=1, server_settings=settings
        ) as pool,
        PostgresStore(fresh_postgres_url, max_size=1)
        if whose == 'ours'
        else PostgresStore(pool=pool) as store,
    ):
        workers = [Worker(store, f'run-{number}') for number in range(20)]
        await asyncio.gather(*(worker.create() for worker in workers))
        for _ in range(3):
            await asyncio.gather(
                *(worker.step() for worker in workers),
                store.renew([worker.claim for worker in workers]),
                store.runs(),
            )
        assert await connections(fresh_postgres_url) == 1
        for worker in workers:
            await worker.check()


@pytest.fixture
async def pool(fresh_postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool as users make them, with codecs of their own."""

    async def init(connection: asyncpg.Connection) -> None:
        for name in ('json', 'jsonb'):
            await connection.set_type_codec(
                name, encoder=json.dumps, decoder=json.loads, schema='pg_catalog'
            )

    async with asyncpg.create_pool(fresh_postgres_url, min_size=0, max_size=3, init=init) as pool:
        yield pool


async def test_the_users_pool_is_used_and_left_open(pool: asyncpg.Pool) -> None:
    text = b'{"number":1.0,"escaped":"\\u0000\\ud800"}'
    async with PostgresStore(pool=pool) as store:
        workers = [Worker(store, f'run-{number}') for number in range(20)]
        for worker in workers:
            await worker.create(labels={'a': '"b"'}, state={'value': text})
        await asyncio.gather(*(worker.step() for worker in workers))
        await workers[0].step(status='failed', event='error', error={'type': 'ValueError'})
        for worker in workers:
            await worker.check()
        assert (await store.run('run-0')).error == {'type': 'ValueError'}
        found = await store.runs(labels={'a': '"b"'})
        assert [run.labels for run in found] == [{'a': '"b"'}] * 20
        await store.delete('run-0')
        await store.cancel('run-1')
        assert 'graphkeep_' in repr(store)
    assert not pool.is_closing()
    assert pool.get_idle_size() == pool.get_size() > 0
    assert await pool.fetchval('SELECT $1::json', {'a': 1}) == {'a': 1}


async def test_every_connection_of_the_users_pool_may_be_away_for_a_while(
    pool: asyncpg.Pool,
) -> None:
    async with PostgresStore(pool=pool) as store:
        worker = Worker(store)
        await worker.create()
        taken = [await pool.acquire() for _ in range(3)]
        step = asyncio.ensure_future(worker.step())
        reads = asyncio.gather(*(store.run('run-1') for _ in range(10)))
        await asyncio.wait((step,), timeout=0.1)
        assert not step.done()
        for connection in taken:
            await pool.release(connection)
        await step
        await reads
        await worker.check()


async def test_a_pool_that_its_owner_closed_is_said_to_be_closed(pool: asyncpg.Pool) -> None:
    async with PostgresStore(pool=pool) as store:
        worker = Worker(store)
        await worker.create()
        await pool.close()
        with pytest.raises(StoreClosedError, match='Close the store before the pool'):
            await store.runs()
        assert isinstance((await store.append(worker.commit())).error, StoreClosedError)


async def test_without_prepared_statements_all_works(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url, statement_cache_size=0) as store:
        workers = [Worker(store, f'run-{number}') for number in range(5)]
        for worker in workers:
            await worker.create(labels={'a': 'b'})
        await asyncio.gather(*(worker.step() for worker in workers))
        await store.release(workers[0].claim)
        assert len((await workers[0].successor().take()).snapshots) == 2
        assert len(await store.runs(labels={'a': 'b'}, status=('ready', 'running'))) == 5
        for worker in workers:
            await worker.check()


# The sockets of a loop that is gone end when they are collected, which asyncio complains about.
@pytest.mark.filterwarnings('ignore:unclosed:ResourceWarning')
def test_a_store_outlives_its_loop_and_no_longer(fresh_postgres_url: str) -> None:
    async def use(store: PostgresStore) -> None:
        await Worker(store).create()

    store = PostgresStore(fresh_postgres_url)
    asyncio.run(use(store))
    with pytest.raises(StoreClosedError, match='another event loop'):
        asyncio.run(use(store))
    asyncio.run(store.close())
    gc.collect()
    asyncio.run(eventually(no_connection(fresh_postgres_url), what='the connections end'))


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        ({}, TypeError),
        ({'url': 'postgresql://host/db', 'pool': object()}, TypeError),
        ({'pool': object(), 'max_size': 5, 'min_size': 0}, TypeError),
        ({'url': 'postgresql://host/db', 'min_size': 5, 'max_size': 4}, ValueError),
        ({'url': 'postgresql://host/db', 'max_size': 0}, ValueError),
        ({'url': 'postgresql://host/db', 'statement_cache_size': -1}, ValueError),
        ({'url': 'postgresql://host/db', 'command_timeout': 0}, ValueError),
        ({'url': 'postgresql://host/db', 'heartbeat': 60}, ValueError),
        ({'url': 'postgresql://host/db', 'surprise': 1}, TypeError),
    ],
)
def test_arguments_that_make_no_store_are_refused(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        PostgresStore(**arguments)


# --- opening --------------------------------------------------------------------------------------


async def test_opening_that_is_cancelled_leaves_no_connection(fresh_postgres_url: str) -> None:
    pause, opened = 0.0, False
    while not opened:
        store = PostgresStore(fresh_postgres_url)
        opening = asyncio.ensure_future(store.open())
        await asyncio.wait((opening,), timeout=pause)
        opened = opening.done()
        opening.cancel()
        await asyncio.wait((opening,))
        await store.close()
        pause += 0.002
    await eventually(no_connection(fresh_postgres_url), what='the connections end')


async def test_opening_a_silent_server_can_be_cancelled(fresh_postgres_url: str) -> None:
    called, over = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await over.wait()
        writer.close()

    async with await asyncio.start_server(listen, '127.0.0.1', 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        store = PostgresStore(at(fresh_postgres_url, f'127.0.0.1:{port}'))
        opening = asyncio.ensure_future(store.open())
        await called.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        over.set()


async def test_a_server_that_is_not_there_is_unavailable(
    fresh_postgres_url: str, free_port: int
) -> None:
    store = PostgresStore(at(fresh_postgres_url, f'127.0.0.1:{free_port}'), retry=0.3)
    with pytest.raises(StoreUnavailableError, match=f'127.0.0.1:{free_port}/graphkeep'):
        await store.open()


async def test_of_several_servers_one_is_enough(fresh_postgres_url: str, free_port: int) -> None:
    place = urlsplit(fresh_postgres_url).netloc.rpartition('@')[2]
    url = at(fresh_postgres_url, f'127.0.0.1:{free_port},{place}')
    async with open_store(url) as store:
        await Worker(store).create()


@pytest.mark.parametrize(
    ('database', 'message'),
    [('graphkeep_nowhere', 'Create the database first'), ('postgres?sslmode=maybe', 'sslmode')],
)
async def test_what_does_not_pass_by_itself_is_not_tried_again(
    postgres_server: PostgresServer, database: str, message: str
) -> None:
    url = f'{postgres_server.url("x")[:-1]}{database}'
    started = time.monotonic()
    with pytest.raises(StoreError, match=message) as caught:
        await PostgresStore(url, retry=60).open()
    assert not isinstance(caught.value, (StoreUnavailableError, SchemaError))
    assert time.monotonic() - started < 30


# --- pgbouncer ------------------------------------------------------------------------------------


async def test_behind_pgbouncer_in_transaction_mode_all_works(bouncer: str) -> None:
    async with (
        PostgresStore(bouncer, statement_cache_size=0) as store,
        PostgresStore(bouncer, statement_cache_size=0) as other,
    ):
        workers = [Worker([store, other][number % 2], f'run-{number}') for number in range(20)]

        async def work(worker: Worker) -> None:
            await worker.create(labels={'a': 'b'})
            for _ in range(10):
                await worker.step()
                assert await worker.store.runs(labels={'a': 'b'}, status=('running', 'ready'))
                await worker.store.renew([worker.claim])
            await worker.store.release(worker.claim)
            await worker.take()
            await worker.step(status='done', event='end', output='the end')
            await worker.check()
            await worker.store.delete(worker.run_id)

        await asyncio.gather(*map(work, workers))
        assert await store.runs() == []


async def test_behind_pgbouncer_nobody_listens_in_vain(bouncer: str) -> None:
    # As one that knows prepared statements is used: nothing but the server's process tells.
    async with (
        asyncpg.create_pool(bouncer, min_size=0, max_size=3, statement_cache_size=0) as pool,
        PostgresStore(pool=pool) as store,
        asyncio.timeout(10),
    ):
        await store.watch(lambda run_id: pytest.fail(f'it heard of {run_id}'))
        assert pool.get_idle_size() == pool.get_size()


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'url',
    [
        'postgresql://me:hunter2@127.0.0.1:{port}/db',
        'postgresql://127.0.0.1:{port}/db?user=me&password=hunter2',
        'postgresql://me:hunter2@127.0.0.1:{port},127.0.0.1:{port}/db',
    ],
)
async def test_the_password_is_shown_nowhere(
    url: str, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = PostgresStore(url.format(port=free_port), retry=0.2)
    with pytest.raises(StoreUnavailableError) as caught:
        await store.open()
    shown = ''.join(traceback.format_exception(caught.value)) + repr(store) + str(store)
    assert f'127.0.0.1:{free_port}' in shown
    assert 'hunter2' not in shown + caplog.text


@pytest.mark.parametrize(
    'url',
    [
        'postgresql://me:hunter2/3@host/db',
        'postgresql://me:2hunter2/3@host/db',
        'postgresql://me:12/hunter2@host/db',
        'postgresql://me:12#hunter2@host/db',
        'postgresql://me:12?hunter2@host/db',
        'postgresql://me:[hunter2@host/db',
        'postgresql://me@host:hunter2/db',
        'postgres:me:hunter2@host',
        'mysql://me:hunter2@host/db',
        'host=localhost password=hunter2',
    ],
)
def test_what_is_no_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match='percent-encoded') as caught:
        PostgresStore(url)
    assert 'hunter2' not in ''.join(traceback.format_exception(caught.value))


async def test_a_password_with_special_characters_is_percent_encoded(free_port: int) -> None:
    store = PostgresStore(f'postgresql://me:a%2Fb%40c@127.0.0.1:{free_port}/db', retry=0)
    with pytest.raises(StoreUnavailableError, match=f'127.0.0.1:{free_port}/db'):
        await store.open()
