"""Damage in Redis: named, and no other run is stopped by it."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio

from graphkeep import DamagedRunError, RunNotFoundError, StoreError
from graphkeep.stores.redis import RedisStore
from graphkeep.testing import Worker
from tests.stores.redis_tool import LOG, RUN, keys, only

pytestmark = pytest.mark.redis


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
    fields: dict[str, bytes], reason: str, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        worker, other = await damaged(store, redis_url)
        entries = cli.xrange(LOG)
        cli.delete(LOG)
        for entry, stored in entries:
            changed = {**fields, 'data': stored[b'data']} if entry == b'2-1' else stored
            cli.xadd(LOG, changed, id=entry)

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
    removed: int, at: int, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        _, other = await damaged(store, redis_url)
        cli.xdel(LOG, f'{removed}-1')
        with pytest.raises(DamagedRunError) as caught:
            await store.document('order-42')
        assert (caught.value.run_id, caught.value.seq) == ('order-42', at)
        await other.check()


@pytest.mark.parametrize('change', ['removed', 'foreign'])
async def test_nothing_is_added_to_a_damaged_log(
    change: str, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        worker, other = await damaged(store, redis_url)
        if change == 'removed':
            cli.delete(LOG)
        else:
            cli.xadd(LOG, {'not': 'ours'})
        before = cli.hgetall(RUN), cli.xrange(LOG)
        commits = [worker.commit(), other.commit()]
        endings = await asyncio.gather(*map(store.append, commits))
        error = endings[0].error
        assert isinstance(error, DamagedRunError)
        assert (error.run_id, error.seq) == ('order-42', 4)
        assert (cli.hgetall(RUN), cli.xrange(LOG)) == before
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
    cli: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        cli.hset(RUN, field, value)
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
    key: bytes, redis_url: str, cli: redis.Redis
) -> None:
    cli.set(key, 'not ours')
    async with only(redis_url) as store:
        with pytest.raises(StoreError, match='a key of another kind'):
            await Worker(store, 'order-42').create(claimed=False)
        cli.delete('{graphkeep:0}:meta')
        assert keys(cli) == [key]


async def test_a_run_of_another_kind_is_left_out_of_lists(
    redis_url: str, cli: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        cli.delete(RUN)
        cli.set(RUN, 'not ours')
        assert [run.run_id for run in await store.runs()] == ['other']
        with pytest.raises(StoreError, match='a key of another kind'):
            await store.run('order-42')
    assert "run 'order-42' is damaged" in caplog.text


async def test_a_run_without_its_header_can_be_created_again(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await damaged(store, redis_url)
        cli.delete(RUN)
        with pytest.raises(RunNotFoundError):
            await store.run('order-42')
        assert [run.run_id for run in await store.runs()] == ['other']
        worker = Worker(store, 'order-42')
        await worker.create()
        await worker.step()
        await worker.check()
