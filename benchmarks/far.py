"""A server that is further away: a process that passes bytes on, each a while after it came.

Run as `python benchmarks/far.py HOST PORT MILLISECONDS`; it prints the port it listens on, and ends
when its standard input is closed. In a process of its own it takes no time from what is measured.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

__all__ = ('further_away',)


@contextmanager
def further_away(url: str, *, ms: float) -> Generator[str]:
    """The URL of the same server, at the end of a way that takes `ms` milliseconds each time."""
    target = urlsplit(url)
    command = [sys.executable, __file__, str(target.hostname), str(target.port), str(ms)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            userinfo, at, _ = target.netloc.rpartition('@')
            yield urlunsplit(target._replace(netloc=f'{userinfo}{at}127.0.0.1:{port}'))
        finally:
            process.stdin.close()


class _End(asyncio.Protocol):
    """One end of a connection; what comes goes on to the other end, late."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay, self._pass_on, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._loop.call_later(self._delay, self._close_other)

    def joined(self, other: _End) -> None:
        """The other end is there."""
        self.other = other
        for data in self._early:
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def _close_other(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _serve(host: str, port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    dialling: set[asyncio.Task[None]] = set()

    async def dial(here: _End) -> None:
        _, there = await loop.create_connection(lambda: _End(delay), host, port)
        there.joined(here)
        here.joined(there)

    def accepted() -> _End:
        here = _End(delay)
        task = loop.create_task(dial(here))
        dialling.add(task)
        task.add_done_callback(dialling.discard)
        return here

    server = await loop.create_server(accepted, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == '__main__':
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1_000))
