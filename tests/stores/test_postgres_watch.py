"""Who hears of answers in a Postgres database, on which connection, and what that leaves behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from graphkeep import StoreUnavailableError
from graphkeep.store import Store
from graphkeep.stores.postgres import PostgresStore
from graphkeep.testing import Worker, eventually
from graphkeep.testing._worker import asks
from tests.stores.postgres_tool import connections, no_connection, run_sql

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]

_OK = {'ok': True}


async def started(store: Store, run_id: str = 'run-1') -> Worker:
    worker = Worker(store, run_id)
    await worker.create()
    return worker


_CUT = (
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
    "WHERE datname = current_database() AND query LIKE '%graphkeep_answers%' AND pid <> "
    'pg_backend_pid()'
)


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Queue[str | None]]:
    """What a store hears, from when it does."""
    heard: asyncio.Queue[str | None] = asyncio.Queue()
    watch = asyncio.ensure_future(store.watch(heard.put_nowait))
    try:
        async with asyncio.timeout(10):
            assert await heard.get() is None
        yield heard
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


async def test_an_answer_is_heard_of_at_once(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, PostgresStore(url) as other, listening(store) as heard:
        waits: list[float] = []
        for number in range(5):
            run_id = 'ü' * 250 if number else 'x'
            worker = await started(store, f'{run_id}{number}')
            await worker.pauses(asks())
            began = time.monotonic()
            await other.answer(worker.run_id, '0:manager', _OK)
            async with asyncio.timeout(10):
                assert await heard.get() == worker.run_id
            waits.append(time.monotonic() - began)
            # The same again tells nobody.
            await other.answer(worker.run_id, '0:manager', _OK)
        assert heard.empty()
        assert min(waits) < 0.1
    await eventually(no_connection(url), what='the connections end')


async def test_listening_takes_a_connection_and_gives_it_back(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url, max_size=1) as store:
        await started(store)
        assert await connections(url) == 1
        for _ in range(3):
            async with listening(store):
                assert await connections(url) == 2

            async def given_back() -> bool:
                return await connections(url) == 1

            await eventually(given_back, what='the connection ends')
        with store.notices.listening('run-1'):
            await eventually(lambda: _watched(store), what='it is heard of answers')
    assert not store.notices.watched
    await eventually(no_connection(url), what='the connections end')


async def _watched(store: Store) -> bool:
    return store.notices.watched


async def test_listening_that_is_cancelled_at_any_moment_leaves_nothing(
    fresh_postgres_url: str,
) -> None:
    url = fresh_postgres_url
    async with asyncpg.create_pool(
        url, min_size=0, max_size=2, server_settings={'application_name': 'graphkeep'}
    ) as pool:
        for store in (PostgresStore(url), PostgresStore(pool=pool)):
            async with store:
                for number in range(25):
                    watch = asyncio.ensure_future(store.watch(lambda run_id: None))
                    await asyncio.wait((watch,), timeout=number * 0.001)
                    watch.cancel()
                    await asyncio.wait((watch,))
                    assert watch.cancelled()
                await store.runs()
        assert pool.get_idle_size() == pool.get_size()
        async with pool.acquire() as one, pool.acquire() as two:
            for connection in (one, two):
                assert await connection.fetch('SELECT pg_listening_channels()') == []
    await eventually(no_connection(url), what='the connections end')


@pytest.mark.parametrize('whose', ['ours', "the user's"])
async def test_a_connection_that_was_cut_is_made_again(
    fresh_postgres_url: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('graphkeep.notices._AGAIN', 0.01)
    url = fresh_postgres_url
    async with (
        asyncpg.create_pool(url, min_size=0, max_size=3) as pool,
        PostgresStore(url) if whose == 'ours' else PostgresStore(pool=pool) as store,
        PostgresStore(url) as other,
    ):
        await (await started(store)).pauses(asks())
        with pytest.raises(StoreUnavailableError, match='listened'):
            async with asyncio.timeout(10):
                heard: asyncio.Queue[str | None] = asyncio.Queue()
                watch = asyncio.ensure_future(store.watch(heard.put_nowait))
                assert await heard.get() is None
                await run_sql(url, _CUT)
                await watch
        with store.notices.listening('run-1') as event:
            await eventually(lambda: _watched(store), what='it listens')
            event.clear()
            await run_sql(url, _CUT)
            # Some may have been missed meanwhile: so it wakes to look.
            async with asyncio.timeout(10):
                await event.wait()
            await eventually(lambda: _watched(store), what='it listens again')
            event.clear()
            await other.answer('run-1', '0:manager', _OK)
            async with asyncio.timeout(1):
                await event.wait()
        await started(store, 'run-2')
        await eventually(lambda: _all_idle(pool), what='the connection is given back')


async def _all_idle(pool: asyncpg.Pool) -> bool:
    return pool.get_idle_size() == pool.get_size()


async def test_who_has_a_pool_listens_on_one_of_its_connections(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with asyncpg.create_pool(url, min_size=0, max_size=2) as pool:
        async with PostgresStore(pool=pool) as store:
            await (await started(store)).pauses(asks())
            async with listening(store) as heard:
                assert pool.get_size() - pool.get_idle_size() == 1
                await store.answer('run-1', '0:manager', _OK)
                async with asyncio.timeout(10):
                    assert await heard.get() == 'run-1'
            assert pool.get_idle_size() == pool.get_size()
            with store.notices.listening(None):
                await eventually(lambda: _watched(store), what='it listens')
        assert pool.get_idle_size() == pool.get_size()


@pytest.mark.parametrize('case', ['a pool of one', 'no prepared statements'])
async def test_where_there_is_no_connection_to_spare_answers_are_looked_for(
    fresh_postgres_url: str, case: str
) -> None:
    url = fresh_postgres_url
    async with (
        asyncpg.create_pool(url, min_size=0, max_size=1) as pool,
        PostgresStore(pool=pool)
        if case == 'a pool of one'
        else PostgresStore(url, statement_cache_size=0) as store,
    ):
        await (await started(store)).pauses(asks())
        async with asyncio.timeout(10):
            await store.watch(lambda run_id: pytest.fail(f'it heard of {run_id}'))
        with store.notices.listening('run-1'):
            await eventually(lambda: _not_watching(store), what='it gives up')
        await store.answer('run-1', '0:manager', _OK)


async def _not_watching(store: Store) -> bool:
    return not store.notices.watching


async def test_another_schema_or_prefix_is_not_listened_to(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    await run_sql(url, 'CREATE SCHEMA other')
    async with (
        PostgresStore(url) as store,
        PostgresStore(f'{url}?search_path=other') as schema,
        PostgresStore(url, table_prefix='other') as prefix,
        listening(store) as heard,
    ):
        for each in (schema, prefix, store):
            await (await started(each)).pauses(asks())
            await each.answer('run-1', '0:manager', _OK)
        async with asyncio.timeout(10):
            assert await heard.get() == 'run-1'
        assert heard.empty()
