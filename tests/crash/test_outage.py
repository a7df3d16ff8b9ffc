"""The database goes away in the middle of a run: it is waited for, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import graphkeep
from graphkeep import StoreUnavailableError
from tests.crash.children import Nursery
from tests.crash.logbook import starts
from tests.crash.test_zombies import check_whole, finish
from tests.crash.trip import FINAL, OUTPUT, Outside, Pack, Trip, trip
from tests.crash.wandering import check, finish_all, grows, read
from tests.servers import PostgresServer, RedisServer

END = {'output': OUTPUT, 'state': asdict(FINAL)}


class Database:
    """A database of the test's own, that can go down and come back."""

    def __init__(self, url: str, down: Callable[[], object], up: Callable[[], object]) -> None:
        self.url = url
        self.down = down
        self.up = up


def _server(server: PostgresServer | RedisServer, url: str) -> Database:
    if not server.restartable:
        pytest.skip('This server is not ours to stop.')
    return Database(url, server.kill, server.start)


@pytest.fixture
def postgres_database(make_postgres: Callable[..., PostgresServer]) -> Database:
    """It dies by SIGKILL, with the modes that keep what it has acknowledged."""
    server = make_postgres()
    assert (server.setting('fsync'), server.setting('synchronous_commit')) == ('on', 'on')
    return _server(server, server.create_database())


@pytest.fixture
def redis_database(make_redis: Callable[..., RedisServer]) -> Database:
    """It dies by SIGKILL, with the modes that keep what it has acknowledged."""
    server = make_redis(appendonly='yes', appendfsync='always')
    assert (server.setting('appendonly'), server.setting('appendfsync')) == ('yes', 'always')
    return _server(server, server.url())


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Database]:
    """There is no server to be down. Somebody else keeps the file locked instead."""
    other = sqlite3.connect(sqlite_url.removeprefix('sqlite:///'), isolation_level=None)
    yield Database(
        sqlite_url, lambda: other.execute('BEGIN EXCLUSIVE'), lambda: other.execute('ROLLBACK')
    )
    other.close()


SERVERS = (
    pytest.param('postgres', marks=pytest.mark.postgres),
    pytest.param('redis', marks=pytest.mark.redis),
)


@pytest.fixture(params=['sqlite', *SERVERS])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(f'{request.param}_database')
    return found


async def test_back_in_time(
    nursery: Nursery, database: Database, run_id: str, tmp_path: Path
) -> None:
    """A commit waits for the database, and the run goes on as if nothing had been."""
    log = tmp_path / 'log'
    where: dict[str, Any] = {'url': database.url, 'run_id': run_id, 'log': str(log)}
    async with nursery.child('travel', how='run', halts=['Climb'], retry=60, **where) as worker:
        assert await worker.hears('halt') == 'Climb'
        database.down()
        worker.tell()
        # Longer than SQLite itself waits for a lock.
        await asyncio.sleep(1.5)
        database.up()
        assert await worker.result() == END
    assert len(starts(log)) == 6
    async with graphkeep.open_store(database.url) as store:
        await check_whole(store, run_id)


async def test_not_back_in_time(
    nursery: Nursery, database: Database, run_id: str, tmp_path: Path
) -> None:
    log = tmp_path / 'log'
    where: dict[str, Any] = {'url': database.url, 'run_id': run_id, 'log': str(log)}
    async with nursery.child('travel', how='run', halts=['Climb'], retry=0.5, **where) as worker:
        assert await worker.hears('halt') == 'Climb'
        database.down()
        worker.tell()
        assert await worker.error() == 'StoreUnavailableError'
    database.up()
    assert await nursery.result('travel', **where) == END
    # The commit of `Climb` was not written, so that it ran again, and nothing else did.
    assert starts(log) == ['Pack', 'Drive', 'Sail', 'Climb', 'Climb', 'Camp', 'Return']
    async with graphkeep.open_store(database.url) as store:
        await check_whole(store, run_id)


async def test_not_back_in_time_and_gone_on_with_in_the_same_process(
    database: Database, run_id: str
) -> None:
    async def middle(_: str, node: str) -> None:
        if node == 'Climb':
            database.down()

    async with graphkeep.open_store(database.url, retry=0.2) as store:
        with pytest.raises(StoreUnavailableError):
            await trip.run(
                Pack(),
                state=Trip(),
                deps=Outside(middle=middle),
                persistence=store.persistence(run_id),
            )
        database.up()
        await finish(store, run_id)
        await check_whole(store, run_id)


async def test_away_while_a_node_runs(nursery: Nursery, database: Database, run_id: str) -> None:
    """Renewals fail meanwhile. The claim is the worker's as long as nobody else takes it."""
    where: dict[str, Any] = {'url': database.url, 'run_id': run_id, 'lease': 30, 'heartbeat': 0.2}
    async with nursery.child('travel', how='run', halts=['Climb'], retry=60, **where) as worker:
        assert await worker.hears('halt') == 'Climb'
        assert await worker.hears('renewed') == [True]
        database.down()
        await asyncio.sleep(0.6)
        database.up()
        async with graphkeep.open_store(database.url, retry=60) as store:
            before = (await store.run(run_id)).lease_until
            while (await store.run(run_id)).lease_until == before:
                await asyncio.sleep(0.02)
            worker.tell()
            assert await worker.result() == END
            await check_whole(store, run_id)


@pytest.mark.slow
@pytest.mark.parametrize('database', SERVERS, indirect=True)
async def test_a_server_that_is_killed_again_and_again_loses_nothing_acknowledged(
    nursery: Nursery, database: Database, tmp_path: Path
) -> None:
    graph, log = uuid4().hex, tmp_path / 'log'
    arguments: dict[str, Any] = {'url': database.url, 'graph': graph, 'log': str(log)}
    async with nursery.child('wander', width=4, seed='0', retry=60, **arguments) as worker:
        assert await worker.hears('open')
        for _ in range(5):
            await grows(log, 10_000)
            database.down()
            database.up()
        await grows(log, 10_000)
        worker.signal(signal.SIGKILL)
        assert await worker.status() == -signal.SIGKILL, worker.raised
    await finish_all(nursery, **arguments)
    told = read(log)
    await check(told, database.url)
    # A node runs again when the worker is killed, not when the server is.
    assert told.again <= 4
