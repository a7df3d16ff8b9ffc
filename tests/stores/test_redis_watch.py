"""Hearing of answers in Redis: at once, over any client, and nothing is left behind."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from graphkeep import StoreUnavailableError
from graphkeep.requests import NewRequest
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_keys import Layout
from graphkeep.testing import Worker
from tests.servers import RedisCluster, RedisServer
from tests.stores.redis_tool import only

pytestmark = pytest.mark.redis


class Heard:
    """What a watch has told."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        self._more = asyncio.Event()

    def __call__(self, run_id: str | None) -> None:
        self.told.append(run_id)
        self._more.set()

    async def until(self, run_id: str | None, *, after: int = 0) -> float:
        """Wait for a word. Gives when it came."""
        async with asyncio.timeout(20):
            while run_id not in self.told[after:]:
                self._more.clear()
                await self._more.wait()
        return time.perf_counter()


@asynccontextmanager
async def watched(store: RedisStore) -> AsyncIterator[Heard]:
    """A watch that is in force."""
    heard = Heard()
    watch = asyncio.ensure_future(store.watch(heard))
    try:
        await heard.until(None)
        yield heard
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


async def asked(store: RedisStore, run_id: str, count: int = 1) -> None:
    worker = Worker(store, run_id)
    await worker.create()
    await worker.pauses(
        *(
            NewRequest(f'0:{n}', '0', 'Node0', f'{n}', None, b'1', b'true', None)
            for n in range(count)
        )
    )


async def answer_in_turn(heard: Heard, store: RedisStore, count: int = 20) -> float:
    """Answer a run again and again. Gives the longest time until it was heard."""
    longest = 0.0
    for n in range(count):
        before = len(heard.told)
        started = time.perf_counter()
        await store.answer('größe', f'0:{n}', n)
        longest = max(longest, await heard.until('größe', after=before) - started)
    return longest


def blocked(cli: redis.Redis) -> list[dict[str, Any]]:
    return [client for client in cli.client_list() if client['cmd'] == 'xread']


async def gone(cli: redis.Redis) -> None:
    async with asyncio.timeout(5):
        while blocked(cli):
            await asyncio.sleep(0.01)


CLIENTS: dict[str, dict[str, Any]] = {
    'plain': {},
    'decoding': {'decode_responses': True},
    'RESP2': {'protocol': 2},
    'RESP3': {'protocol': 3},
    'one connection': {'single_connection_client': True},
    'timeouts': {'socket_timeout': 0.5, 'health_check_interval': 1},
}


@pytest.mark.parametrize('options', CLIENTS.values(), ids=CLIENTS)
async def test_an_answer_is_heard_at_once_over_any_client(
    options: dict[str, Any], redis_url: str, cli: redis.Redis
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, **options)
    async with aclosing(client), RedisStore(client=client, check_server=False) as store:
        async with only(redis_url, buckets=1) as other:
            await asked(other, 'größe', 20)
            async with watched(store) as heard:
                # Longer than the timeout of a socket.
                if options.get('socket_timeout'):
                    await asyncio.sleep(0.7)
                assert len(blocked(cli)) == 1
                assert await answer_in_turn(heard, other) < 0.1
                # Nothing waits for the one that waits.
                assert (await store.run('größe')).answered == 20
            assert heard.told == [None] + ['größe'] * 20
            await gone(cli)
        if client.connection is None:
            assert not client.connection_pool._in_use_connections
        assert await client.ping()


async def test_one_connection_reads_all_buckets(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url, buckets=8) as store, watched(store) as heard:
        assert len(blocked(cli)) == 1
        for n in range(16):
            await asked(store, f'run-{n}')
            await store.answer(f'run-{n}', '0:0', 1)
        for n in range(16):
            await heard.until(f'run-{n}')


async def test_what_was_answered_before_is_not_told_again(redis_url: str) -> None:
    async with only(redis_url) as store:
        await asked(store, 'before')
        await store.answer('before', '0:0', 1)
        await asked(store, 'after')
        async with watched(store) as heard:
            await store.answer('after', '0:0', 1)
            await heard.until('after')
        assert heard.told == [None, 'after']


async def test_a_watch_goes_on_after_its_connection_was_killed(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await asked(store, 'größe', 20)
        async with watched(store) as heard:
            for n in range(5):
                before = len(heard.told)
                [reader] = blocked(cli)
                cli.client_kill_filter(_id=reader['id'])
                # Nothing is missed in between.
                await store.answer('größe', f'0:{n}', n)
                await heard.until('größe', after=before)
                await heard.until(None, after=before)
        await gone(cli)


async def test_a_server_that_is_gone_is_an_error(make_redis: Callable[..., RedisServer]) -> None:
    server = make_redis()
    async with only(server.url(), retry=0) as store:
        heard = Heard()
        watch = asyncio.ensure_future(store.watch(heard))
        await heard.until(None)
        server.kill()
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(watch, 20)
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(store.watch(heard), 20)
        await asyncio.to_thread(server.start)
        async with watched(store):
            pass


async def test_whoever_waits_hears_again_when_the_server_is_back(
    make_redis: Callable[..., RedisServer],
) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    async with only(server.url(), retry=30) as store:
        await asked(store, 'größe')
        with store.notices.listening('größe') as event:
            await asyncio.wait_for(event.wait(), 20)
            server.kill()
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(20):
                while not store.notices.watched:
                    await asyncio.sleep(0.01)
            event.clear()
            await store._answer('größe', '0:0', b'1', None)
            await asyncio.wait_for(event.wait(), 5)


async def test_a_cancelled_watch_leaves_nothing(redis_url: str, cli: redis.Redis) -> None:
    # With a timeout of its sockets redis-py waits in other ways than without.
    for timeout in (None, 5):
        client = redis.asyncio.Redis.from_url(redis_url, socket_timeout=timeout)
        async with aclosing(client), RedisStore(client=client, check_server=False) as store:
            for number in range(80):
                watch = asyncio.ensure_future(store.watch(lambda _: None))
                await asyncio.sleep(number / 10_000)
                watch.cancel()
                done, _ = await asyncio.wait((watch,), timeout=5)
                assert done
                assert watch.cancelled()
                assert await store._header('no-run') is None
            await gone(cli)
            assert not client.connection_pool._in_use_connections


async def test_the_last_connection_of_a_pool_is_for_commands(redis_url: str) -> None:
    pool = redis.asyncio.BlockingConnectionPool.from_url(redis_url, max_connections=1)
    client = redis.asyncio.Redis.from_pool(pool)
    async with aclosing(client), RedisStore(client=client, check_server=False) as store:
        heard = Heard()
        await asyncio.wait_for(store.watch(heard), 5)
        assert heard.told == []
        await asked(store, 'größe')


async def test_who_may_not_read_streams_so_is_not_told(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with only(redis_url):
        pass
    redis_server.command('ACL', 'SETUSER', 'deaf', 'on', '>secret', '~*', '+@all', '-xread')
    try:
        async with only(redis_url.replace('redis://', 'redis://deaf:secret@')) as store:
            heard = Heard()
            await asyncio.wait_for(store.watch(heard), 5)
            # It was never in force.
            assert heard.told == []
    finally:
        redis_server.command('ACL', 'DELUSER', 'deaf')


# --- cluster --------------------------------------------------------------------------------------


def on_cluster(cluster: RedisCluster, **options: Any) -> RedisStore:
    url = cluster.url.replace('redis://', 'redis+cluster://')
    return RedisStore(url, check_server=False, **options)


async def test_an_answer_is_heard_at_once_on_a_cluster(redis_cluster: RedisCluster) -> None:
    names = [f'run-{n}' for n in range(40)]
    async with on_cluster(redis_cluster) as store, on_cluster(redis_cluster) as other:
        for name in names:
            await asked(other, name)
        async with watched(store) as heard:
            longest = 0.0
            for name in names:
                started = time.perf_counter()
                await other.answer(name, '0:0', 1)
                longest = max(longest, await heard.until(name) - started)
            assert longest < 0.1
        assert heard.told == [None, *names]
        for node in redis_cluster.nodes:
            with redis.Redis.from_url(node.url(), protocol=2) as cli:
                await gone(cli)


async def test_a_watch_of_a_cluster_goes_on_after_a_kill(redis_cluster: RedisCluster) -> None:
    async with on_cluster(redis_cluster) as store:
        await asked(store, 'größe', 20)
        tag = Layout(prefix='graphkeep', buckets=16).keys('größe').tag
        slot = redis.cluster.key_slot(tag)
        assert 0 <= slot < 16384
        async with watched(store) as heard:
            for n in range(3):
                before = len(heard.told)
                for node in redis_cluster.nodes:
                    with redis.Redis.from_url(node.url(), protocol=2) as cli:
                        for reader in blocked(cli):
                            cli.client_kill_filter(_id=reader['id'])
                await store.answer('größe', f'0:{n}', n)
                await heard.until('größe', after=before)
                await heard.until(None, after=before)
