"""A Redis store over any client, and its options."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest
import redis
import redis.asyncio

from graphkeep import RunExistsError, StoreClosedError, open_store
from graphkeep.stores.redis import RedisStore
from graphkeep.testing import Worker
from tests.servers import RedisServer
from tests.stores.redis_tool import only

pytestmark = pytest.mark.redis


# --- clients --------------------------------------------------------------------------------------


CLIENTS: dict[str, dict[str, Any]] = {
    'plain': {},
    'decoding': {'decode_responses': True},
    'latin-1': {'decode_responses': True, 'encoding': 'latin-1'},
    'RESP2': {'protocol': 2},
    'RESP2, decoding': {'protocol': 2, 'decode_responses': True},
    'RESP3, decoding': {'protocol': 3, 'decode_responses': True},
    'one connection': {'single_connection_client': True},
    'few connections': {'max_connections': 70},
    'timeouts': {'socket_timeout': 5, 'health_check_interval': 1},
}


@pytest.mark.parametrize('options', CLIENTS.values(), ids=CLIENTS)
async def test_any_client_of_the_user_will_do(options: dict[str, Any], redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, **options)
    try:
        async with RedisStore.from_client(client, check_server=False) as store:
            workers = [Worker(store, f'größe-{number}') for number in range(40)]
            await asyncio.gather(*(w.create(labels={'ä': 'ö'}, graph='Ü') for w in workers))
            for _ in range(2):
                await asyncio.gather(*(worker.step() for worker in workers))
            await asyncio.gather(*(worker.check() for worker in workers))
            assert len(await store.runs(graph='Ü', labels={'ä': 'ö'})) == 40
        # Not closed, and not left in the middle of a reply.
        assert await client.ping()
        assert await client.dbsize() == 83
    finally:
        await client.aclose()


async def test_connections_of_the_users_pool_are_given_back(redis_url: str) -> None:
    async with aclosing(redis.asyncio.Redis.from_url(redis_url)) as client:
        pool = client.connection_pool
        store = RedisStore(client=client, check_server=False)
        async with store:
            await asyncio.gather(*(Worker(store, f'run-{n}').create() for n in range(20)))
            with pytest.raises(RunExistsError):
                await Worker(store, 'run-1').create()
            assert not pool._in_use_connections
        assert not pool._in_use_connections
        assert any(connection.is_connected for connection in pool._available_connections)


async def test_a_pool_that_is_too_small_waits(redis_url: str) -> None:
    pool = redis.asyncio.BlockingConnectionPool.from_url(redis_url, max_connections=2, timeout=20)
    client = redis.asyncio.Redis.from_pool(pool)
    async with aclosing(client), RedisStore(client=client, check_server=False) as store:
        await asyncio.gather(*(Worker(store, f'run-{n}').create() for n in range(30)))
        assert len(await store.runs()) == 30


async def test_no_connection_is_left(redis_url: str, cli: redis.Redis) -> None:
    def clients() -> int:
        return len([client for client in cli.client_list() if client['db'] == str(db)])

    db = int(redis_url.rpartition('/')[2])
    before = clients()
    async with only(redis_url) as store:
        await asyncio.gather(*(Worker(store, f'run-{n}').create() for n in range(20)))
        assert clients() > before
    for _ in range(100):
        if clients() == before:
            break
        await asyncio.sleep(0.01)
    assert clients() == before


@pytest.mark.filterwarnings('ignore:unclosed:ResourceWarning')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_store_may_be_closed_after_its_event_loop(redis_url: str) -> None:
    store = only(redis_url)
    asyncio.run(Worker(store).create())
    asyncio.run(store.close())
    with pytest.raises(StoreClosedError):
        asyncio.run(store.run('run-1'))


async def test_a_cancelled_read_leaves_no_reply_behind(redis_url: str) -> None:
    async with only(redis_url) as store:
        for name in ('a', 'b'):
            await Worker(store, name).create(state={'text': name * 400_000})
        for number in range(40):
            read = asyncio.ensure_future(store.document('a'))
            await asyncio.sleep(number / 10_000)
            read.cancel()
            text = (await store.document('b')).to_json()
            assert b'bbbb' in text
            await asyncio.wait((read,))


# --- options --------------------------------------------------------------------------------------


def test_a_store_takes_a_url_or_a_client() -> None:
    for arguments in ({}, {'url': 'redis://h', 'client': redis.asyncio.Redis()}):
        with pytest.raises(TypeError, match='takes a URL, or client='):
            RedisStore(**arguments)
    for client in (redis.Redis(), 'redis://h', object()):
        with pytest.raises(TypeError, match=r'must be a redis\.asyncio\.Redis'):
            RedisStore(client=client)


@pytest.mark.parametrize(
    'url',
    [
        'http://localhost',
        'localhost:6379',
        'redis://user:secret@host:port/0',
        'redis://user:secret@localhost/0?no_such_option=1',
        'redis://user:secret@localhost/0?buckets=many',
        'redis://user:secret@localhost/0?lease=60&lease=70',
        'redis://user:secret@localhost/0?socket_timeout=x',
        'redis+cluster://user:secret@localhost/1',
        'redis+cluster://user:secret@localhost?no_such_option=1',
        '',
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r'.') as caught:
        RedisStore.from_url(url)
    assert 'secret' not in str(caught.value)


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('redis://user:secret@db.example:7000/3?lease=60', 'redis://***@db.example:7000/3'),
        ('rediss://:secret@db.example', 'rediss://***@db.example'),
        ('valkey://db.example:1', 'valkey://db.example:1'),
        ('valkeys://db.example:1', 'valkeys://db.example:1'),
        ('unix:///run/redis.sock?db=2', 'unix:///run/redis.sock'),
        ('redis+cluster://me:secret@10.0.0.1:7000', 'redis+cluster://***@10.0.0.1:7000'),
    ],
)
def test_a_store_is_shown_without_its_password(url: str, shown: str) -> None:
    assert repr(open_store(url)) == f"<RedisStore {shown} prefix='graphkeep'>"


def test_options_may_stand_in_the_url() -> None:
    url = 'redis://localhost/0?prefix=shop&lease=60&socket_timeout=3&history=latest&heartbeat=5'
    store = RedisStore.from_url(url, heartbeat=7)
    assert (store.lease, store.heartbeat, store.history) == (60.0, 7, 'latest')
    assert "prefix='shop'" in repr(store)


@pytest.mark.parametrize('prefix', ['', 'a{b', 'a}b', 'a b', 'a\n', 'ä', 'x' * 65])
def test_a_prefix_that_would_break_the_keys_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match='cannot begin the names of keys'):
        RedisStore('redis://localhost', prefix=prefix)


def test_other_options_are_checked() -> None:
    with pytest.raises(TypeError, match='prefix must be a string'):
        RedisStore('redis://localhost', prefix=1)
    with pytest.raises(ValueError, match='buckets must be 1 to 16384'):
        RedisStore('redis://localhost', buckets=0)
    with pytest.raises(ValueError, match='timeout must be above 0'):
        RedisStore('redis://localhost', timeout=0)


# --- warnings -------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_opening_warns_once_of_what_can_lose_runs(
    redis_server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lossy = redis_server.setting('appendonly') == 'no'
    async with RedisStore(redis_url) as store:
        await Worker(store).create()
    assert len(warnings(caplog)) == lossy
    assert all('appendonly is off' in text for text in warnings(caplog))
    caplog.clear()
    async with only(redis_url):
        pass
    assert not warnings(caplog)
