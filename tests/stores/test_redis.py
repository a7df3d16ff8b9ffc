"""What is special to Redis: the stored form, the layout that is written down, and the scripts."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from importlib.resources import files

import pytest
import redis
import redis.asyncio

from graphkeep import DamagedRunError, LeaseLostError, SchemaError, StoreError
from graphkeep.runs import Commit, Draft
from graphkeep.store import new_nonce
from graphkeep.stores.redis_client import script
from graphkeep.testing import Worker
from tests.stores.redis_tool import LOG, RUN, keys, micros, only, stamp

pytestmark = pytest.mark.redis

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


# --- the stored form ------------------------------------------------------------------------------


async def test_a_run_is_a_hash_and_a_stream(redis_url: str, cli: redis.Redis) -> None:
    started = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
    async with only(redis_url) as store:
        worker = Worker(store, 'order-42', owner='host/1', ttl=60)
        created = await worker.create(graph='orders', labels={'städt': '"1"'}, nonce='first')
        await worker.step(
            node='Price', task='0', started_at=started, duration=0.25, nonce='the second one'
        )
        run = await store.run('order-42')
        delta = (await store.snapshots('order-42'))[1].data

    assert cli.hgetall(RUN) == {
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
    assert cli.xrange(LOG) == [
        (b'0-1', {b'meta': first, b'data': worker.texts[0]}),
        (b'1-1', {b'meta': second, b'data': delta}),
    ]
    assert cli.zrange(b'{graphkeep:0}:created', 0, -1, withscores=True) == [
        (b'order-42', float(micros(created.created_at)))
    ]
    assert cli.zrange(b'{graphkeep:0}:status:running', 0, -1, withscores=True) == [
        (b'order-42', float(micros(created.created_at)))
    ]
    assert cli.hgetall(b'{graphkeep:0}:meta') == {
        b'schema': b'3',
        b'buckets': b'1',
        b'hash': b'crc32',
    }
    assert keys(cli) == [
        b'{graphkeep:0}:created',
        LOG,
        b'{graphkeep:0}:meta',
        RUN,
        b'{graphkeep:0}:status:running',
    ]


async def test_a_run_that_failed_has_its_error_in_the_header(
    redis_url: str, cli: redis.Redis
) -> None:
    error = {'type': 'ValueError', 'message': 'not \ud800 UTF-8, nor \0'}
    stored = b'{"type":"ValueError","message":"not \\ud800 UTF-8, nor \\u0000"}'
    async with only(redis_url) as store:
        worker = Worker(store, 'order-42')
        await worker.create()
        await worker.step(status='failed', event='error', error=error)
        header = cli.hgetall(RUN)
        assert header[b'error'] == stored
        assert header[b'status'] == b'failed'
        assert not {b'owner', b'lease_until'} & header.keys()
        assert b'"error",null,null,null,null,' + stored in cli.xrange(LOG)[1][1][b'meta']
        assert (await store.run('order-42')).error == error

        await worker.take(allow=('failed',))
        await worker.step()
        assert b'error' not in cli.hgetall(RUN)


async def test_a_fork_names_its_parent(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = Worker(store, 'parent {1}')
        await worker.create()
        await worker.step()
        await store.fork('parent {1}', new_run_id='order-42', at=1)
    header = cli.hgetall(RUN)
    assert (header[b'parent_run_id'], header[b'parent_seq']) == (b'parent {1}', b'1')
    assert header[b'status'] == b'ready'


async def test_a_run_is_in_the_index_of_its_status_and_no_other(
    redis_url: str, cli: redis.Redis
) -> None:
    def found() -> list[bytes]:
        indexes = [key for key in keys(cli) if b':status:' in key]
        assert all(cli.zrange(key, 0, -1) == [b'order-42'] for key in indexes)
        assert cli.zrange(b'{graphkeep:0}:created', 0, -1) == [b'order-42']
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
    assert keys(cli) == [b'{graphkeep:0}:meta']


async def test_the_latest_history_is_trimmed(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url, history='latest') as store:
        worker = Worker(store, 'order-42')
        await worker.create()
        for number in range(1, 8):
            kind = 'full' if number == 5 else 'delta'
            await worker.step(kind=kind, history='latest')
        assert [entry for entry, _ in cli.xrange(LOG)] == [b'5-1', b'6-1', b'7-1']
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
    run_id: str, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url, prefix='a:b') as store:
        worker = Worker(store, run_id)
        await worker.create()
        await worker.step()
        await worker.check()
        assert [run.run_id for run in await store.runs(status='running')] == [run_id]
        tail = run_id.encode()
        assert {b'{a:b:0}:run:' + tail, b'{a:b:0}:log:' + tail} <= set(keys(cli))
        assert all(key.startswith(b'{a:b:0}:') for key in keys(cli))
        await store.delete(run_id, force=True)
    assert keys(cli) == [b'{a:b:0}:meta']


async def test_prefixes_keep_their_runs_to_themselves(redis_url: str) -> None:
    async with only(redis_url, prefix='a') as one, only(redis_url, prefix='a:0') as two:
        await Worker(one).create()
        await Worker(two).create()
        await two.delete('run-1', force=True)
        assert [run.run_id for run in await one.runs()] == ['run-1']


# --- the layout that is written down --------------------------------------------------------------


async def test_the_number_of_buckets_is_fixed_by_the_first(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url, buckets=4) as store:
        for number in range(20):
            await Worker(store, f'run-{number}').create()
    buckets = {key[:14] for key in keys(cli) if b':run:' in key}
    assert buckets == {b'{graphkeep:%d}:' % number for number in range(4)}

    async with only(redis_url) as store:
        assert len(await store.runs()) == 20
    with pytest.raises(SchemaError, match='lie in 4 buckets by crc32, not in 5'):
        await only(redis_url, buckets=5).open()


async def test_another_hash_function_is_refused(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url):
        pass
    cli.hset('{graphkeep:0}:meta', 'hash', 'crc16')
    with pytest.raises(SchemaError, match='buckets by crc16'):
        await only(redis_url).open()


async def test_a_newer_schema_is_refused(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await Worker(store).create()
    cli.hset('{graphkeep:0}:meta', 'schema', 4)
    before = cli.hgetall('{graphkeep:0}:run:run-1')
    with pytest.raises(SchemaError, match=r'have schema 4; this graphkeep knows up to 3'):
        await only(redis_url).open()
    assert cli.hgetall('{graphkeep:0}:run:run-1') == before


@pytest.mark.parametrize('field', ['schema', 'buckets'])
async def test_a_layout_that_is_not_ours_is_refused(
    field: str, redis_url: str, cli: redis.Redis
) -> None:
    cli.hset('{graphkeep:0}:meta', mapping={'schema': 1, 'buckets': 1, 'hash': 'crc32'})
    cli.hset('{graphkeep:0}:meta', field, 'x')
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


async def test_scripts_are_loaded_again_after_a_flush(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(8)]
        for worker in workers:
            cli.script_flush()
            await worker.create()
        cli.script_flush()
        await asyncio.gather(*(worker.step() for worker in workers))
        await asyncio.gather(*(worker.step() for worker in workers))
        cli.script_flush()
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
            cli.script_flush()
            await call()
        assert cli.script_exists(script('delete').sha.decode()) == [True]
        await workers[3].check()


async def test_a_commit_is_one_command(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        cli.config_resetstat()
        await worker.step()
        calls = {name: row['calls'] for name, row in cli.info('commandstats').items()}
    for noise in ('cmdstat_config|resetstat', 'cmdstat_config', 'cmdstat_info'):
        calls.pop(noise, None)
    # XADD and what it needs are called by the script.
    assert calls.pop('cmdstat_evalsha') == 1
    inner = {'cmdstat_time', 'cmdstat_hmget', 'cmdstat_xadd', 'cmdstat_hset'}
    assert set(calls) == inner
    assert set(calls.values()) == {1}


async def test_a_large_batch_is_written_in_parts(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(150)]
        await asyncio.gather(*(worker.create() for worker in workers))
        await store.cancel('run-10')
        cli.delete('{graphkeep:0}:run:run-20')
        cli.set('{graphkeep:0}:run:run-20', 'not ours')
        cli.delete('{graphkeep:0}:log:run-30')
        statuses = ('running', 'paused', 'failed', 'done', 'ready')
        commits = [
            worker.commit(status=statuses[number % 5], state={'text': 'x' * (number % 3 * 40_000)})
            for number, worker in enumerate(workers)
        ]
        cli.config_resetstat()
        results = await store._append(commits)
        # Of 64 commits, or of a megabyte.
        assert 2 < cli.info('commandstats')['cmdstat_evalsha']['calls'] < 12

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
