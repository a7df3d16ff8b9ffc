"""The contract suite over every store that graphkeep has, and its hostile modes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from graphkeep.store import Store
from graphkeep.stores.memory import MemoryStore
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing import CommitContract, StoreContract
from tests.servers import PostgresServer, RedisCluster

_numbers = count()


class OneByOne:
    """A store that writes one commit at a time."""

    max_batch_commits = 1


class Hostile:
    """The lease has always passed, every snapshot is full, and every step claims the run anew."""

    ttl = 0.0
    always_full = True
    reclaims = True


# --- memory ---------------------------------------------------------------------------------------


class OneByOneMemoryStore(OneByOne, MemoryStore):
    pass


class InMemory(CommitContract):
    outlives_process = False
    kind = MemoryStore

    @pytest.fixture(autouse=True)
    def keeper(self, request: pytest.FixtureRequest) -> Iterator[None]:
        # Stores of one name share their runs for as long as one of them exists.
        self.name = request.node.nodeid
        kept = MemoryStore(self.name)
        yield
        del kept

    def make_store(self, **options: Any) -> Store:
        return self.kind(self.name, **options)


class TestMemory(InMemory, StoreContract):
    pass


class TestMemoryWithPassedLeases(InMemory):
    ttl = 0.0


class TestMemoryWithFullSnapshots(InMemory):
    always_full = True


class TestMemoryWithClaimsAtEveryStep(InMemory):
    reclaims = True


class TestMemoryOneByOne(InMemory):
    kind = OneByOneMemoryStore


# --- SQLite ---------------------------------------------------------------------------------------


class OneByOneSQLiteStore(OneByOne, SQLiteStore):
    pass


class InSQLite(CommitContract):
    kind = SQLiteStore

    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / 'runs.db'

    def make_store(self, **options: Any) -> Store:
        return self.kind(self.path, **options)


class TestSQLite(InSQLite, StoreContract):
    pass


class TestSQLiteInHostileMode(Hostile, InSQLite):
    kind = OneByOneSQLiteStore

    def make_store(self, **options: Any) -> Store:
        return super().make_store(synchronous='NORMAL', **options)


# --- Postgres -------------------------------------------------------------------------------------


class OneByOnePostgresStore(OneByOne, PostgresStore):
    pass


@pytest.fixture(scope='module')
def quick_postgres_url(postgres_url: str, postgres_server: PostgresServer) -> str:
    """A database that does not wait for the disk: what is committed is seen all the same."""
    name = postgres_url.rpartition('/')[2]
    postgres_server.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    return postgres_url


TABLES = ('snapshots', 'requests', 'runs', 'conversations', 'entries', 'blobs')


@pytest.mark.postgres
class InPostgres(CommitContract):
    kind = PostgresStore

    @pytest.fixture(autouse=True)
    async def tables(self, quick_postgres_url: str, request: pytest.FixtureRequest) -> None:
        self.url = quick_postgres_url
        self.prefix = 'graphkeep'
        if 'open' in request.node.name:
            # What is about opening starts without tables.
            self.prefix = f'test_{next(_numbers)}'
            return
        connection = await asyncpg.connect(self.url)
        try:
            if await connection.fetchval("SELECT to_regclass('graphkeep_runs')"):
                for table in TABLES:
                    await connection.execute(f'DELETE FROM graphkeep_{table}')
        finally:
            await connection.close()

    def make_store(self, **options: Any) -> Store:
        return self.kind(self.url, table_prefix=self.prefix, **options)


class TestPostgres(InPostgres, StoreContract):
    pass


class TestPostgresInHostileMode(Hostile, InPostgres):
    kind = OneByOnePostgresStore


# --- Redis ----------------------------------------------------------------------------------------


class OneByOneRedisStore(OneByOne, RedisStore):
    pass


@pytest.mark.redis
class InRedis(CommitContract):
    kind = RedisStore

    @pytest.fixture(autouse=True)
    def keys(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, **options: Any) -> Store:
        return self.kind(self.url, **options)


class TestRedis(InRedis, StoreContract):
    pass


class TestRedisInHostileMode(Hostile, InRedis):
    kind = OneByOneRedisStore


@pytest.mark.redis
class TestRedisCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def cluster(self, redis_cluster: RedisCluster) -> None:
        self.url = redis_cluster.url.replace('redis://', 'redis+cluster://')

    def make_store(self, **options: Any) -> Store:
        return RedisStore(self.url, **options)
