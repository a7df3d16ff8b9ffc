"""What workers write down outside of the state, on the disk before they go on."""

from __future__ import annotations

import os
from pathlib import Path


class Journalist:
    """Writes lines to a file; each is on the disk when `write` returns."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, *words: object) -> None:
        """Several processes may write: a line is never torn, and their order is the real one."""
        os.write(self._fd, (' '.join(map(str, words)) + '\n').encode())
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def starts(path: str | Path) -> list[str]:
    """The nodes whose starts a log tells, in order."""
    if not Path(path).exists():
        return []
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return [line[2] for line in lines if line[0] == 'start']
