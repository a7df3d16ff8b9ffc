"""The contract suite over every store that graphkeep has, and its hostile modes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from graphkeep.store import Store
from graphkeep.stores.memory import MemoryStore
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing import CommitContract, StoreContract
from tests.servers import RedisCluster

# --- memory ---------------------------------------------------------------------------------------


class OneByOneMemoryStore(MemoryStore):
    max_batch_commits = 1


class InMemory(CommitContract):
    outlives_process = False

    @pytest.fixture(autouse=True)
    def keeper(self, request: pytest.FixtureRequest) -> Iterator[None]:
        # Stores of one name share their runs for as long as one of them exists.
        self.name = request.node.nodeid
        kept = MemoryStore(self.name)
        yield
        del kept

    def make_store(self, **options: Any) -> Store:
        return MemoryStore(self.name, **options)


class TestMemory(InMemory, StoreContract):
    pass


class TestMemoryWithPassedLeases(InMemory):
    ttl = 0.0


class TestMemoryWithFullSnapshots(InMemory):
    always_full = True


class TestMemoryWithClaimsAtEveryStep(InMemory):
    reclaims = True


class TestMemoryOneByOne(InMemory):
    def make_store(self, **options: Any) -> Store:
        return OneByOneMemoryStore(self.name, **options)


# --- SQLite ---------------------------------------------------------------------------------------


class OneByOneSQLiteStore(SQLiteStore):
    max_batch_commits = 1


class InSQLite(CommitContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / 'runs.db'

    def make_store(self, **options: Any) -> Store:
        return SQLiteStore(self.path, **options)


class TestSQLite(InSQLite, StoreContract):
    pass


class TestSQLiteWithFullSnapshots(InSQLite):
    always_full = True
    ttl = 0.0


class TestSQLiteOneByOne(InSQLite):
    reclaims = True

    def make_store(self, **options: Any) -> Store:
        return OneByOneSQLiteStore(self.path, synchronous='NORMAL', **options)


# --- Postgres -------------------------------------------------------------------------------------


class OneByOnePostgresStore(PostgresStore):
    max_batch_commits = 1


_numbers = count()


@pytest.mark.postgres
class InPostgres(CommitContract):
    @pytest.fixture(autouse=True)
    def tables(self, postgres_url: str) -> None:
        # Tables of its own for each test are cheaper than a database.
        self.url = postgres_url
        self.prefix = f'test_{next(_numbers)}'

    def make_store(self, **options: Any) -> Store:
        return PostgresStore(self.url, table_prefix=self.prefix, **options)


class TestPostgres(InPostgres, StoreContract):
    pass


class TestPostgresWithFullSnapshots(InPostgres):
    always_full = True
    ttl = 0.0


class TestPostgresOneByOne(InPostgres):
    reclaims = True

    def make_store(self, **options: Any) -> Store:
        return OneByOnePostgresStore(self.url, table_prefix=self.prefix, **options)


# --- Redis ----------------------------------------------------------------------------------------


class OneByOneRedisStore(RedisStore):
    max_batch_commits = 1


@pytest.mark.redis
class InRedis(CommitContract):
    @pytest.fixture(autouse=True)
    def keys(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, **options: Any) -> Store:
        return RedisStore(self.url, **options)


class TestRedis(InRedis, StoreContract):
    pass


class TestRedisWithFullSnapshots(InRedis):
    always_full = True
    ttl = 0.0


class TestRedisOneByOne(InRedis):
    reclaims = True

    def make_store(self, **options: Any) -> Store:
        return OneByOneRedisStore(self.url, **options)


@pytest.mark.redis
class TestRedisCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def cluster(self, redis_cluster: RedisCluster) -> None:
        self.url = redis_cluster.url.replace('redis://', 'redis+cluster://')

    def make_store(self, **options: Any) -> Store:
        return RedisStore(self.url, **options)
