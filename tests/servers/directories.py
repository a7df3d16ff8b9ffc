"""Folders of servers: one that the server's account owns, one whose binaries it can execute."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.processes import account, alive

__all__ = ('directory', 'public', 'reachable', 'sweep')

_PREFIX = 'graphkeep-servers-'


def reachable(path: Path) -> bool:
    """Whether `nobody` may enter every folder above `path`, and read and execute `path` itself."""
    if os.geteuid() != 0:
        return True
    try:
        return path.stat().st_mode & 0o5 == 0o5 and all(
            parent.stat().st_mode & 0o1 for parent in path.resolve().parents
        )
    except OSError:
        return False


@functools.cache
def sweep(base: Path) -> None:
    """Removes what killed processes left in `base`, once a process."""
    for folder in base.glob(f'{_PREFIX}*'):
        pid = re.match(rf'{_PREFIX}(\d+)-', folder.name)
        if pid and not alive(int(pid[1])):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A fresh folder that the server's account owns; removed at the end."""
    base = Path(tempfile.gettempdir())
    if not reachable(base):
        base = Path('/tmp')
    sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f'{_PREFIX}{os.getpid()}-', dir=base))
    try:
        uid, gid = account()
        if uid >= 0:
            os.chown(folder, uid, gid)
        yield folder
    finally:
        for again in range(5):
            # Children of a killed server may still write for a moment.
            shutil.rmtree(folder, ignore_errors=again < 4)
            if not folder.exists():
                break
            time.sleep(0.05 * 2**again)


@contextlib.contextmanager
def public(*roots: Path) -> Iterator[Path]:
    """The folder in which `roots` lie and can be executed by `nobody`: theirs, or one of copies."""
    if all(reachable(root) for root in roots):
        yield roots[0].parent
        return
    with directory() as folder:
        folder.chmod(0o755)
        for root in roots:
            target = folder / root.name
            if root.is_dir():
                skip = shutil.ignore_patterns('include', '*.a', '*.py', '__pycache__')
                shutil.copytree(root, target, ignore=skip)
            else:
                shutil.copy2(root, target)
            for path in (target, *target.rglob('*')):
                path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))
                if path.stat().st_mode & 0o100:
                    path.chmod(path.stat().st_mode | 0o111)
        yield folder
