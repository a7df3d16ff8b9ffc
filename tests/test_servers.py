"""The servers that the other tests stand on: they start, answer, come back, and leave nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import servers
from tests.servers import PostgresServer, RedisCluster, RedisServer, directories, processes
from tests.servers import postgres as postgres_servers

ROOT = Path(__file__).parents[1]


def skip_without_own_servers() -> None:
    if os.environ.get('GRAPHKEEP_TEST_SERVERS') == 'docker':
        pytest.skip('Servers in Docker are not ours to start and stop.')


def left_by(pid: int) -> list[Path]:
    folders = {Path(tempfile.gettempdir()), Path('/tmp')}
    return [found for base in folders for found in base.glob(f'graphkeep-servers-{pid}-*')]


def wait_until(condition: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, 'it did not happen'
        time.sleep(0.01)


@pytest.mark.postgres
def test_postgres_gives_a_fresh_database_by_url(postgres_url: str) -> None:
    server = PostgresServer(postgres_url)

    assert server.version >= 14
    assert server.setting('fsync') == 'on'
    assert server.fetch('SELECT current_database()') == [(postgres_url.rpartition('/')[2],)]
    assert server.fetch('SELECT count(*) FROM pg_class WHERE relnamespace > 16000') == [(0,)]


@pytest.mark.postgres
def test_postgres_keeps_what_was_committed_when_killed(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    server = make_postgres(max_connections=20)
    url = server.url()
    server.execute('CREATE TABLE kept AS SELECT 1 AS one')

    server.kill()
    with pytest.raises(OSError, match=r'.'):
        server.fetch('SELECT 1')
    server.start()

    assert server.url() == url
    assert server.setting('max_connections') == '20'
    assert server.fetch('SELECT one FROM kept') == [(1,)]
    server.stop()
    server.start()
    assert server.fetch('SELECT one FROM kept') == [(1,)]


def test_the_servers_come_from_the_source_that_was_asked_for(
    postgres_server: PostgresServer, redis_server: RedisServer
) -> None:
    asked = os.environ.get('GRAPHKEEP_TEST_SERVERS')

    if asked:
        assert (postgres_server.source, redis_server.source) == (asked, asked)
    assert postgres_server.source in ('url', 'wheels', 'local', 'docker')


@pytest.mark.redis
def test_redis_gives_an_empty_database_by_url(redis_server: RedisServer, redis_url: str) -> None:
    db = int(redis_url.rpartition('/')[2])

    assert redis_server.command('DBSIZE', db=db) == 0
    redis_server.command('SET', 'key', 'value', db=db)
    assert redis_server.command('GET', 'key', db=db) == b'value'
    assert redis_server.command('GET', 'key', db=0) is None


@pytest.mark.redis
def test_redis_keeps_what_was_acknowledged_when_killed(
    make_redis: Callable[..., RedisServer],
) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    server.command('SET', 'key', 'value')

    server.kill()
    server.start()

    assert server.setting('appendfsync') == 'always'
    assert server.command('GET', 'key') == b'value'


@pytest.mark.redis
async def test_the_cluster_serves_every_slot(redis_cluster: RedisCluster) -> None:
    import redis.asyncio

    async with redis.asyncio.RedisCluster.from_url(redis_cluster.url) as client:
        for number in range(50):
            await client.set(f'key-{number}', number)
    sizes = [node.command('DBSIZE') for node in redis_cluster.nodes]

    assert sum(sizes) == 50
    assert all(sizes)


@pytest.mark.postgres
@pytest.mark.redis
def test_servers_end_with_their_context() -> None:
    skip_without_own_servers()
    before = set(left_by(os.getpid()))

    with servers.run_postgres(own=True) as postgres, servers.run_redis(own=True) as redis_server:
        urls = [postgres.url(), redis_server.url()]
        pids = servers.server_pids()
        assert len(set(left_by(os.getpid())) - before) >= 2

    assert set(left_by(os.getpid())) == before
    assert not any(processes.alive(pid) for pid in pids - servers.server_pids())
    for url in urls:
        port = int(url.rpartition(':')[2].partition('/')[0])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.1', port), timeout=5)


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.skipif(sys.platform != 'linux', reason='PR_SET_PDEATHSIG is Linux')
def test_servers_die_with_a_killed_process_and_the_next_one_sweeps() -> None:
    skip_without_own_servers()
    code = """
import time
from tests.servers import run_postgres, run_redis, server_pids
with run_postgres(own=True) as postgres, run_redis(own=True):
    print(*server_pids(), flush=True)
    time.sleep(600)
"""
    child = subprocess.Popen(
        [sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 2, 'the servers did not start'
        child.send_signal(signal.SIGKILL)
        child.wait()
    wait_until(lambda: not any(processes.alive(pid) for pid in pids))
    assert left_by(child.pid)

    directories.sweep.cache_clear()
    with servers.run_redis(own=True):
        assert not left_by(child.pid)


def test_a_missing_source_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('GRAPHKEEP_TEST_SERVERS', 'local')
    monkeypatch.setattr(postgres_servers, '_local', lambda: None)

    with (
        pytest.raises(servers.NoServerError, match='no initdb and postgres'),
        servers.run_postgres(),
    ):
        pass


def test_an_unknown_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('GRAPHKEEP_TEST_SERVERS', 'cloud')

    with pytest.raises(ValueError, match='wheels, local or docker'), servers.run_redis():
        pass


@pytest.mark.parametrize('kind', ['postgres', 'redis'])
def test_an_unreachable_given_server_is_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('GRAPHKEEP_TEST_SERVERS', raising=False)
    scheme = 'postgresql' if kind == 'postgres' else kind
    monkeypatch.setenv(f'GRAPHKEEP_TEST_{kind.upper()}_URL', f'{scheme}://127.0.0.1:1/0')
    run = servers.run_postgres if kind == 'postgres' else servers.run_redis

    with pytest.raises(Exception, match=r'(?i)refused|connect'), run():
        pass


def test_the_leak_check_sees_what_a_test_leaves(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest = (ROOT / 'tests/conftest.py').read_text().replace('_GRACE = 2.0', '_GRACE = 0.2')
    pytester.makeconftest(conftest)
    pytester.makeini('[pytest]\nasyncio_mode = auto\nmarkers = leaks')
    pytester.makepyfile("""
        import asyncio, socket, sqlite3, subprocess, sys, threading
        import pytest

        kept = []

        async def test_clean():
            await asyncio.to_thread(int)
            reader, writer = None, None
            server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
            server.close()
            await server.wait_closed()

        async def test_task():
            kept.append(asyncio.ensure_future(asyncio.sleep(60)))

        def test_thread():
            stop = threading.Event()
            kept.append(stop)
            threading.Thread(target=stop.wait, args=(5,), daemon=True).start()

        def test_socket():
            kept.append(socket.socket())

        def test_sqlite(tmp_path):
            connection = sqlite3.connect(tmp_path / 'runs.db')
            connection.execute('create table t (a)')
            kept.append(connection)

        def test_child():
            kept.append(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE))

        @pytest.mark.leaks('files')
        def test_allowed():
            kept.append(socket.socket())

        def test_end():
            for thing in kept:
                if isinstance(thing, threading.Event):
                    thing.set()
                elif isinstance(thing, subprocess.Popen):
                    thing.communicate()
                elif hasattr(thing, 'close'):
                    thing.close()
    """)

    monkeypatch.setenv('PYTHONPATH', str(ROOT))

    result = pytester.runpytest_subprocess('-p', 'no:cacheprovider', '-W', 'ignore')

    result.assert_outcomes(passed=8, errors=5)
    for name in ('task', 'thread', 'socket', 'sqlite', 'child'):
        result.stdout.fnmatch_lines([f'ERROR *::test_{name} *'])
