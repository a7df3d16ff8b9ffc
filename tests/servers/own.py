"""A server that we run ourselves, whatever it serves."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.servers.processes import end, free_port, has_ended, spawn, until
from tests.servers.sources import Server

__all__ = ('OwnServer',)

_PORT_TRIES = 8


class _PortTakenError(RuntimeError):
    """Somebody else took the port between our look and the server's bind."""


class OwnServer(Server):
    """A process with its data and its log in a folder, on a port that was free."""

    restartable = True
    kind: str
    """'Postgres' or 'Redis'."""
    death: int = signal.SIGKILL
    """The signal at which it ends at once and leaves no process behind."""
    in_order: Sequence[int] = (signal.SIGTERM,)
    """The signals that stop it in order: the second where the first does not do."""

    def __init__(self, folder: Path, *, source: str) -> None:
        self.source = source
        self.port = 0
        self._folder = folder
        self._log = folder / 'log'
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it takes commands; an `OSError` is a no."""
        raise NotImplementedError

    def start_on_a_free_port(self, *, bus: bool = False) -> None:
        for _ in range(_PORT_TRIES):
            self.port = free_port(bus=bus)
            try:
                self.start()
            except _PortTakenError:
                continue
            return
        raise RuntimeError(f'No free port for {self.kind}:\n{self._tail()}')

    def start(self) -> None:
        assert self._process is None, 'it is running'
        before = self._log.stat().st_size if self._log.exists() else 0
        self._process = process = spawn(self._command(), log=self._log, death=self.death)

        def ready() -> bool:
            if has_ended(process):
                self._process = None
                said = self._tail(before)
                failure = _PortTakenError if 'Address already in use' in said else RuntimeError
                raise failure(f'{self.kind} did not start:\n{said}')
            with contextlib.suppress(OSError):
                return self._is_ready(process)
            return False

        try:
            until(f'{self.kind} is ready', ready)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        self._end(*self.in_order)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(self.death)

    def _end(self, *signals: int) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            end(process, *signals)

    def _tail(self, start: int = 0) -> str:
        """The last of what it has logged since `start`."""
        log = self._log.read_bytes() if self._log.exists() else b''
        return log[start:].decode(errors='replace')[-4000:]
