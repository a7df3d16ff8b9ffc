"""What is special to Redis: the stored form, scripts, clients, options, long reads, and damage."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

import pytest
import redis
import redis.asyncio

from graphkeep import (
    DamagedRunError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    SchemaError,
    StoreClosedError,
    StoreError,
    open_store,
)
from graphkeep.runs import Commit, Draft, Run
from graphkeep.store import new_nonce
from graphkeep.stores import redis as redis_store
from graphkeep.stores import redis_find
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_client import script
from graphkeep.testing import Worker
from tests.servers import RedisServer

pytestmark = pytest.mark.redis

RUN, LOG = b'{graphkeep:0}:run:order-42', b'{graphkeep:0}:log:order-42'
HOSTILE = [
    '{}',
    '}{',
    '{graphkeep:7}',
    'a{b}c',
    '}',
    '"quoted" \'run\'',
    'two\nlines\r\n*3\r\n$3\r\nSET',
    '  spaces and\ttabs ',
    '\x01\x1f\x7f',
    'größe 图 🙂 \u2028',
    '%s %d \\u0000 \\',
    '[a-z]*?',
    '-1',
    'ö' * 256,
    'status:ready',
]


@pytest.fixture
def tool(redis_url: str) -> Iterator[redis.Redis]:
    """The database as redis-cli sees it."""
    with redis.Redis.from_url(redis_url, protocol=2, socket_timeout=20) as client:
        yield client


def keys(tool: redis.Redis) -> list[bytes]:
    return sorted(tool.keys())


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def stamp(at: datetime) -> bytes:
    return b'%d' % micros(at)


def only(url: str, **options: Any) -> RedisStore:
    """A store over a server that need not be durable."""
    return RedisStore(url, check_server=False, **options)


# --- the stored form ------------------------------------------------------------------------------


async def test_a_run_is_a_hash_and_a_stream(redis_url: str, tool: redis.Redis) -> None:
    started = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
    async with only(redis_url) as store:
        worker = Worker(store, 'order-42', owner='host/1', ttl=60)
        created = await worker.create(graph='orders', labels={'städt': '"1"'}, nonce='first')
        await worker.step(
            node='Price', task='0', started_at=started, duration=0.25, nonce='the second one'
        )
        run = await store.run('order-42')
        delta = (await store.snapshots('order-42'))[1].data

    assert tool.hgetall(RUN) == {
        b'graph': b'orders',
        b'status': b'running',
        b'seq': b'1',
        b'full_seq': b'0',
        b'epoch': stamp(created.created_at),
        b'owner': b'host/1',
        b'lease_until': b'%d' % (micros(run.updated_at) + 60_000_000),
        b'nonce': b'the second one',
        b'labels': b'{"st\\u00e4dt":"\\"1\\""}',
        b'created_at': stamp(created.created_at),
        b'updated_at': stamp(run.updated_at),
    }
    first = b'["full","start",null,null,null,null,null,%b]' % stamp(created.created_at)
    second = b'["delta","step","Price","0",1796040000123456,0.25,null,%b]' % stamp(run.updated_at)
    assert tool.xrange(LOG) == [
        (b'0-1', {b'meta': first, b'data': worker.texts[0]}),
        (b'1-1', {b'meta': second, b'data': delta}),
    ]
    assert tool.zrange(b'{graphkeep:0}:created', 0, -1, withscores=True) == [
        (b'order-42', float(micros(created.created_at)))
    ]
    assert tool.zrange(b'{graphkeep:0}:status:running', 0, -1, withscores=True) == [
        (b'order-42', float(micros(created.created_at)))
    ]
    assert tool.hgetall(b'{graphkeep:0}:meta') == {
        b'schema': b'1',
        b'buckets': b'1',
        b'hash': b'crc32',
    }
    assert keys(tool) == [
        b'{graphkeep:0}:created',
        LOG,
        b'{graphkeep:0}:meta',
        RUN,
        b'{graphkeep:0}:status:running',
    ]


async def test_a_run_that_failed_has_its_error_in_the_header(
    redis_url: str, tool: redis.Redis
) -> None:
    error = {'type': 'ValueError', 'message': 'not \ud800 UTF-8, nor \0'}
    stored = b'{"type":"ValueError","message":"not \\ud800 UTF-8, nor \\u0000"}'
    async with only(redis_url) as store:
        worker = Worker(store, 'order-42')
        await worker.create()
        await worker.step(status='failed', event='error', error=error)
        header = tool.hgetall(RUN)
        assert header[b'error'] == stored
        assert header[b'status'] == b'failed'
        assert not {b'owner', b'lease_until'} & header.keys()
        assert b'"error",null,null,null,null,' + stored in tool.xrange(LOG)[1][1][b'meta']
        assert (await store.run('order-42')).error == error

        await worker.take(allow=('failed',))
        await worker.step()
        assert b'error' not in tool.hgetall(RUN)


async def test_a_fork_names_its_parent(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = Worker(store, 'parent {1}')
        await worker.create()
        await worker.step()
        await store.fork('parent {1}', new_run_id='order-42', at=1)
    header = tool.hgetall(RUN)
    assert (header[b'parent_run_id'], header[b'parent_seq']) == (b'parent {1}', b'1')
    assert header[b'status'] == b'ready'


async def test_a_run_is_in_the_index_of_its_status_and_no_other(
    redis_url: str, tool: redis.Redis
) -> None:
    def found() -> list[bytes]:
        indexes = [key for key in keys(tool) if b':status:' in key]
        assert all(tool.zrange(key, 0, -1) == [b'order-42'] for key in indexes)
        assert tool.zrange(b'{graphkeep:0}:created', 0, -1) == [b'order-42']
        return [key.rpartition(b':')[2] for key in indexes]

    async with only(redis_url) as store:
        worker = Worker(store, 'order-42')
        await worker.create(claimed=False)
        assert found() == [b'ready']
        await worker.take()
        assert found() == [b'running']
        await worker.step()
        assert found() == [b'running']
        await store.release(worker.claim)
        assert found() == [b'ready']
        await worker.take()
        await worker.step(status='paused')
        assert found() == [b'paused']
        await worker.take(allow=('failed', 'paused'))
        await worker.step(status='failed', event='error', error={})
        assert found() == [b'failed']
        await store.cancel('order-42')
        assert found() == [b'cancelled']
        await store.delete('order-42')
    assert keys(tool) == [b'{graphkeep:0}:meta']


async def test_the_latest_history_is_trimmed(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url, history='latest') as store:
        worker = Worker(store, 'order-42')
        await worker.create()
        for number in range(1, 8):
            kind = 'full' if number == 5 else 'delta'
            await worker.step(kind=kind, history='latest')
        assert [entry for entry, _ in tool.xrange(LOG)] == [b'5-1', b'6-1', b'7-1']
        await worker.check(first=5)


async def test_a_payload_is_any_bytes(redis_url: str) -> None:
    # Payloads are returned side by side: nothing in them may look like where one ends.
    payloads = [b'', b'\n', b',', b'{"a":\r\n1}', bytes(range(256)), b'$3\r\nabc\r\n', b'\0']
    async with only(redis_url) as store:
        worker = Worker(store)
        await worker.create()
        for seq, data in enumerate(payloads, 1):
            draft = Draft(seq=seq, kind='delta', event='step', data=data)
            claim, nonce = worker.claim, new_nonce()
            commit = Commit(claim=claim, draft=draft, status='running', ttl=30, nonce=nonce)
            (await store.append(commit)).unwrap()
        found = await store.snapshots('run-1', after=0)
        assert [snapshot.data for snapshot in found] == payloads


@pytest.mark.parametrize('run_id', HOSTILE)
async def test_a_hostile_run_id_breaks_out_of_nothing(
    run_id: str, redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url, prefix='a:b') as store:
        worker = Worker(store, run_id)
        await worker.create()
        await worker.step()
        await worker.check()
        assert [run.run_id for run in await store.runs(status='running')] == [run_id]
        tail = run_id.encode()
        assert {b'{a:b:0}:run:' + tail, b'{a:b:0}:log:' + tail} <= set(keys(tool))
        assert all(key.startswith(b'{a:b:0}:') for key in keys(tool))
        await store.delete(run_id, force=True)
    assert keys(tool) == [b'{a:b:0}:meta']


async def test_prefixes_keep_their_runs_to_themselves(redis_url: str) -> None:
    async with only(redis_url, prefix='a') as one, only(redis_url, prefix='a:0') as two:
        await Worker(one).create()
        await Worker(two).create()
        await two.delete('run-1', force=True)
        assert [run.run_id for run in await one.runs()] == ['run-1']


# --- the layout that is written down --------------------------------------------------------------


async def test_the_number_of_buckets_is_fixed_by_the_first(
    redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url, buckets=4) as store:
        for number in range(20):
            await Worker(store, f'run-{number}').create()
    buckets = {key[:14] for key in keys(tool) if b':run:' in key}
    assert buckets == {b'{graphkeep:%d}:' % number for number in range(4)}

    async with only(redis_url) as store:
        assert len(await store.runs()) == 20
    with pytest.raises(SchemaError, match='lie in 4 buckets by crc32, not in 5'):
        await only(redis_url, buckets=5).open()


async def test_another_hash_function_is_refused(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url):
        pass
    tool.hset('{graphkeep:0}:meta', 'hash', 'crc16')
    with pytest.raises(SchemaError, match='buckets by crc16'):
        await only(redis_url).open()


async def test_a_newer_schema_is_refused(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url) as store:
        await Worker(store).create()
    tool.hset('{graphkeep:0}:meta', 'schema', 2)
    before = tool.hgetall('{graphkeep:0}:run:run-1')
    with pytest.raises(SchemaError, match=r'have schema 2; this graphkeep knows up to 1'):
        await only(redis_url).open()
    assert tool.hgetall('{graphkeep:0}:run:run-1') == before


@pytest.mark.parametrize('field', ['schema', 'buckets'])
async def test_a_layout_that_is_not_ours_is_refused(
    field: str, redis_url: str, tool: redis.Redis
) -> None:
    tool.hset('{graphkeep:0}:meta', mapping={'schema': 1, 'buckets': 1, 'hash': 'crc32'})
    tool.hset('{graphkeep:0}:meta', field, 'x')
    with pytest.raises(SchemaError, match='graphkeep did not write'):
        await only(redis_url).open()


async def test_many_may_open_at_once(redis_url: str) -> None:
    stores = [only(redis_url) for _ in range(12)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))


# --- scripts --------------------------------------------------------------------------------------


SCRIPTS = sorted(
    file.name for file in files('graphkeep.stores').joinpath('lua').iterdir() if '.lua' in file.name
)


@pytest.mark.parametrize('name', SCRIPTS)
def test_every_script_says_what_it_is_and_what_it_keeps(name: str) -> None:
    text = files('graphkeep.stores').joinpath('lua', name).read_text()
    assert text.startswith('-- ')
    if re.search(r"'(HSET|HDEL|XADD|ZADD|ZREM|UNLINK|XTRIM)'", text):
        assert '\n-- Invariant: ' in text
    # A key that a script puts together itself is not declared.
    assert not re.search(r'KEYS\[[^]]*\]\s*\.\.|\.\.\s*KEYS|:\'\s*\.\.', text)


async def test_scripts_are_loaded_again_after_a_flush(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(8)]
        for worker in workers:
            tool.script_flush()
            await worker.create()
        tool.script_flush()
        await asyncio.gather(*(worker.step() for worker in workers))
        await asyncio.gather(*(worker.step() for worker in workers))
        tool.script_flush()
        assert await store.renew([worker.claim for worker in workers]) == [None] * 8
        for call in (
            lambda: store.run('run-0'),
            lambda: store.runs(labels={'a': 'b'}),
            lambda: store.snapshots('run-0'),
            lambda: store.document('run-0'),
            lambda: store.release(workers[0].claim),
            workers[0].take,
            lambda: store.cancel('run-1'),
            lambda: store.delete('run-2', force=True),
        ):
            tool.script_flush()
            await call()
        assert tool.script_exists(script('delete').sha.decode()) == [True]
        await workers[3].check()


async def test_a_commit_is_one_command(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        tool.config_resetstat()
        await worker.step()
        calls = {name: row['calls'] for name, row in tool.info('commandstats').items()}
    for noise in ('cmdstat_config|resetstat', 'cmdstat_config', 'cmdstat_info'):
        calls.pop(noise, None)
    # XADD and what it needs are called by the script.
    assert calls.pop('cmdstat_evalsha') == 1
    inner = {'cmdstat_time', 'cmdstat_hmget', 'cmdstat_xadd', 'cmdstat_hset'}
    assert set(calls) == inner
    assert set(calls.values()) == {1}


async def test_a_large_batch_is_written_in_parts(redis_url: str, tool: redis.Redis) -> None:
    async with only(redis_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(150)]
        await asyncio.gather(*(worker.create() for worker in workers))
        await store.cancel('run-10')
        tool.delete('{graphkeep:0}:run:run-20')
        tool.set('{graphkeep:0}:run:run-20', 'not ours')
        tool.delete('{graphkeep:0}:log:run-30')
        statuses = ('running', 'paused', 'failed', 'done', 'ready')
        commits = [
            worker.commit(status=statuses[number % 5], state={'text': 'x' * (number % 3 * 40_000)})
            for number, worker in enumerate(workers)
        ]
        tool.config_resetstat()
        results = await store._append(commits)
        # Of 64 commits, or of a megabyte.
        assert 2 < tool.info('commandstats')['cmdstat_evalsha']['calls'] < 12

        errors = {number: error for number, error in enumerate(results) if error is not None}
        assert {number: type(error) for number, error in errors.items()} == {
            10: LeaseLostError,
            20: StoreError,
            30: DamagedRunError,
        }
        assert 'a key of another kind' in str(errors[20])
        for number, (worker, commit) in enumerate(zip(workers, commits, strict=True)):
            if number not in errors:
                worker.written(commit)
                await worker.check()
                assert (await store.run(worker.run_id)).status == commit.status
        assert len(await store.runs(status='done', limit=500)) == 30


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


async def test_no_connection_is_left(redis_url: str, tool: redis.Redis) -> None:
    def clients() -> int:
        return len([client for client in tool.client_list() if client['db'] == str(db)])

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


# --- long reads and many runs ---------------------------------------------------------------------


async def test_a_long_read_comes_in_parts(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, '_REPLY_BYTES', 400)
    async with only(redis_url) as store:
        worker = Worker(store)
        await worker.create(state={'text': 'x' * 1000})
        for number in range(1, 60):
            big = 'y' * (1000 if number % 7 == 0 else 10)
            await worker.step(kind='full' if number == 3 else 'delta', state={'text': big})
        await worker.check()
        claimed = await worker.successor().take(expected_epoch=worker.claim.epoch)
        assert [snapshot.seq for snapshot in claimed.snapshots] == list(range(3, 60))
        page = await store.snapshots('run-1', after=10, limit=33)
        assert [snapshot.seq for snapshot in page] == list(range(11, 44))


@pytest.mark.parametrize('change', ['delete', 'create again', 'drop old snapshots'])
async def test_a_long_read_begins_anew_when_the_run_is_replaced(
    change: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, '_REPLY_BYTES', 400)
    async with only(redis_url) as store, only(redis_url) as other:
        worker = Worker(other)
        await worker.create(state={'text': 'x' * 1000})
        for _ in range(40):
            await worker.step()
        parts = 0
        through = store._log

        async def log(*arguments: Any) -> list[bytes]:
            nonlocal parts, worker
            parts += 1
            if parts == 2:
                if change == 'drop old snapshots':
                    await worker.step(kind='full', history='latest')
                else:
                    await other.delete('run-1', force=True)
                if change == 'create again':
                    worker = Worker(other)
                    await worker.create(state={'text': 'z' * 1000})
                    for _ in range(40):
                        await worker.step()
            return await through(*arguments)

        monkeypatch.setattr(store, '_log', log)
        if change == 'delete':
            with pytest.raises(RunNotFoundError):
                await store.document('run-1')
        else:
            assert (await store.document('run-1')).to_json() == worker.texts[worker.seq]
        assert parts >= 2


async def test_listing_goes_a_stretch_at_a_time(
    redis_url: str, tool: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_find, '_STRETCH', 7)
    async with only(redis_url, buckets=3) as store:
        for number in range(50):
            worker = Worker(store, f'run-{number:02}')
            await worker.create(graph='AB'[number % 2], labels={'fifth': str(number % 5 == 0)})
            if number % 3 == 0:
                await store.release(worker.claim)
        newest = [f'run-{number:02}' for number in reversed(range(50))]
        assert [run.run_id for run in await store.runs()] == newest
        assert [run.run_id for run in await store.runs(limit=9)] == newest[:9]
        both = await store.runs(status=('ready', 'running'))
        assert [run.run_id for run in both] == newest
        rare = await store.runs(graph='A', labels={'fifth': 'True'}, status='ready')
        assert [run.run_id for run in rare] == ['run-30', 'run-00']

        pages: list[Run] = []
        while page := await store.runs(limit=4, after=pages[-1] if pages else None):
            pages += page
        assert [run.run_id for run in pages] == newest


async def test_runs_of_one_microsecond_are_all_listed(
    redis_url: str, tool: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_find, '_STRETCH', 4)
    names = ['Ä', 'a', 'B', 'b', 'z', 'ä', 'é', '图', '🙂', '\uffff', *map(str, range(20))]
    async with only(redis_url) as store:
        for name in names:
            await Worker(store, name).create(claimed=False)
            tool.hset(b'{graphkeep:0}:run:' + name.encode(), 'created_at', 1764489600000001)
            for index in ('created', 'status:ready'):
                tool.zadd(f'{{graphkeep:0}}:{index}', {name: 1764489600000001})
        expected = sorted(names, reverse=True)
        assert [run.run_id for run in await store.runs()] == expected
        pages: list[Run] = []
        while page := await store.runs(limit=3, status='ready', after=pages[-1] if pages else None):
            pages += page
        assert [run.run_id for run in pages] == expected


async def test_labels_are_compared_as_text(redis_url: str) -> None:
    async with only(redis_url) as store:
        await Worker(store).create(labels={'null': 'null', 'empty': '', 'ö': '"/\u2028'})
        for labels, found in (
            ({'null': 'null', 'ö': '"/\u2028'}, 1),
            ({'null': ''}, 0),
            ({'empty': ''}, 1),
            ({'missing': ''}, 0),
            ({'true': ''}, 0),
            ({'ö': '"/'}, 0),
        ):
            assert len(await store.runs(labels=labels)) == found


# --- damage ---------------------------------------------------------------------------------------


async def damaged(store: RedisStore, url: str) -> tuple[Worker, Worker]:
    """Two runs of five snapshots, of which the first will be damaged."""
    workers = Worker(store, 'order-42'), Worker(store, 'other')
    for worker in workers:
        await worker.create()
        for _ in range(4):
            await worker.step()
    return workers


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({'meta': b'["delta","step"'}, 'its meta is damaged'),
        ({'meta': b'["delta","step",null,null,"x",null,null,1]'}, 'its meta is damaged'),
        ({'meta': b'["other","step",null,null,null,null,null,1]'}, 'its meta is damaged'),
        ({'meta': b'[1,2]'}, 'its meta is damaged'),
        ({'meta': b'\xff'}, 'its meta is damaged'),
        ({'something': b'else'}, 'does not have the fields meta and data'),
    ],
)
async def test_a_damaged_entry_is_named(
    fields: dict[str, bytes], reason: str, redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url) as store:
        worker, other = await damaged(store, redis_url)
        entries = tool.xrange(LOG)
        tool.delete(LOG)
        for entry, stored in entries:
            changed = {**fields, 'data': stored[b'data']} if entry == b'2-1' else stored
            tool.xadd(LOG, changed, id=entry)

        take = worker.successor().take
        calls = [store.snapshots('order-42'), take(expected_epoch=worker.claim.epoch)]
        if not fields.get('meta', b'').startswith(b'["delta"'):
            # With the kind alone, a document can be put together.
            calls.append(store.document('order-42'))
        for call in calls:
            with pytest.raises(DamagedRunError) as caught:
                await call
            assert (caught.value.run_id, caught.value.seq) == ('order-42', 2)
            assert reason in caught.value.reason
        # Nobody could have gone on with that claim.
        assert (await store.run('order-42')).status == 'ready'
        # The part before it is good.
        assert (await store.document('order-42', at=1)).to_json() == worker.texts[1]
        await other.step()
        await other.check()
        assert len(await store.runs()) == 2
        await store.delete('order-42', force=True)


@pytest.mark.parametrize(('removed', 'at'), [(0, 0), (2, 2), (4, 4)])
async def test_a_missing_entry_is_named(
    removed: int, at: int, redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url) as store:
        _, other = await damaged(store, redis_url)
        tool.xdel(LOG, f'{removed}-1')
        with pytest.raises(DamagedRunError) as caught:
            await store.document('order-42')
        assert (caught.value.run_id, caught.value.seq) == ('order-42', at)
        await other.check()


@pytest.mark.parametrize('change', ['removed', 'foreign'])
async def test_nothing_is_added_to_a_damaged_log(
    change: str, redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url) as store:
        worker, other = await damaged(store, redis_url)
        if change == 'removed':
            tool.delete(LOG)
        else:
            tool.xadd(LOG, {'not': 'ours'})
        before = tool.hgetall(RUN), tool.xrange(LOG)
        commits = [worker.commit(), other.commit()]
        endings = await asyncio.gather(*map(store.append, commits))
        error = endings[0].error
        assert isinstance(error, DamagedRunError)
        assert (error.run_id, error.seq) == ('order-42', 4)
        assert (tool.hgetall(RUN), tool.xrange(LOG)) == before
        assert endings[1].error is None
        other.written(commits[1])
        await other.check()


@pytest.mark.parametrize(
    ('field', 'value'),
    [('seq', 'x'), ('status', 'dancing'), ('labels', '{'), ('created_at', ''), ('graph', b'\xff')],
)
async def test_a_damaged_header_is_named_and_left_out_of_lists(
    field: str,
    value: bytes | str,
    redis_url: str,
    tool: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        tool.hset(RUN, field, value)
        with pytest.raises(DamagedRunError) as caught:
            await store.run('order-42')
        assert (caught.value.run_id, caught.value.seq) == ('order-42', None)
        assert [run.run_id for run in await store.runs()] == ['other']
        assert [run.run_id for run in await store.runs(limit=1)] == ['other']
        await store.delete('order-42', force=True)
        with pytest.raises(RunNotFoundError):
            await store.run('order-42')
    assert "run 'order-42' is damaged" in caplog.text


@pytest.mark.parametrize('key', [RUN, LOG, b'{graphkeep:0}:created', b'{graphkeep:0}:status:ready'])
async def test_a_key_of_another_kind_stops_a_write_before_it_begins(
    key: bytes, redis_url: str, tool: redis.Redis
) -> None:
    tool.set(key, 'not ours')
    async with only(redis_url) as store:
        with pytest.raises(StoreError, match='a key of another kind'):
            await Worker(store, 'order-42').create(claimed=False)
        tool.delete('{graphkeep:0}:meta')
        assert keys(tool) == [key]


async def test_a_run_of_another_kind_is_left_out_of_lists(
    redis_url: str, tool: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        tool.delete(RUN)
        tool.set(RUN, 'not ours')
        assert [run.run_id for run in await store.runs()] == ['other']
        with pytest.raises(StoreError, match='a key of another kind'):
            await store.run('order-42')
    assert "run 'order-42' is damaged" in caplog.text


async def test_a_run_without_its_header_can_be_created_again(
    redis_url: str, tool: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        tool.delete(RUN)
        with pytest.raises(RunNotFoundError):
            await store.run('order-42')
        assert [run.run_id for run in await store.runs()] == ['other']
        worker = Worker(store, 'order-42')
        await worker.create()
        await worker.step()
        await worker.check()


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
