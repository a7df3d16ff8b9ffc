"""A part of a topic in the environment that has what it needs.

Conversations are of pydantic-ai 2.x; most topics, and so their environment, of 1.x, which cannot be
installed beside it.

python -m benchmarks.elsewhere MODULE FUNCTION FILE [--quick]
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import pickle
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.bench import Bench
from benchmarks.report import Line

__all__ = ('measured',)

_ROOT = Path(__file__).resolve().parent.parent


async def measured(bench: Bench, module: str, function: str, *, needs: str) -> list[Line]:
    """The lines that a function of a module of the benchmarks gives, wherever it can run.

    Args:
        bench: Gets a note if it can run nowhere.
        module: Its name.
        function: Is given a `Bench`.
        needs: The module that must be installed.
    """
    if _is_here(needs):
        found: Callable[[Bench], Awaitable[list[Line]]]
        found = getattr(importlib.import_module(module), function)
        return await found(bench)
    python = _python_with(needs)
    if python is None:
        bench.note(f'{module.rpartition(".")[2]}: {needs} is in no environment in .venv/')
        return []
    path = bench.file('lines')
    child = await asyncio.create_subprocess_exec(
        *(python, '-m', 'benchmarks.elsewhere', module, function, path),
        *(['--quick'] if bench.quick else []),
        cwd=_ROOT,
    )
    if await child.wait():
        raise RuntimeError(f'{python}: {module}.{function} ended with {child.returncode}')
    lines, notes = pickle.loads(path.read_bytes())
    for note in notes:
        bench.note(note)
    return lines


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _python_with(name: str) -> Path | None:
    """An interpreter of this version, in another environment of the project, that has a module."""
    version = f'{sys.version_info.major}.{sys.version_info.minor}'
    place = f'lib/python{version}/site-packages/{name.replace(".", "/")}'
    for folder in sorted((_ROOT / '.venv').glob(f'*-{version}')):
        if (folder / place).is_dir() or (folder / f'{place}.py').is_file():
            return folder / 'bin/python'
    return None


def main() -> None:
    logging.getLogger('asyncio').setLevel(logging.CRITICAL)
    name, function, path = sys.argv[1:4]
    module: ModuleType = importlib.import_module(name)
    with Bench(quick='--quick' in sys.argv) as bench:
        lines: Any = asyncio.run(getattr(module, function)(bench))
        Path(path).write_bytes(pickle.dumps((lines, bench.notes)))


if __name__ == '__main__':
    main()
