"""A TCP proxy that cuts, holds or swallows what goes over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

__all__ = ('Fault', 'Proxy')

Fault = Literal['request', 'reply', 'late']
"""What happens to a message.

- `request`: it never arrives; the connection is cut.
- `reply`: it is forwarded, and the connection is cut when the server answers.
- `late`: it arrives only after `Proxy.deliver()`; its sender hears nothing.
"""


class _Pair:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.from_client, self.to_client = client
        self.from_server, self.to_server = server
        self.fault: Fault | None = None
        self.held = b''
        self.answered = asyncio.Event()
        self.recent = b''

    def cut(self) -> None:
        for writer in (self.to_client, self.to_server):
            writer.transport.abort()


class Proxy:
    """Stands between a store and its server.

    ```python
    async with Proxy(url) as proxy:
        store = open_store(proxy.url)
        proxy.fault('reply', b'run-1')  # the next message that holds `run-1`
    ```
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: tuple[Fault, bytes] | None = None
        self._late: list[_Pair] = []
        self.chooses: Callable[[bytes], Fault | None] = lambda data: None
        """Asked for every message what shall happen to it."""
        self.refuses = False
        """Whether new connections are cut at once."""
        self.faults: list[Fault] = []
        """What has happened so far."""

    @property
    def url(self) -> str:
        """The URL of the server, by way of the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        userinfo, at, _ = self._target.netloc.rpartition('@')
        return urlunsplit(self._target._replace(netloc=f'{userinfo}{at}127.0.0.1:{port}'))

    def fault(self, fault: Fault, holding: bytes) -> None:
        """Let something happen to the next message that holds these bytes."""
        self._fault = fault, holding

    async def deliver(self) -> None:
        """Deliver the messages that were late, and wait until the server has answered them."""
        late, self._late = self._late, []
        for pair in late:
            pair.to_server.write(pair.held)
            await pair.to_server.drain()
            await pair.answered.wait()

    def cut_all(self) -> None:
        """Cut every connection that there is."""
        for pair in tuple(self._pairs):
            pair.cut()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, '127.0.0.1', 0)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        host, port = self._target.hostname, self._target.port
        pair = _Pair((reader, writer), await asyncio.open_connection(host, port))
        self._pairs.add(pair)
        forward = asyncio.create_task(self._forward(pair))
        back = asyncio.create_task(self._back(pair))
        self._tasks |= {forward, back}
        await asyncio.wait((forward, back))
        self._tasks -= {forward, back}
        self._pairs.discard(pair)
        pair.cut()

    async def _forward(self, pair: _Pair) -> None:
        try:
            while data := await pair.from_client.read(65_536):
                if pair.fault == 'late':
                    # Nothing after the message that is late may overtake it.
                    pair.held += data
                    continue
                fault = self._chosen(pair, data)
                if fault is not None:
                    self.faults.append(fault)
                if fault == 'request':
                    pair.cut()
                    return
                pair.fault = fault
                if fault == 'late':
                    pair.held = data
                    self._late.append(pair)
                    continue
                pair.to_server.write(data)
                await pair.to_server.drain()
        except ConnectionError:
            pass
        if pair.fault is None:
            pair.to_server.close()

    def _chosen(self, pair: _Pair, data: bytes) -> Fault | None:
        # A message may come in pieces, and what it holds lie on a seam.
        pair.recent = pair.recent[-200:] + data
        if self._fault is not None and self._fault[1] in pair.recent:
            fault, self._fault = self._fault[0], None
            return fault
        return self.chooses(data)

    async def _back(self, pair: _Pair) -> None:
        try:
            while data := await pair.from_server.read(65_536):
                if pair.fault is not None:
                    break
                pair.to_client.write(data)
                await pair.to_client.drain()
        except ConnectionError:
            pass
        pair.answered.set()
        pair.cut()
