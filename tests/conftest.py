"""Fixtures for all tests: real servers, fresh databases, and a check that nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests import servers
from tests.servers import (
    NoServerError,
    PostgresServer,
    RedisCluster,
    RedisServer,
    run_postgres,
    run_redis,
    run_redis_cluster,
)

T = TypeVar('T')


@contextlib.contextmanager
def _or_skip(server: contextlib.AbstractContextManager[T]) -> Iterator[T]:
    """Without a server: skipped at home, failed in CI, where a missing server must not pass."""
    with contextlib.ExitStack() as stack:
        try:
            value = stack.enter_context(server)
        except NoServerError as error:
            if os.environ.get('CI'):
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        yield value


# --- servers: one a session (and one a worker of pytest-xdist) ------------------------------------


@pytest.fixture(scope='session')
def postgres_server() -> Iterator[PostgresServer]:
    """The Postgres server of the session. Do not stop it: `make_postgres` gives your own."""
    with _or_skip(run_postgres()) as server:
        _used.add(f'PostgreSQL {server.version} ({server.source})')
        yield server


@pytest.fixture(scope='session')
def redis_server() -> Iterator[RedisServer]:
    """The Redis server of the session. Do not stop it: `make_redis` gives your own."""
    with _or_skip(run_redis()) as server:
        name = 'Valkey' if 'valkey_version' in server.info else 'Redis'
        version = server.info.get('valkey_version', server.info['redis_version'])
        _used.add(f'{name} {version} ({server.source})')
        yield server


@pytest.fixture(scope='session')
def redis_cluster_server() -> Iterator[RedisCluster]:
    """The Redis cluster of the session: three masters."""
    with _or_skip(run_redis_cluster()) as cluster:
        yield cluster


@pytest.fixture
def make_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """`make_postgres(**settings)`: a Postgres server of the test's own, to stop, kill and start."""
    with contextlib.ExitStack() as stack:

        def make(**settings: object) -> PostgresServer:
            return stack.enter_context(_or_skip(run_postgres(settings=settings, own=True)))

        yield make


@pytest.fixture
def make_redis() -> Iterator[Callable[..., RedisServer]]:
    """`make_redis(**config)`: a Redis server of the test's own, to stop, kill and start."""
    with contextlib.ExitStack() as stack:

        def make(**config: object) -> RedisServer:
            return stack.enter_context(_or_skip(run_redis(own=True, **config)))

        yield make


_used: set[str] = set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which servers the tests really had."""
    if _used:
        terminalreporter.write_line(f'servers: {", ".join(sorted(_used))}')


# --- databases -----------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database that the tests of one module share: give each test its own run ids."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def fresh_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database for this test alone (about 0.1 s)."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """An empty numbered database for this test alone."""
    for db in range(1, redis_server.databases):
        if redis_server.command('DBSIZE', db=db) == 0:
            break
    else:
        pytest.fail('Every numbered database of the Redis server has keys in it.')
    yield redis_server.url(db)
    redis_server.command('FLUSHDB', db=db)


@pytest.fixture
def redis_cluster(redis_cluster_server: RedisCluster) -> Iterator[RedisCluster]:
    """The Redis cluster, emptied after the test."""
    yield redis_cluster_server
    redis_cluster_server.flush()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file for this test alone."""
    return f'sqlite:///{tmp_path}/runs.db'


# --- nothing is left open ------------------------------------------------------------------------

_GRACE = 2.0
"""Seconds for what is closing already to be closed."""


def _threads() -> set[object]:
    known = (servers.THREAD_NAME, 'execnet', 'pytest_timeout', 'pydevd')
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(known) and not isinstance(thread, threading._DummyThread)
    }


def _open_files() -> set[object]:
    """Sockets, event loops, pipes and database files that this process has open (Linux)."""
    found: set[object] = set()
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir('/proc/self/fd'):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115 (asked at every test)
                kinds = ('socket:', 'pipe:', 'anon_inode:[eventpoll]')
                if target.startswith(kinds) or '.db' in target or '.sqlite' in target:
                    found.add((entry.name, target))
    return found


def _children() -> set[object]:
    """Child processes (Linux), without the session's servers and multiprocessing's own helpers."""
    found: set[object] = set()
    ours = servers.server_pids()
    for listing in Path('/proc/self/task').glob('*/children'):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                command = Path(f'/proc/{pid}/cmdline').read_bytes().replace(b'\0', b' ').decode()
                helper = 'multiprocessing.resource_tracker' in command
                if int(pid) not in ours and not helper:
                    found.add(f'{pid} {command}'.strip())
    return found


def _allowed(item: pytest.Item) -> set[str]:
    """The kinds that `@pytest.mark.leaks('threads', …)` lets this test leave behind."""
    marker = item.get_closest_marker('leaks')
    return set(marker.args) if marker else set()


@pytest.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    yield
    if 'tasks' in _allowed(request.node):
        return
    deadline = time.monotonic() + _GRACE
    while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        if time.monotonic() > deadline:
            pytest.fail(f'The test left tasks running: {tasks}', pytrace=False)
        await asyncio.sleep(0.005)


def _collect() -> list[str]:
    """Collects garbage and gives what objects complained of when they were dropped."""
    complaints: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda args: complaints.append(repr(args.exc_value))
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
    return complaints


_PROBES: dict[str, Callable[[], set[object]]] = {
    'threads': _threads,
    'files': _open_files,
    'processes': _children,
}
_before = pytest.StashKey[dict[str, set[object]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the servers they ask for, and puts the task check before all other fixtures.

    Set up first, it looks after their teardown.
    """
    for item in items:
        names = ' '.join(getattr(item, 'fixturenames', ()))
        for server in ('postgres', 'redis'):
            if server in names:
                item.add_marker(server)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.fixturenames.insert(0, '_no_task_left')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Notes what is open. A hook, since the event loop is closed after all fixtures are."""
    item.stash[_before] = {
        kind: probe() for kind, probe in _PROBES.items() if kind not in _allowed(item)
    }
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fails a test that leaves a thread, socket, database file or child process behind."""
    result = yield
    before = item.stash[_before]
    deadline = time.monotonic() + _GRACE
    collected = False
    while True:
        left = {kind: _PROBES[kind]() - known for kind, known in before.items()}
        left = {kind: what for kind, what in left.items() if what}
        if not left:
            return result
        if not collected:
            # What only a reference cycle holds is closed by this, but was left open all the same.
            if warnings := _collect():
                pytest.fail(f'The test left to the garbage collector: {warnings}', pytrace=False)
            collected = True
        elif time.monotonic() > deadline:
            pytest.fail(f'The test left open: {left}', pytrace=False)
        else:
            time.sleep(0.01)
