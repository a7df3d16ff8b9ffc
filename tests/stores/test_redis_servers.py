"""A Redis store and its server: down, full, read-only, slow, killed, and users with few rights."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import exceptions as raised

from graphkeep import (
    RunNotFoundError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    StoreWriteError,
    open_store,
)
from graphkeep.runs import Commit
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_errors import meaning
from graphkeep.testing import Worker
from tests.servers import RedisServer

pytestmark = pytest.mark.redis

MakeRedis = Callable[..., RedisServer]


def only(url: str, **options: Any) -> RedisStore:
    """A store over a server that need not be durable, and which is not waited for."""
    return RedisStore(url, check_server=False, **{'retry': 0, **options})


def stored(server: RedisServer) -> list[Any]:
    """Everything that is stored of `run-1`, and where it is listed."""
    tag = '{graphkeep:0}:'
    return [
        server.command('HGETALL', f'{tag}run:run-1'),
        server.command('XRANGE', f'{tag}log:run-1', '-', '+'),
        *(server.command('ZRANGE', f'{tag}status:{s}', 0, -1) for s in ('ready', 'running')),
    ]


async def until(check: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, f'waited in vain: {what}'
        await asyncio.sleep(0.005)


async def listening(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(handler, '127.0.0.1', 0)
    return server, f'redis://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/0'


# --- rights ---------------------------------------------------------------------------------------


@pytest.fixture
def as_user(redis_server: RedisServer, redis_url: str) -> Iterator[Callable[..., str]]:
    """`as_user('+@read', …)`: the URL for a user with these rights on all keys."""
    names: list[str] = []

    def make(*rules: str, keys: str = '~*') -> str:
        name = f'user{len(names)}'
        redis_server.command('ACL', 'SETUSER', name, 'reset', 'on', '>secret', keys, *rules)
        names.append(name)
        return redis_url.replace('redis://', f'redis://{name}:secret@')

    yield make
    redis_server.command('ACL', 'DELUSER', *names)


async def test_who_may_not_write_reads(redis_url: str, as_user: Callable[..., str]) -> None:
    async with only(redis_url) as owner:
        worker = Worker(owner)
        await worker.create(claimed=False)
        async with only(as_user('+@all', '-@write')) as store:
            await worker.check(store=store)
            assert [run.run_id for run in await store.runs()] == ['run-1']
            claim = worker.successor(store).take
            for call in (
                Worker(store, 'run-2').create(),
                claim(),
                store.cancel('run-1'),
                store.delete('run-1'),
            ):
                with pytest.raises(StoreWriteError, match='may not do this') as caught:
                    await call
                assert 'secret' not in str(caught.value)
        await worker.check()


async def test_who_may_not_write_cannot_set_up(as_user: Callable[..., str]) -> None:
    with pytest.raises(SchemaError, match='there are none, and none can be written'):
        await only(as_user('+@all', '-@write')).open()


async def test_who_may_not_run_scripts_is_told(redis_url: str, as_user: Callable[..., str]) -> None:
    async with only(redis_url) as owner:
        await Worker(owner).create()
    async with only(as_user('+@read', '+@connection', '+select')) as store:
        with pytest.raises(StoreError, match=r'may not do this.*\+@scripting') as caught:
            await store.run('run-1')
        assert not isinstance(caught.value, StoreWriteError)


async def test_the_rights_that_are_named_are_enough(
    redis_url: str, as_user: Callable[..., str]
) -> None:
    # Redis 6 does not count SELECT among @connection; it is for a database that is not 0.
    reading = ('+@read', '+@connection', '+@scripting', '+time', '+select')
    async with only(as_user(*reading, '+@write', keys='~{shop:*'), prefix='shop') as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        await worker.check()
        async with only(as_user(*reading, keys='~{shop:*'), prefix='shop') as reader:
            await worker.check(store=reader)
        await store.release(worker.claim)
        await store.delete('run-1')


async def test_another_prefix_is_out_of_reach(as_user: Callable[..., str]) -> None:
    with pytest.raises(StoreError, match='may not do this'):
        await only(as_user('+@all', keys='~{shop:*'), prefix='other').open()


async def test_a_wrong_password_is_not_tried_again(as_user: Callable[..., str]) -> None:
    url = as_user('+@all').replace('secret', 'wrong-secret')
    store = RedisStore(url, retry=60)
    started = time.monotonic()
    with pytest.raises(StoreError, match='refused the login') as caught:
        await store.open()
    assert time.monotonic() - started < 20
    assert not isinstance(caught.value, StoreUnavailableError)
    assert 'wrong-secret' not in str(caught.value)


async def test_a_server_that_wants_a_password_says_so(make_redis: MakeRedis) -> None:
    server = make_redis()
    server.command('CONFIG', 'SET', 'requirepass', 'secret')
    with pytest.raises(StoreError, match='refused the login'):
        await only(server.url()).open()


async def test_without_the_right_to_look_nothing_is_warned_of(
    as_user: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisStore(as_user('+@all', '-info', '-config')) as store:
        await Worker(store).create()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


# --- what the server refuses ----------------------------------------------------------------------


async def test_a_full_memory_refuses_and_changes_nothing(make_redis: MakeRedis) -> None:
    server = make_redis(maxmemory_policy='noeviction')
    async with only(server.url()) as store:
        worker, idle = Worker(store), Worker(store, 'idle')
        await worker.create()
        await idle.create(claimed=False)
        await Worker(store, 'held').create()
        server.command('CONFIG', 'SET', 'maxmemory', 1)
        before = stored(server)

        for status in ('running', 'paused', 'done'):
            commit = worker.commit(status=status)
            ending = await store.append(commit)
            assert isinstance(ending.error, StoreWriteError)
            assert 'its memory is full. Raise maxmemory' in str(ending.error)
        for call in (Worker(store, 'other').create(), idle.take()):
            with pytest.raises(StoreWriteError, match='Nothing was written'):
                await call
        assert stored(server) == before
        with pytest.raises(RunNotFoundError):
            await store.run('other')
        await worker.check()

        # What makes room is not refused.
        await store.release(worker.claim)
        await store.cancel('held')
        await store.delete('held')
        assert (await store.run('run-1')).status == 'ready'

        server.command('CONFIG', 'SET', 'maxmemory', 0)
        await worker.take()
        await worker.step()
        await worker.check()


async def test_a_disk_that_cannot_be_written_refuses(make_redis: MakeRedis) -> None:
    server = make_redis(save='3600 1', enable_protected_configs='yes')
    async with only(server.url()) as store:
        worker = Worker(store)
        await worker.create()
        before = stored(server)
        server.command('CONFIG', 'SET', 'dir', '/proc')
        server.command('BGSAVE')
        await until(
            lambda: server.command('INFO', 'persistence')['rdb_last_bgsave_status'] == 'err',
            what='the dump fails',
        )
        ending = await store.append(worker.commit())
        assert isinstance(ending.error, StoreWriteError)
        assert 'it cannot save to its disk' in str(ending.error)
        assert stored(server) == before
        await worker.check()


async def test_a_replica_is_read_but_not_written(make_redis: MakeRedis) -> None:
    primary, replica = make_redis(), make_redis()
    async with only(primary.url()) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        port = urlsplit(primary.url()).port
        assert port is not None
        replica.command('REPLICAOF', '127.0.0.1', port)
        await until(
            lambda: replica.command('DBSIZE') == primary.command('DBSIZE'), what='it is copied'
        )
        async with only(replica.url()) as reader:
            await worker.check(store=reader)
            assert len(await reader.runs()) == 1
            for call in (Worker(reader, 'run-2').create(), reader.cancel('run-1')):
                with pytest.raises(StoreWriteError, match='read-only replica'):
                    await call
        await worker.step()


# --- away, and back -------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named() -> None:
    store = only('redis://user:secret@127.0.0.1:1/0')
    with pytest.raises(StoreUnavailableError, match='cannot be reached') as caught:
        await store.open()
    assert 'redis://***@127.0.0.1:1/0' in str(caught.value)
    assert 'secret' not in str(caught.value)


async def test_a_store_waits_for_its_server(make_redis: MakeRedis) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    async with RedisStore(server.url(), retry=60) as store:
        worker = Worker(store)
        await worker.create()
        server.stop()
        commit = asyncio.ensure_future(worker.step())
        read = asyncio.ensure_future(store.run('run-1'))
        await asyncio.sleep(0.1)
        assert not commit.done()
        await asyncio.to_thread(server.start)
        await commit
        await read
        await worker.check()


async def test_nothing_acknowledged_is_lost_by_a_kill(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    async with RedisStore(server.url(), retry=60) as store:
        workers = [Worker(store, f'run-{number}') for number in range(4)]
        for worker in workers:
            await worker.create(state={'text': 'x' * 500})
        stop = asyncio.Event()

        async def work(worker: Worker) -> None:
            while not stop.is_set():
                await worker.step(state={'text': f'{worker.seq}' * 100})

        working = [asyncio.ensure_future(work(worker)) for worker in workers]
        for _ in range(3):
            seqs = [worker.seq for worker in workers]
            await until(
                lambda seqs=seqs: all(w.seq > s + 5 for w, s in zip(workers, seqs, strict=True)),
                what='they go on',
            )
            server.kill()
            await asyncio.to_thread(server.start)
        stop.set()
        await asyncio.gather(*working)
        for worker in workers:
            await worker.check()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    server, url = await listening(silent)
    async with server:
        with pytest.raises(StoreUnavailableError, match='cannot be reached') as caught:
            await only(url, timeout=0.2).open()
        assert 'secret' not in str(caught.value)

        # And opening may be cancelled half-way.
        connected.clear()
        opening = asyncio.ensure_future(open_store(url).open())
        await connected.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_what_is_not_redis_is_an_error() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        await writer.drain()
        writer.close()

    server, url = await listening(http)
    async with server:
        with pytest.raises(StoreError, match='Redis at') as caught:
            await only(url).open()
        assert 'secret' not in str(caught.value)


async def test_a_unix_socket_will_do(make_redis: MakeRedis) -> None:
    folder = Path(tempfile.mkdtemp(prefix='graphkeep-'))
    try:
        folder.chmod(0o777)
        make_redis(unixsocket=folder / 'redis.sock', unixsocketperm=777)
        async with only(f'unix://{folder}/redis.sock?db=2') as store:
            worker = Worker(store)
            await worker.create()
            await worker.step()
            await worker.check()
    finally:
        shutil.rmtree(folder)


# --- the cut wire ---------------------------------------------------------------------------------


class Cutter:
    """A proxy that can cut its connections when a reply is on its way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cuts = 0
        """How many of the next replies get lost, together with their connection."""
        self.lost = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection('127.0.0.1', self._port)

        async def forward() -> None:
            while data := await reader.read(65_536):
                here.write(data)
                await here.drain()

        async def back() -> None:
            while data := await there.read(65_536):
                if self.cuts:
                    self.cuts -= 1
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

        ways = [asyncio.ensure_future(forward()), asyncio.ensure_future(back())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        for end in (here, writer):
            end.close()


@asynccontextmanager
async def cut(url: str) -> AsyncIterator[tuple[Cutter, str]]:
    parts = urlsplit(url)
    assert parts.port is not None
    cutter = Cutter(parts.port)
    server = await asyncio.start_server(cutter.handle, '127.0.0.1', 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield cutter, url.replace(f':{parts.port}', f':{port}')


async def test_a_write_whose_reply_was_lost_is_not_written_twice(redis_url: str) -> None:
    async with cut(redis_url) as (cutter, url), only(url, retry=30) as store:
        worker = Worker(store)

        async def lost(call: Callable[[], Any]) -> Any:
            before = cutter.lost
            cutter.cuts = 1
            result = await call()
            assert cutter.lost == before + 1
            return result

        created = await lost(lambda: worker.create(claimed=False))
        claim = (await lost(lambda: store.claim('run-1'))).claim
        assert claim.epoch == created.epoch + 1
        for _ in range(5):
            await lost(lambda: worker.step(claim=claim))
        await lost(lambda: store.release(claim))
        await worker.check()
        assert (await lost(lambda: store.cancel('run-1'))).epoch == created.epoch + 2
        await lost(lambda: store.delete('run-1'))
        assert await store.runs() == []


async def test_a_batch_whose_replies_were_lost_is_not_written_twice(redis_url: str) -> None:
    async with cut(redis_url) as (cutter, url), only(url, retry=30) as store:
        workers = [Worker(store, f'run-{number}') for number in range(50)]
        await asyncio.gather(*(worker.create() for worker in workers))
        for cuts in (1, 2, 3):
            cutter.cuts = cuts
            await asyncio.gather(*(worker.step() for worker in workers))
        assert cutter.lost == 6
        for worker in workers:
            await worker.check()


async def test_a_commit_that_failed_late_is_still_there(redis_url: str) -> None:
    # The store gives up; whether it was written is not known, and a reader sees it.
    async with cut(redis_url) as (cutter, url), only(url) as store, only(redis_url) as other:
        worker = Worker(store)
        await worker.create()
        commit: Commit = worker.commit()
        cutter.cuts = 1
        ending = await store.append(commit)
        assert isinstance(ending.error, StoreUnavailableError)
        worker.written(commit)
        await worker.check(store=other)


# --- what errors mean -----------------------------------------------------------------------------


ERRORS: list[tuple[BaseException, type[StoreError], str]] = [
    (raised.BusyLoadingError('Redis is loading'), StoreUnavailableError, 'loading'),
    (raised.ClusterDownError('The cluster is down'), StoreUnavailableError, 'down'),
    (raised.MasterDownError('Link with MASTER is down'), StoreUnavailableError, 'MASTER'),
    (raised.TryAgainError('Multiple keys request'), StoreUnavailableError, 'Multiple'),
    (raised.SlotNotCoveredError('Slot "1"'), StoreUnavailableError, 'Slot'),
    (raised.ClusterError('TTL exhausted.'), StoreUnavailableError, 'TTL'),
    (raised.MaxConnectionsError('Too many connections'), StoreUnavailableError, 'many'),
    (raised.TimeoutError('Timeout reading'), StoreUnavailableError, 'Timeout'),
    (TimeoutError(), StoreUnavailableError, 'TimeoutError'),
    (ConnectionResetError(104, 'reset by peer'), StoreUnavailableError, 'reset by peer'),
    (raised.ResponseError('BUSY Redis is busy'), StoreUnavailableError, 'busy'),
    (raised.ResponseError('MISCONF Redis is configured'), StoreWriteError, 'its disk'),
    (raised.ResponseError('NOREPLICAS Not enough good'), StoreWriteError, 'min-replicas'),
    (raised.ReadOnlyError("You can't write"), StoreWriteError, 'Connect to the primary'),
    (
        raised.ResponseError(
            'Error running script (call to f_1): @user_script:5: -OOM command not allowed'
        ),
        StoreWriteError,
        'its memory is full',
    ),
    (
        raised.ResponseError("@user_script:1: The user executing the script can't run this"),
        StoreWriteError,
        'may not do this',
    ),
    (raised.AuthenticationError('invalid username-password'), StoreError, 'refused the login'),
    (raised.MovedError('1234 10.0.0.1:7000'), StoreError, 'is part of a cluster'),
    (
        raised.RedisClusterException('Cluster mode is not enabled on this node'),
        StoreError,
        'not enabled',
    ),
    (raised.ResponseError('unknown command EVALSHA'), StoreError, 'unknown command'),
]


@pytest.mark.parametrize(('error', 'kind', 'text'), ERRORS, ids=lambda v: str(v)[:30])
def test_an_error_means(error: BaseException, kind: type[StoreError], text: str) -> None:
    found = meaning(error, where='redis://db', writes=True)
    assert type(found) is kind
    assert text in str(found)
    assert 'redis://db' in str(found)
    assert found.__cause__ is error
