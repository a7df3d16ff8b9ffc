"""Runs the benchmarks, prints a table a topic, and leaves all figures in build/bench.json.

python benchmarks/run.py
python benchmarks/run.py --only append,resume
python benchmarks/run.py --quick
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import logging
import os
import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# This folder is a package of the project, not a place for modules to be found in.
sys.path[0] = str(ROOT)

from rich.console import Console  # noqa: E402

from benchmarks.bench import CLASSIC, Bench  # noqa: E402
from benchmarks.report import Line, markdown, ms, show  # noqa: E402

TOPICS = {
    'transactions': 'Write transactions of an undisturbed run, counted at the database',
    'append': 'A commit, and a whole step, against a bare write of the same payload',
    'bytes': 'A run that appends a message of 400 bytes a step',
    'appendonly': 'A step that adds two messages to a long list',
    'resume': 'Reading a run of 5,000 steps, against loading its final document once',
    'concurrent': '64 runs in one process',
    'memory': 'Memory above the state itself',
    'builder': 'GraphBuilder graphs',
    'pauses': 'Runs that wait for a person',
    'conversations': 'Conversations of agents',
}
BOTH_MAJORS = frozenset({'transactions', 'builder', 'pauses', 'conversations'})
PACKAGES = ('graphkeep', 'pydantic-graph', 'pydantic', 'asyncpg', 'redis', 'langgraph')


def main() -> None:
    arguments = _arguments()
    # Peers that cannot finish in order say so in the log; the tables are what is printed.
    logging.getLogger('asyncio').setLevel(logging.CRITICAL)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    with Bench(quick=arguments.quick) as bench:
        header = _header(bench)
        console.print(header['text'])
        results: dict[str, list[Line]] = {}
        for topic in arguments.only:
            if topic not in BOTH_MAJORS and not CLASSIC:
                bench.note(f'{topic}: needs pydantic-graph 1.x')
                continue
            started = perf_counter()
            module = importlib.import_module(f'benchmarks.topics.{topic}')
            gc.collect()
            results[topic] = asyncio.run(module.measure(bench))
            show(console, TOPICS[topic], results[topic])
            console.print(f'[dim]{perf_counter() - started:.0f} s, load {_load()}[/]\n')
        for note in bench.notes:
            console.print(f'left out: {note}')
        console.print(_summary(results))
        _write(arguments.json, header, results, bench.notes)
        if arguments.markdown is not None:
            tables = [markdown(TOPICS[topic], lines) for topic, lines in results.items()]
            arguments.markdown.write_text('\n'.join(tables))


def _arguments() -> argparse.Namespace:
    def topics(text: str) -> list[str]:
        names = [name.strip() for name in text.split(',') if name.strip()]
        if unknown := [name for name in names if name not in TOPICS]:
            raise argparse.ArgumentTypeError(f'{unknown}: there are {", ".join(TOPICS)}')
        return [name for name in TOPICS if name in names]

    parser = argparse.ArgumentParser(description='What graphkeep costs, beside what else there is.')
    parser.add_argument('--only', type=topics, default=list(TOPICS), help='topics, by commas')
    parser.add_argument('--quick', action='store_true', help='small numbers: shows that it works')
    parser.add_argument('--json', type=Path, default=ROOT / 'build/bench.json', help='the figures')
    parser.add_argument('--markdown', type=Path, help='the tables, for docs/benchmarks.md')
    return parser.parse_args()


def _header(bench: Bench) -> dict[str, Any]:
    found = {name: _version(name) for name in PACKAGES}
    sync = bench.sync_time()
    text = (
        f'Python {platform.python_version()}, '
        + ', '.join(f'{name} {number}' for name, number in found.items() if number)
        + f', SQLite {sqlite3.sqlite_version}\n'
        f'{os.cpu_count()} processors, load {_load()}, a synced write of 4 kB {ms(sync)}'
        + ('\n[bold]--quick: small numbers, the times say nothing[/]' if bench.quick else '')
        + '\n'
    )
    return {
        'text': text,
        'versions': found,
        'processors': os.cpu_count(),
        'load': os.getloadavg(),
        'sync': sync,
        'quick': bench.quick,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _load() -> str:
    return ' '.join(f'{value:.1f}' for value in os.getloadavg())


def _summary(results: dict[str, list[Line]]) -> str:
    lines = [line for topic in results.values() for line in topic if line.met is not None]
    missed = [line for line in lines if not line.met]
    names = ''.join(f'\n  [red]✗[/] {line.what}: {line.figure:.2f}' for line in missed)
    return f'{len(lines) - len(missed)} of {len(lines)} targets met' + names


def _write(
    path: Path, header: dict[str, Any], results: dict[str, list[Line]], notes: list[str]
) -> None:
    figures = {topic: [line.as_json() for line in lines] for topic, lines in results.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    del header['text']
    found = {**header, 'topics': figures, 'left_out': notes}
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + '\n')


if __name__ == '__main__':
    main()
