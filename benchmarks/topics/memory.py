"""Memory above the state itself, counted by tracemalloc in processes of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.bench import NAMES, Bench
from benchmarks.report import Line, Target, at_most, ratio, size

__all__ = ('measure',)

_ROOT = Path(__file__).resolve().parent.parent.parent


async def measure(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    big, runs = bench.n(10_000_000, 200_000), bench.n(1_000, 20)
    for name, url in bench.stores('sqlite', 'postgres', 'redis').items():
        for what, title in (('commit', 'committing'), ('resume', 'resuming')):
            found = await _child(what, url, 3, big)
            lines.append(_line(f'{NAMES[name]}: peak of {title} a document', found, at_most(7)))
    url = bench.url('sqlite')
    assert url is not None
    found = await _child('open', url, runs, 100_000)
    lines.append(_line(f'SQLite: {runs:,} open runs of 100 kB', found, at_most(3)))
    return lines


def _line(what: str, found: dict[str, int], target: Target) -> Line:
    of = 'document' if 'document' in what else 'documents'
    return ratio(what, found['peak'], found['document'], of=of, show=size, target=target)


async def _child(what: str, url: str, count: int, each: int) -> dict[str, int]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, '-m', 'benchmarks.memory_child', what, url, str(count), str(each)),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f'the process that was to {what} ended with {child.returncode}')
    return json.loads(out)
