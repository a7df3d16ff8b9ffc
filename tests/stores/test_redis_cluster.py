"""A Redis store over a cluster of three nodes: slots, a slot that moves, a node that is down."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from graphkeep import SchemaError, StoreError, StoreUnavailableError
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_keys import Layout
from graphkeep.testing import Worker
from tests.servers import NoServerError, RedisCluster, RedisServer, run_redis_cluster

pytestmark = pytest.mark.redis


def only(cluster: RedisCluster, **options: Any) -> RedisStore:
    """A store over a cluster that need not be durable."""
    url = cluster.url.replace('redis://', 'redis+cluster://')
    return RedisStore(url, check_server=False, **options)


def slot_of(key: bytes) -> int:
    return redis.cluster.key_slot(key)


def keys_of(node: RedisServer) -> list[bytes]:
    return [bytes(key) for key in node.command('KEYS', '*')]


def owner_of(cluster: RedisCluster, slot: int) -> RedisServer:
    return next(node for node in cluster.nodes if slot in _slots(node))


def _slots(node: RedisServer) -> set[int]:
    text = node.command('CLUSTER', 'NODES').decode()
    [mine] = [line for line in text.splitlines() if 'myself' in line]
    found: set[int] = set()
    for part in mine.split()[8:]:
        if not part.startswith('['):
            first, _, last = part.partition('-')
            found.update(range(int(first), int(last or first) + 1))
    return found


def id_of(node: RedisServer) -> bytes:
    return node.command('CLUSTER', 'MYID')


async def test_all_keys_of_a_run_are_in_one_slot(redis_cluster: RedisCluster) -> None:
    names = ['{}', '{a}', '}{', 'x{y}z', *(f'run-{number}' for number in range(60))]
    async with only(redis_cluster) as store:
        workers = [Worker(store, name) for name in names]
        await asyncio.gather(*(worker.create() for worker in workers))
        await asyncio.gather(*(worker.step() for worker in workers))
        await asyncio.gather(*(worker.check() for worker in workers))
        assert {run.run_id for run in await store.runs(status='running')} == set(names)

    found = [keys_of(node) for node in redis_cluster.nodes]
    assert all(found)
    buckets = {key.partition(b'}')[0] for keys in found for key in keys}
    assert buckets == {b'{graphkeep:%d' % number for number in range(16)}
    layout = Layout(prefix='graphkeep', buckets=16)
    for name in names:
        keys = layout.keys(name)
        of_it = {keys.run, keys.log, keys.created, keys.having('running')}
        assert len({slot_of(key) for key in of_it}) == 1
        assert any(of_it <= set(there) for there in found)


async def test_newest_first_over_all_buckets(redis_cluster: RedisCluster) -> None:
    async with only(redis_cluster) as store:
        names = [f'run-{number:02}' for number in range(40)]
        for number, name in enumerate(names):
            await Worker(store, name).create(graph='AB'[number % 2])
        assert [run.run_id for run in await store.runs()] == names[::-1]
        assert [run.run_id for run in await store.runs(limit=5)] == names[::-1][:5]
        assert [run.run_id for run in await store.runs(graph='B', limit=5)] == names[::-2][:5]
        after = (await store.runs(limit=7))[-1]
        assert [run.run_id for run in await store.runs(after=after)] == names[::-1][7:]


async def test_the_layout_of_a_cluster_is_written_down(redis_cluster: RedisCluster) -> None:
    async with only(redis_cluster):
        pass
    with pytest.raises(SchemaError, match='lie in 16 buckets by crc32, not in 8'):
        await only(redis_cluster, buckets=8).open()
    async with only(redis_cluster, prefix='other', buckets=8) as store:
        await Worker(store).create()


async def test_scripts_are_loaded_again_on_every_node(redis_cluster: RedisCluster) -> None:
    async with only(redis_cluster) as store:
        workers = [Worker(store, f'run-{number}') for number in range(40)]
        await asyncio.gather(*(worker.create() for worker in workers))
        for _ in range(2):
            for node in redis_cluster.nodes:
                node.command('SCRIPT', 'FLUSH')
            await asyncio.gather(*(worker.step() for worker in workers))
            await workers[0].step()
        await asyncio.gather(*(worker.check() for worker in workers))


@pytest.mark.parametrize('decode', [False, True])
async def test_the_users_own_cluster_client_will_do(
    decode: bool, redis_cluster: RedisCluster
) -> None:
    client = redis.asyncio.RedisCluster.from_url(redis_cluster.url, decode_responses=decode)
    try:
        async with RedisStore(client=client, check_server=False) as store:
            workers = [Worker(store, f'größe-{number}') for number in range(30)]
            await asyncio.gather(*(worker.create(graph='Ü') for worker in workers))
            await asyncio.gather(*(worker.step() for worker in workers))
            await asyncio.gather(*(worker.check() for worker in workers))
            assert len(await store.runs(graph='Ü')) == 30
            assert str(redis_cluster.nodes[0].port) in repr(store)
        assert await client.ping()
    finally:
        await client.aclose()


async def test_opening_warns_of_any_node(
    redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    url = redis_cluster.url.replace('redis://', 'redis+cluster://')
    async with RedisStore(url):
        pass
    warnings = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert len(warnings) == 1
    assert 'appendonly is off' in warnings[0]


# --- the wrong kind of client ---------------------------------------------------------------------


async def test_a_plain_url_to_a_cluster_says_what_to_write(redis_cluster: RedisCluster) -> None:
    key = Layout.meta('graphkeep')
    others = [
        node for node in redis_cluster.nodes if node is not owner_of(redis_cluster, slot_of(key))
    ]
    assert len(others) == 2
    for node in others:
        with pytest.raises(StoreError, match=r'part of a cluster.*redis\+cluster://') as caught:
            await RedisStore(node.url(), retry=0).open()
        assert not isinstance(caught.value, StoreUnavailableError)


async def test_a_cluster_url_to_a_plain_server_says_so(redis_url: str) -> None:
    url = redis_url.rpartition('/')[0].replace('redis://', 'redis+cluster://')
    with pytest.raises(StoreError, match='Cluster mode is not enabled') as caught:
        await RedisStore(url, retry=0).open()
    assert not isinstance(caught.value, StoreUnavailableError)


# --- slots that move, nodes that go ---------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[RedisCluster]:
    """A cluster of this test's own, durable, whose nodes may be killed."""
    try:
        context = run_redis_cluster(
            appendonly='yes', appendfsync='always', cluster_require_full_coverage='no'
        )
        with context as cluster:
            yield cluster
    except NoServerError as e:
        pytest.skip(str(e))


def move(slot: int, *, source: RedisServer, target: RedisServer, nodes: Any) -> None:
    """Moves a slot with its keys, as `redis-cli --cluster reshard` does."""
    target.command('CLUSTER', 'SETSLOT', slot, 'IMPORTING', id_of(source))
    source.command('CLUSTER', 'SETSLOT', slot, 'MIGRATING', id_of(target))
    while keys := source.command('CLUSTER', 'GETKEYSINSLOT', slot, 100):
        host, port = '127.0.0.1', target.port
        source.command('MIGRATE', host, port, '', 0, 5000, 'KEYS', *keys)
    for node in (target, source, *nodes):
        node.command('CLUSTER', 'SETSLOT', slot, 'NODE', id_of(target))


async def test_a_slot_that_moves_is_followed(own_cluster: RedisCluster) -> None:
    nodes = own_cluster.nodes
    async with only(own_cluster, retry=30) as store:
        workers = [Worker(store, f'run-{number}') for number in range(40)]
        await asyncio.gather(*(worker.create() for worker in workers))
        stop = asyncio.Event()

        async def work(worker: Worker) -> None:
            while not stop.is_set():
                await worker.step()

        working = [asyncio.ensure_future(work(worker)) for worker in workers[:8]]
        for bucket in range(0, 16, 4):
            slot = slot_of(b'{graphkeep:%d}' % bucket)
            source = owner_of(own_cluster, slot)
            target = nodes[(nodes.index(source) + 1) % 3]
            await asyncio.to_thread(move, slot, source=source, target=target, nodes=nodes)
        await asyncio.gather(*(worker.step() for worker in workers[8:]))
        stop.set()
        await asyncio.gather(*working)
        await asyncio.gather(*(worker.check() for worker in workers))
        assert len(await store.runs()) == 40


async def test_a_node_that_is_down_stops_its_own_runs_only(own_cluster: RedisCluster) -> None:
    down = own_cluster.nodes[1]
    async with only(own_cluster, retry=1) as store:
        workers = [Worker(store, f'run-{number}') for number in range(30)]
        await asyncio.gather(*(worker.create() for worker in workers))
        layout, found = Layout(prefix='graphkeep', buckets=16), keys_of(down)
        there = {w.run_id for w in workers if layout.keys(w.run_id).run in found}
        assert 0 < len(there) < 30
        down.kill()
        commits = [worker.commit() for worker in workers]
        endings = await asyncio.gather(*map(store.append, commits))
        for worker, commit, ending in zip(workers, commits, endings, strict=True):
            if worker.run_id in there:
                assert isinstance(ending.error, StoreUnavailableError), ending.error
            else:
                assert ending.error is None
                worker.written(commit)
        await asyncio.to_thread(down.start)
        # What was acknowledged is there, and everybody goes on.
        store.retry = 30
        await asyncio.gather(*(worker.step() for worker in workers))
        await asyncio.gather(*(worker.check() for worker in workers))


async def test_a_node_that_comes_back_in_time_is_waited_for(own_cluster: RedisCluster) -> None:
    async with only(own_cluster, retry=60) as store:
        workers = [Worker(store, f'run-{number}') for number in range(30)]
        await asyncio.gather(*(worker.create() for worker in workers))
        down = own_cluster.nodes[2]
        down.kill()
        steps = asyncio.gather(*(worker.step() for worker in workers))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(down.start)
        await steps
        await asyncio.gather(*(worker.check() for worker in workers))


async def test_no_connection_is_left_when_a_node_is_down(own_cluster: RedisCluster) -> None:
    # The check is the one at the end of every test: no socket is open.
    async with only(own_cluster, retry=0) as store:
        workers = [Worker(store, f'run-{number}') for number in range(20)]
        await asyncio.gather(*(worker.create() for worker in workers))
        own_cluster.nodes[0].kill()
        await asyncio.gather(*(store.append(worker.commit()) for worker in workers))
    for node in own_cluster.nodes[1:]:
        node.kill()
    store = only(own_cluster, retry=0)
    with pytest.raises(StoreUnavailableError, match='cannot be reached'):
        await store.open()
