"""What all topics share: how much is measured, and the databases."""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from tests.servers import NoServerError, PostgresServer, RedisServer, run_postgres, run_redis

__all__ = ('CLASSIC', 'NAMES', 'Bench')

NAMES = {'memory': 'memory', 'sqlite': 'SQLite', 'postgres': 'Postgres', 'redis': 'Redis'}

CLASSIC = importlib.util.find_spec('pydantic_graph.persistence') is not None
"""Whether this is pydantic-graph 1.x."""


class Bench:
    """One run of the benchmarks. Servers start when they are first asked for."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.notes: list[str] = []
        """What was left out, and why."""
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._redis_databases = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stack.close()

    def n(self, full: int, quick: int) -> int:
        """How many: of a whole run, or of one that only shows that all of it works."""
        return quick if self.quick else full

    def note(self, text: str) -> None:
        """Say once that something was left out."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def folder(self) -> Path:
        """A folder for files, on the disk that temporary files are on."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix='graphkeep-')))

    @cached_property
    def postgres(self) -> PostgresServer | None:
        """A server as it comes, but for autovacuum: its transactions would be counted as ours."""
        settings = {'autovacuum_naptime': '1d'}
        try:
            return self._stack.enter_context(run_postgres(settings=settings, own=True))
        except NoServerError as e:
            self.note(str(e))
            return None

    @cached_property
    def redis(self) -> RedisServer | None:
        """A server that appends to its file and syncs it every second."""
        try:
            return self._stack.enter_context(run_redis(appendonly='yes', appendfsync='everysec'))
        except NoServerError as e:
            self.note(str(e))
            return None

    def number(self) -> int:
        """A number that no one else got."""
        return next(self._numbers)

    def stores(self, *names: str) -> dict[str, str]:
        """The URL of an empty database of each kind that there is."""
        return {name: url for name in names or NAMES if (url := self.url(name)) is not None}

    def url(self, name: str) -> str | None:
        """The URL of an empty database."""
        if name == 'memory':
            return 'memory://'
        if name == 'sqlite':
            return f'sqlite:///{self.file()}'
        if name == 'postgres':
            return None if self.postgres is None else self.postgres.create_database()
        if self.redis is None:
            return None
        return self.redis.url(next(self._redis_databases))

    def file(self, end: str = 'db') -> Path:
        """The name of a new file."""
        return self.folder / f'{self.number()}.{end}'

    def sync_time(self) -> float:
        """Seconds that the disk takes to make a small write durable."""
        taken: list[float] = []
        with self.file('sync').open('wb', buffering=0) as file:
            for _ in range(30):
                started = perf_counter()
                file.write(b'x' * 4096)
                os.fdatasync(file.fileno())
                taken.append(perf_counter() - started)
        return sorted(taken)[15]
