"""Requests in Redis: damage, a full memory, and users with few rights."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from graphkeep import DamagedRunError, StoreError, StoreWriteError
from graphkeep.testing import Worker
from tests.servers import RedisServer
from tests.stores.redis_tool import (
    ANSWERS,
    LISTED,
    OPEN,
    REQUESTS,
    RUN,
    WAKE,
    asks,
    everything,
    names,
    only,
    paused,
)

pytestmark = pytest.mark.redis


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('state', b'open'),
        ('state', b'dancing 1 - - -'),
        ('state', b'open 1 x - -'),
        ('state', b'open 99999999999999999999999 - - -'),
        ('asked', b'["manager"'),
        ('asked', b'["manager"]'),
        ('asked', b'\xff'),
        ('asked', None),
        ('payload', None),
        ('error', b'{'),
        ('by', b'\xff'),
    ],
)
async def test_a_damaged_request_is_named_and_left_out_of_lists(
    field: str,
    value: bytes | None,
    redis_url: str,
    cli: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with only(redis_url) as store:
        worker = await paused(store, asks(timeout=60), asks('kept'))
        await paused(store, asks('other'), run_id='other')
        if value is None:
            cli.hdel(REQUESTS, f'{field}:0:manager')
        else:
            cli.hset(REQUESTS, f'{field}:0:manager', value)
        for find in (
            store.requests(run_id='order-42', status=()),
            store.request('order-42', '0:manager'),
        ):
            with pytest.raises(DamagedRunError, match='0:manager') as caught:
                await find
            assert (caught.value.run_id, caught.value.seq) == ('order-42', None)
        # What a list of open ones shows was written before the damage.
        assert names(await store.requests()) == ['kept', 'manager', 'other']
        cli.hdel(LISTED, b'order-42\x000:manager')
        for status in ((), ('open',), ('open', 'answered')):
            caplog.clear()
            assert names(await store.requests(status=status)) == ['kept', 'other']
            # What has a status that there is not has none of those that are asked for.
            assert ('0:manager' in caplog.text) == (value != b'dancing 1 - - -' or not status)
        assert names(await store.requests(limit=2)) == ['kept', 'other']
        with pytest.raises(DamagedRunError, match='0:manager'):
            await store._answer('order-42', '0:manager', b'1', None)
        await store.answer('order-42', '0:kept', 1)
        await store.expire('order-42')
        await worker.take()
        await worker.pauses(asks(error='again'), closes=['0:kept', '0:manager'])
        await store.cancel('order-42')
        await store.delete('order-42')
        assert not cli.exists(REQUESTS)
        assert cli.zrange(OPEN, 0, -1) == [b'other\x000:other']
        assert cli.hkeys(LISTED) == [b'other\x000:other']


@pytest.mark.parametrize(
    'text',
    [
        None,
        b'',
        b'open',
        b'\xff',
        b'\n',
        b'- - 1 - - - - - -\n',
        b'- - 1 - - 31 4 4 -\n["manager","Node0","0",null]nulltru',
        b'- - 1 - - 31 4 4 -\n["manager","Node0","0",null]nulltruex',
        b'- - 1 - - 31 4 4 -5\n["manager","Node0","0",null]nulltrue',
        b'- - 1 - - 27 4 4 -\n["manager","Node0","0"]xxxxnulltrue',
        b'- - 1 x - 31 4 4 -\n["manager","Node0","0",null]nulltrue',
        b'- 2 1 - - 31 4 4 -\n[]["manager","Node0","0",null]nulltrue',
        b'- 99999999999999999999999999999999999 1 - - 31 4 4 -\n',
    ],
)
async def test_what_a_list_cannot_read_is_read_from_the_run(
    text: bytes | None, redis_url: str, cli: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with only(redis_url) as store:
        await paused(store, asks(timeout=60), asks('kept'))
        expected = await store.requests()
        if text is None:
            cli.delete(LISTED)
        else:
            cli.hset(LISTED, b'order-42\x000:manager', text)
        assert await store.requests() == expected
        assert await store.requests(limit=1) == expected[:1]
        assert caplog.text == ''
        for query in ({'name': 'manager'}, {'name': 'manager', 'labels': {'team': 'a'}}):
            found = await store.requests(**query)
            # What can be read so far as to see that it is another one's, does not match.
            assert found in ([expected[1]], [])


async def test_names_that_are_no_text_are_passed_by(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
        cli.zadd(OPEN, {b'\xff\xfe': 1, b'order-42\x00\xff': 2, b'order-42\x00\xed\xa0\x80': 3})
        assert names(await store.requests()) == ['manager']


async def test_what_is_not_ours_among_requests_is_passed_by(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
        cli.hset(REQUESTS, mapping={'note': 'x', 'asked:0:ghost': '[]'})
        cli.zadd(OPEN, {'order-42\x000:gone': 1, 'no-run\x000:x': 2, 'foreign': 3})
        for status in ((), ('open',)):
            assert names(await store.requests(status=status)) == ['manager']
        await store.answer('order-42', '0:manager', 1)
        assert await store._answer('order-42', '0:ghost', b'1', None) is None


@pytest.mark.parametrize('key', [REQUESTS, OPEN, LISTED, WAKE])
async def test_a_key_of_another_kind_stops_a_write_before_it_begins(
    key: bytes, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        worker = await paused(store, asks(timeout=60))
        held = Worker(store, 'held')
        await held.create()
        cli.delete(key)
        cli.set(key, 'not ours')
        cli.set(b'{graphkeep:0}:requests:held', 'not ours')
        before = everything(cli)
        commit = held.commit(status='paused', event='pause', asks=(asks(timeout=1),))
        again = worker.commit(status='paused')
        for commits in ([commit], [commit, again]):
            error, *_ = await store._append(commits)
            assert type(error) is StoreError
            assert 'a key of another kind' in str(error)
        calls: list[Callable[[], Any]] = [
            lambda: store._answer('order-42', '0:manager', b'1', None),
            lambda: store.cancel('order-42'),
            lambda: store.delete('order-42'),
        ]
        if key == WAKE:
            calls.append(lambda: worker.take(allow=('paused',)))
        else:
            calls.append(lambda: store.expire('order-42'))
        for call in calls:
            with pytest.raises(StoreError, match='a key of another kind'):
                await call()
            assert everything(cli) == before


async def test_an_index_of_another_kind_stops_an_answer(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
        cli.set('{graphkeep:0}:status:ready', 'not ours')
        before = everything(cli)
        with pytest.raises(StoreError, match='a key of another kind'):
            await store.answer('order-42', '0:manager', 1)
        assert everything(cli) == before


async def test_requests_of_another_kind_are_left_out_of_lists(
    redis_url: str, cli: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
        await paused(store, asks('kept'), run_id='other')
        cli.delete(REQUESTS)
        cli.set(REQUESTS, 'not ours')
        cli.hdel(LISTED, b'order-42\x000:manager')
        for status in ((), ('open',)):
            caplog.clear()
            assert names(await store.requests(status=status)) == ['kept']
            assert 'a key of another kind' in caplog.text
        with pytest.raises(StoreError, match='a key of another kind'):
            await store.requests(run_id='order-42')


async def test_a_stream_of_another_kind_refuses_no_answer(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
        cli.set(ANSWERS, 'not ours')
        await store.answer('order-42', '0:manager', 1)
        assert (await store.run('order-42')).status == 'ready'
        # Nobody can hear of it.
        await asyncio.wait_for(store._watch(lambda _: None), 5)


async def test_what_a_lost_header_left_is_not_of_the_next_run(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await paused(store, asks(timeout=0.001))
        cli.delete(RUN)
        assert await store.requests(status=()) == []
        assert await store._answer('order-42', '0:manager', b'1', None) is None
        await Worker(store, 'order-42').create(graph='orders', claimed=False)
        assert await store.requests(status=()) == []
        assert await store.requests() == []
        assert not cli.exists(OPEN, LISTED)
        found = await store.candidates(['orders'], limit=5)
        assert [run.run_id for run in found] == ['order-42']


# --- what the server refuses ----------------------------------------------------------------------


async def test_a_full_memory_refuses_answers_and_changes_nothing(
    make_redis: Callable[..., RedisServer],
) -> None:
    server = make_redis(maxmemory_policy='noeviction')
    async with only(server.url(), retry=0) as store:
        await paused(store, asks(), asks('late', timeout=0.001))
        asking = Worker(store, 'asking')
        await asking.create()
        with redis.Redis.from_url(server.url(), protocol=2) as cli:
            server.command('CONFIG', 'SET', 'maxmemory', 1)
            before = everything(cli)
            with pytest.raises(StoreWriteError, match='its memory is full'):
                await store.answer('order-42', '0:manager', 1)
            ending = await store.append(
                asking.commit(status='paused', event='pause', asks=(asks(timeout=9),))
            )
            assert isinstance(ending.error, StoreWriteError)
            assert everything(cli) == before
            # What makes room is not refused.
            await store.expire('order-42')
            assert (await store.request('order-42', '0:late')).status == 'expired'
            await store.cancel('order-42')
            await store.delete('order-42')
            server.command('CONFIG', 'SET', 'maxmemory', 0)
            await asking.step(asks=(asks(),))


async def test_without_rights_for_the_new_keys_runs_go_on_without_requests(
    redis_server: RedisServer, redis_url: str, cli: redis.Redis
) -> None:
    old = ('run:*', 'log:*', 'created', 'status:*', 'meta')
    async with only(redis_url) as owner:
        await paused(owner, asks())
        worker = Worker(owner, 'order-43')
        await worker.create()
        patterns = [f'~{{graphkeep:0}}:{key}' for key in old]
        redis_server.command('ACL', 'SETUSER', 'old', 'on', '>secret', '+@all', *patterns)
        try:
            async with only(redis_url.replace('redis://', 'redis://old:secret@')) as store:
                seen = worker.successor(store)
                seen._claim = worker.claim
                await seen.step()
                before = everything(cli)
                ending = await store.append(seen.commit(asks=(asks(),)))
                assert isinstance(ending.error, StoreWriteError)
                for call in (
                    store._answer('order-42', '0:manager', b'1', None),
                    store.cancel('order-42'),
                    store.delete('order-42'),
                    store.expire('order-42'),
                    seen.take(expected_epoch=worker.claim.epoch),
                ):
                    with pytest.raises(StoreWriteError, match='may not do this'):
                        await call
                for read in (store.requests(), store.requests(run_id='order-42')):
                    with pytest.raises(StoreError, match='may not do this'):
                        await read
                await asyncio.wait_for(store._watch(lambda _: None), 5)
                assert everything(cli) == before
        finally:
            redis_server.command('ACL', 'DELUSER', 'old')
