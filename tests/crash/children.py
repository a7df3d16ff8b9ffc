"""Children of the nursery, as a test sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
"""Seconds that a test waits for a child to say something."""


class Child:
    """One worker. It is killed when its block ends, unless it has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._status: int | None = None
        self.pid = 0
        self.raised = ''
        """The traceback of what its job raised."""

    async def _next(self) -> dict[str, Any]:
        line = await asyncio.wait_for(self._reader.readline(), _PATIENCE)
        assert line, 'the nursery has gone'
        message: dict[str, Any] = json.loads(line)
        if 'status' in message:
            self._status = message['status']
        self.raised = message.get('traceback', self.raised)
        return message

    async def message(self) -> dict[str, Any]:
        """The next thing that the child says, but for its talk of renewals."""
        while 'renewed' in (message := await self._next()):
            pass
        return message

    async def hears(self, key: str) -> Any:
        """What the child says under this key, which has to be the next thing that it says.

        Its talk of renewals does not count, unless one waits for it.
        """
        message = await (self._next() if key == 'renewed' else self.message())
        assert key in message, message.get('traceback') or message
        return message[key]

    def tell(self, text: str = 'go on') -> None:
        """Say something to the child, which waits for it."""
        self._writer.write(text.encode() + b'\n')

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def result(self) -> Any:
        """What its job gives."""
        result = await self.hears('result')
        assert await self.status() == 0
        return result

    async def error(self) -> str:
        """The name of the error that its job raises."""
        error: str = await self.hears('error')
        assert await self.status() == 1
        return error

    async def outcome(self) -> Any:
        """What its job gives, or the name of the error that it raises."""
        message = await self.message()
        await self.status()
        return message['result'] if 'result' in message else message['error']

    async def status(self) -> int:
        """Its exit status, when it has ended; whatever else it says is dropped."""
        while self._status is None:
            await self._next()
        return self._status

    async def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            await self.status()


class Nursery:
    """The process that the children come from."""

    def __init__(self, socket_path: str, pid: int) -> None:
        self._path = socket_path
        self.pid = pid

    @contextlib.asynccontextmanager
    async def child(
        self, job: str, *, fresh: bool = False, **arguments: Any
    ) -> AsyncIterator[Child]:
        """A child that does a job (see `jobs`); `fresh` in an interpreter of its own."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 24)
        child = Child(reader, writer)
        try:
            request = {'job': job, 'with': arguments, 'fresh': fresh}
            writer.write(json.dumps(request).encode() + b'\n')
            child.pid = await child.hears('pid')
            yield child
            await child.kill()
        finally:
            # The nursery kills the child of whoever hangs up.
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def result(self, job: str, **arguments: Any) -> Any:
        """What a job gives that a child does."""
        async with self.child(job, **arguments) as child:
            return await child.result()

    async def status(self, job: str, **arguments: Any) -> int:
        """The exit status of a child that raises nothing."""
        async with self.child(job, **arguments) as child:
            status = await child.status()
            assert not child.raised, child.raised
            return status


@contextlib.contextmanager
def run_nursery() -> Iterator[Nursery]:
    """A nursery; with it end all children that are left."""
    with tempfile.TemporaryDirectory(prefix='graphkeep-nursery-') as folder:
        path, log = f'{folder}/socket', Path(folder, 'stderr')
        with log.open('w') as stderr:
            process = subprocess.Popen(
                [sys.executable, '-m', 'tests.crash.nursery', path],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b'ready\n':
                raise RuntimeError(f'The nursery did not start:\n{log.read_text()}')
            yield Nursery(path, process.pid)
        finally:
            process.communicate(timeout=30)
