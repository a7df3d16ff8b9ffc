"""Worker processes: started, listened to, and killed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen

__all__ = ('Child', 'started')


@dataclass(kw_only=True)
class Child:
    """One worker process, and what it has said."""

    process: Popen[bytes]
    begun: list[str] = field(default_factory=list[str])
    """What it began to run, in order: 'Research T-1007'. A log outside of the store."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def code(self) -> int:
        """What it has ended with; on POSIX the negative number of the signal that ended it."""
        assert self.process.returncode is not None
        return self.process.returncode

    async def events(self) -> AsyncIterator[tuple[str, str]]:
        """What it says until it has ended: ('begins', 'Research T-1007')."""
        assert self.process.stdout is not None
        while line := await asyncio.to_thread(self.process.stdout.readline):
            event, _, text = line.decode(errors='replace').rstrip().partition(' ')
            if event == 'begins':
                self.begun.append(text)
            yield event, text
        await asyncio.to_thread(self.process.wait)

    def kill(self) -> None:
        """End it at once: SIGKILL, which a process can neither catch nor prepare for."""
        self.process.kill()


@contextmanager
def started(worker: Path, run_id: str, *options: str, store_url: str) -> Iterator[Child]:
    """A worker, which has ended when this is left, in whatever way it is left."""
    with Popen(
        # The demo opens the store as well, and so has warned once.
        [sys.executable, str(worker), run_id, '--quiet', *options],
        stdout=PIPE,
        env={**os.environ, 'STORE': store_url},
        # Ctrl-C is for the demo, which then ends its workers itself.
        start_new_session=True,
    ) as process:
        try:
            yield Child(process=process)
        finally:
            process.kill()
