"""Long reads from Redis, and many runs."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from graphkeep import RunNotFoundError
from graphkeep.runs import Run
from graphkeep.stores import redis as redis_store
from graphkeep.stores import redis_find
from graphkeep.testing import Worker
from tests.stores.redis_tool import only

pytestmark = pytest.mark.redis


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
    redis_url: str, cli: redis.Redis, monkeypatch: pytest.MonkeyPatch
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
    redis_url: str, cli: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_find, '_STRETCH', 4)
    names = ['Ä', 'a', 'B', 'b', 'z', 'ä', 'é', '图', '🙂', '\uffff', *map(str, range(20))]
    async with only(redis_url) as store:
        for name in names:
            await Worker(store, name).create(claimed=False)
            cli.hset(b'{graphkeep:0}:run:' + name.encode(), 'created_at', 1764489600000001)
            for index in ('created', 'status:ready'):
                cli.zadd(f'{{graphkeep:0}}:{index}', {name: 1764489600000001})
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
