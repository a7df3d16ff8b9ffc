"""Requests in Redis: how they are stored, migration, and many of them."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
import redis

from graphkeep import LeaseLostError, StoreError
from graphkeep.requests import Request, RequestQuery
from graphkeep.stores import redis_find, redis_requests
from graphkeep.stores.redis import RedisStore
from graphkeep.testing import Worker
from tests.servers import RedisCluster, RedisServer
from tests.stores.redis_tool import (
    ANSWERS,
    LISTED,
    OPEN,
    REQUESTS,
    RUN,
    WAKE,
    asks,
    keys,
    micros,
    names,
    only,
    paused,
    stamp,
)

pytestmark = pytest.mark.redis


# --- the stored form ------------------------------------------------------------------------------


async def test_a_request_is_fields_of_a_hash(redis_url: str, cli: redis.Redis) -> None:
    payload, schema = b'{"a": 1.0,  "b":"\\u0000\\ud800"}', b'{ "type" : "object" }'
    async with only(redis_url) as store:
        ask = asks(timeout=60, prompt='\0?', payload=payload, schema=schema)
        worker = await paused(store, ask)
        asked = stamp((await store.run('order-42')).updated_at)
        deadline = b'%d' % (int(asked) + 60_000_000)
        stored = {
            b'state:0:manager': b'open %b %b - -' % (asked, deadline),
            b'asked:0:manager': b'["manager","Node0","0","\\u0000?"]',
            b'payload:0:manager': payload,
            b'schema:0:manager': schema,
        }
        assert cli.hgetall(REQUESTS) == stored
        assert cli.zrange(OPEN, 0, -1, withscores=True) == [
            (b'order-42\x000:manager', float(asked))
        ]
        listed = b'6 12 %b %b - 33 31 21 -\norders{"team":"a"}' % (asked, deadline)
        listed += stored[b'asked:0:manager'] + payload + schema
        assert cli.hgetall(LISTED) == {b'order-42\x000:manager': listed}
        assert cli.zrange(WAKE, 0, -1, withscores=True) == [(b'order-42', float(deadline))]
        assert cli.hget(RUN, 'wake_at') == deadline

        await store.answer('order-42', '0:manager', {'ok': '\0'}, by='zoë')
        run = await store.run('order-42')
        answered = stamp(run.updated_at)
        assert cli.hgetall(REQUESTS) == stored | {
            b'state:0:manager': b'answered %b %b %b -' % (asked, deadline, answered),
            b'answer:0:manager': b'{"ok":"\\u0000"}',
            b'by:0:manager': 'zoë'.encode(),
        }
        assert not cli.exists(OPEN, LISTED, WAKE)
        assert cli.hmget(RUN, 'status', 'answered', 'wake_at') == [b'ready', b'1', None]
        assert [fields for _, fields in cli.xrange(ANSWERS)] == [{b'run': b'order-42'}]

        await worker.take()
        await worker.pauses(ask._replace(error='no \ud800'), answered=1)
        assert cli.hgetall(REQUESTS) == stored | {b'error:0:manager': b'"no \\ud800"'}
        again = listed.replace(b'21 -\n', b'21 11\n') + b'"no \\ud800"'
        assert cli.hgetall(LISTED) == {b'order-42\x000:manager': again}
        await store.delete('order-42')
        assert keys(cli) == [ANSWERS, b'{graphkeep:0}:meta']


@pytest.mark.parametrize('name', ['a\nb', 'ö"', 'state:0:x', '', ' ', 'ö' * 300, '-1', '\\'])
async def test_any_name_will_do(name: str, redis_url: str) -> None:
    async with only(redis_url) as store:
        await paused(store, asks(name), asks('other'))
        assert names(await store.requests(name=name)) == [name]
        assert names(await store.requests(name=name, status=())) == [name]
        await store.answer('order-42', f'0:{name}', 1)
        assert names(await store.requests()) == ['other']
        await store.cancel('order-42')
        assert names(await store.requests()) == []


async def test_what_is_open_and_nothing_else_is_held_twice(
    redis_url: str, cli: redis.Redis
) -> None:
    def check(*names: str) -> None:
        members = [f'order-42\0{name}'.encode() for name in names]
        assert sorted(cli.zrange(OPEN, 0, -1)) == members
        assert sorted(cli.hkeys(LISTED)) == members

    async with only(redis_url) as store:
        await paused(store, *map(asks, 'abcd'), asks('e', timeout=0.001))
        check('0:a', '0:b', '0:c', '0:d', '0:e')
        await store.answer('order-42', '0:a', 1)
        await store.expire('order-42')
        check('0:b', '0:c', '0:d')
        await store.cancel('order-42')
        check()
        await store.delete('order-42')
        worker = await paused(store, *map(asks, 'abc'))
        await store.answer('order-42', '0:a', 1)
        await worker.take()
        await worker.pauses(asks('a', error='no'), asks('x'), answered=1, closes=['0:b', '0:x'])
        check('0:a', '0:c')
        await store.delete('order-42')
        check()


async def test_what_is_long_is_held_once(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        for n, size in enumerate((15_000, 17_000, 100)):
            await paused(store, asks(payload=b'"%b"' % (b'x' * size)), run_id=f'run-{n}')
        assert sorted(cli.hkeys(LISTED)) == [b'run-0\x000:manager', b'run-2\x000:manager']
        found = await store.requests()
        assert [(r.run_id, len(r.payload)) for r in found] == [
            ('run-0', 15_000),
            ('run-1', 17_000),
            ('run-2', 100),
        ]
        assert found == await store.requests(status=('open', 'answered'))
        for query in ({'name': 'manager'}, {'graph': 'orders'}, {'labels': {'team': 'a'}}):
            assert await store.requests(**query) == found
            assert await store.requests(**query, limit=1, after=found[0]) == [found[1]]
        assert await store.requests(name='other') == []
        assert await store.requests(labels={'team': 'b'}) == []
        worker = Worker(store, 'run-3')
        await worker.create()
        await worker.pauses(asks())
        await store.answer('run-3', '0:manager', 1)
        await worker.take()
        await worker.pauses(asks(error='x' * 17_000), answered=1)
        assert cli.hlen(LISTED) == 2
        assert (await store.requests())[-1].error == 'x' * 17_000


async def test_a_list_of_open_requests_looks_at_no_run(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        for n in range(50):
            await paused(store, asks(), run_id=f'run-{n}')
        for query in ({}, {'name': 'manager', 'graph': 'orders', 'labels': {'team': 'a'}}):
            cli.config_resetstat()
            assert len(await store.requests(**query)) == 50
            assert cli.info('commandstats')['cmdstat_hmget']['calls'] == 1


async def test_the_stream_of_answers_stays_short(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await paused(store, *(asks(f'r{n}') for n in range(1500)))
        for n in range(1500):
            await store._answer('order-42', f'0:r{n}', b'1', None)
        assert 1000 <= cli.xlen(ANSWERS) < 1200
        assert (await store.run('order-42')).answered == 1500


async def test_a_commit_that_asks_is_one_command(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = await paused(store, asks('first'))
        await worker.take(allow=('paused',))
        cli.config_resetstat()
        await worker.pauses(*(asks(f'r{n}') for n in range(50)), closes=['0:first'])
        assert cli.info('commandstats')['cmdstat_evalsha']['calls'] == 1
        assert len(await store.requests()) == 50


# --- schema 1 -------------------------------------------------------------------------------------


async def test_a_database_of_schema_1_goes_on(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = Worker(store, 'order-42')
        await worker.create(graph='orders')
        await worker.step(status='paused')
    cli.hset('{graphkeep:0}:meta', 'schema', 1)
    assert not {b'answered', b'wake_at'} & cli.hgetall(RUN).keys()
    async with only(redis_url) as store, only(redis_url) as other:
        assert cli.hget('{graphkeep:0}:meta', 'schema') == b'3'
        run = await store.run('order-42')
        assert (run.status, run.answered, run.wake_at, run.due) == ('paused', 0, None, False)
        assert await store.requests(status=()) == []
        assert await store.candidates(['orders'], limit=5) == []
        worker = worker.successor(store)
        await worker.take(allow=('paused',))
        await worker.pauses(asks())
        await other.answer('order-42', '0:manager', 1)
        assert (await store.run('order-42')).answered == 1


async def test_who_may_not_write_reads_schema_1(
    redis_server: RedisServer, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
    cli.hset('{graphkeep:0}:meta', 'schema', 1)
    redis_server.command('ACL', 'SETUSER', 'reader', 'on', '>secret', '~*', '+@all', '-@write')
    try:
        url = redis_url.replace('redis://', 'redis://reader:secret@')
        async with only(url) as store:
            assert names(await store.requests()) == ['manager']
            assert names(await store.requests(status=())) == ['manager']
    finally:
        redis_server.command('ACL', 'DELUSER', 'reader')
    assert cli.hget('{graphkeep:0}:meta', 'schema') == b'1'


async def test_only_schema_1_is_raised(redis_url: str, cli: redis.Redis) -> None:
    meta = {'schema': 0, 'buckets': 1, 'hash': 'crc32'}
    cli.hset('{graphkeep:0}:meta', mapping=meta)
    with pytest.raises(StoreError, match='graphkeep did not write'):
        await only(redis_url).open()
    assert cli.hget('{graphkeep:0}:meta', 'schema') == b'0'


# --- lists ----------------------------------------------------------------------------------------


async def test_lists_go_a_stretch_at_a_time(
    redis_url: str, cli: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_requests, '_STRETCH', 7)
    monkeypatch.setattr(redis_requests, '_OPEN_STRETCH', 9)
    monkeypatch.setattr(redis_requests, '_REPLY_BYTES', 300)
    monkeypatch.setattr(redis_find, '_STRETCH', 7)
    async with only(redis_url, buckets=3) as store:
        expected: list[tuple[str, str]] = []
        for n in range(30):
            worker = Worker(store, f'run-{n:02}')
            await worker.create(graph='AB'[n % 2])
            # Many of one microsecond: those of one commit.
            count = 40 if n == 11 else 1 + n % 3
            # Of some, the list does not hold the payload.
            size = 17_000 if n % 7 == 5 else n * 9
            new = [asks(f'r{i:02}', payload=b'"%b"' % (b'x' * size)) for i in range(count)]
            await worker.pauses(*new)
            expected += [(worker.run_id, r.name) for r in new]
        await store.answer('run-04', '0:r00', 1)
        everything = await store.requests(status=(), limit=1000)
        assert [(r.run_id, r.name) for r in everything] == expected
        found = await store.requests(limit=1000)
        assert found == [r for r in everything if r.status == 'open']
        assert await store.find_requests(RequestQuery(status=('open',), limit=None)) == found
        for status in ((), ('open',)):
            expected_now = everything if status == () else found
            pages: list[Request] = []
            while page := await store.requests(
                status=status, limit=6, after=pages[-1] if pages else None
            ):
                pages += page
            assert pages == expected_now
        rare = await store.requests(graph='B', name='r02', limit=2)
        assert [r.run_id for r in rare] == ['run-05', 'run-11']
        assert len(await store.requests(run_id='run-11')) == 40
        by_id = await store.find_requests(RequestQuery(request_id='0:r02', limit=3))
        assert [r.run_id for r in by_id] == ['run-02', 'run-05', 'run-08']
        assert await store.requests(older_than=timedelta(hours=1)) == []


async def test_candidates_come_from_everywhere(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_find, '_STRETCH', 5)
    async with only(redis_url, buckets=3) as store:
        expected: list[str] = []
        for n in range(40):
            worker = Worker(store, f'run-{n:02}', ttl=0.0 if n % 5 == 1 else 30.0)
            await worker.create(graph='AB'[n % 2], claimed=n % 5 != 0)
            if n % 5 == 2:
                await worker.pauses(asks(timeout=0.001))
            elif n % 5 == 3:
                await worker.pauses(asks(timeout=60))
            if n % 5 < 3 and n % 2 == 0:
                expected.append(worker.run_id)
        await asyncio.sleep(0.005)
        found = await store.candidates(['A', 'C"'], limit=100)
        assert [run.run_id for run in found] == expected
        some = await store.candidates(['A'], limit=3)
        assert [run.run_id for run in some] == expected[:3]
        assert {run.due for run in found if run.status == 'paused'} == {True}
        assert found == [await store.run(run.run_id) for run in found]


async def test_runs_that_wait_are_not_looked_at(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        for n in range(20):
            await paused(store, asks(timeout=60), run_id=f'run-{n}')
        cli.config_resetstat()
        assert await store.candidates(['orders'], limit=5) == []
        assert 'cmdstat_hmget' not in cli.info('commandstats')


async def test_ten_thousand_open_requests_are_listed(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with only(redis_url) as store:
        payload = b'"%b"' % (b'x' * 200)
        for n in range(100):
            worker = Worker(store, f'run-{n}')
            await worker.create()
            await worker.pauses(*(asks(f'r{i}', payload=payload) for i in range(100)))
        seconds: dict[str, float] = {}
        for what, query, count in (
            ('all', RequestQuery(status=('open',), limit=None), 10_000),
            ('first 100', RequestQuery(status=('open',), limit=100), 100),
            ('of any status', RequestQuery(limit=None), 10_000),
            ('one name', RequestQuery(status=('open',), name='r7', limit=None), 100),
        ):
            started = time.perf_counter()
            assert len(await store.find_requests(query)) == count
            seconds[what] = time.perf_counter() - started
    with capsys.disabled():
        print('\n10,000 open requests:', {k: f'{v * 1000:.0f} ms' for k, v in seconds.items()})
    assert seconds['all'] < 10


async def test_requests_of_a_cluster_are_in_order(redis_cluster: RedisCluster) -> None:
    url = redis_cluster.url.replace('redis://', 'redis+cluster://')
    async with RedisStore(url, check_server=False) as store:
        for n in range(40):
            await paused(store, asks('a'), asks('b'), run_id=f'run-{n:02}')
        expected = [(f'run-{n:02}', name) for n in range(40) for name in 'ab']
        for status in ((), ('open',)):
            found = await store.requests(status=status)
            assert [(r.run_id, r.name) for r in found] == expected
        await asyncio.gather(*(store.answer(f'run-{n:02}', '0:a', 1) for n in range(40)))
        ready = await store.candidates(['orders'], limit=50)
        assert len(ready) == 40
        assert [r.name for r in await store.requests()] == ['b'] * 40
        for n in range(40):
            await store.cancel(f'run-{n:02}')
            await store.delete(f'run-{n:02}')
        assert await store.requests(status=()) == []


# --- together -------------------------------------------------------------------------------------


async def test_commits_that_ask_share_a_call_with_others(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        workers = [Worker(store, f'run-{n}') for n in range(12)]
        for worker in workers:
            await worker.create()
        await store.cancel('run-3')
        commits = [
            w.commit(
                status='paused' if n % 3 == 0 else 'running',
                asks=[asks(f'r{n}')] * (n % 2),
                closes=['0:none'] * (n % 4),
            )
            for n, w in enumerate(workers)
        ]
        cli.config_resetstat()
        results = await store._append(commits)
        assert cli.info('commandstats')['cmdstat_evalsha']['calls'] == 1
        assert [n for n, error in enumerate(results) if error is not None] == [3]
        assert isinstance(results[3], LeaseLostError)
        assert names(await store.requests()) == ['r1', 'r11', 'r5', 'r7', 'r9']
        assert len(await store.runs(status='paused')) == 3


async def test_a_run_that_wakes_earlier_than_it_said(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = await paused(store, asks('a', timeout=60), asks('b', timeout=30))
        first = await store.request('order-42', '0:b')
        assert (await store.run('order-42')).wake_at == first.deadline
        await worker.take(allow=('paused',))
        assert not cli.exists(WAKE)
        await worker.pauses(asks('c', timeout=90), wake_at=first.deadline)
        assert cli.zscore(WAKE, 'order-42') == micros(first.deadline)
        await worker.take(allow=('paused',))
        await worker.pauses()
        assert not cli.exists(WAKE)
        assert (await store.run('order-42')).wake_at is None
