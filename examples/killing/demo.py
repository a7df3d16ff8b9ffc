"""A demo from its arguments to its exit code: the store, the folder, the time it may take."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from rich.console import Console
from rich.markup import escape

import graphkeep
from killing.records import Kept

__all__ = ('DemoError', 'make_console', 'perform', 'read', 'run_on_terminal', 'sqlite_url')

PATIENCE = 120.0
"""Seconds after which a demo gives up."""

T = TypeVar('T')
K = TypeVar('K', bound=Kept)


class DemoError(Exception):
    """Something other than a promise is in the way."""


class Demo(Protocol):
    """Works on a store, with files in a folder; gives whether all promises were kept."""

    def __call__(
        self, console: Console, url: str, folder: Path, *, pace: float
    ) -> Coroutine[Any, Any, bool]: ...


def perform(
    demo: Demo, console: Console, description: str, argv: Sequence[str] | None = None
) -> int:
    """Let a demo run on the store that `STORE` names, or on a file of its own; its exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--pace', type=float, default=1.0, help='how slow the model is; 0: not')
    args = parser.parse_args(argv)
    given = os.environ.get('STORE', '')
    if given.startswith('memory:'):
        raise DemoError('A memory:// store ends with its process, and here processes are killed.')
    begun = time.monotonic()
    # Around the event loop: what still runs in it when something fails has ended before the folder.
    with TemporaryDirectory(prefix='graphkeep-demo-') as temporary:
        folder = Path(temporary)
        url = given or sqlite_url(folder / 'runs.db')
        all_kept = asyncio.run(_in_time(demo(console, url, folder, pace=args.pace)))
    console.print(f'\n[dim]{time.monotonic() - begun:.1f} s in all.')
    if given:
        console.print('[dim]The run is still in your store; `store.delete(run_id)` removes it.')
    return 0 if all_kept else 1


async def _in_time(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, unless it takes too long."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await work
    except TimeoutError:
        raise DemoError(f'Not done after {PATIENCE:.0f} s.') from None


def run_on_terminal(main: Callable[[Console], int]) -> int:
    """The exit code of `main`. What it cannot go on after is said in a line."""
    console = make_console()
    try:
        return main(console)
    except KeyboardInterrupt:
        console.print('\nStopped. All workers have ended.')
        return 130
    except (DemoError, graphkeep.GraphkeepError, ValueError) as error:
        console.print(f'[b red]{type(error).__name__}[/]: {escape(str(error))}')
        return 1


def make_console() -> Console:
    """As wide as the terminal; elsewhere wide enough for the tables."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The tickets are in ten languages, and not every console can show them.
        sys.stdout.reconfigure(errors='replace')
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=116)


async def read(kept: type[K], store: graphkeep.Store, run_id: str) -> K:
    """What a store has of a run. Nothing of the graph is needed for that."""
    document = await store.document(run_id)
    return kept(
        run=await store.run(run_id),
        snapshots=await store.snapshots(run_id),
        document=json.loads(document.to_json()),
    )


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f'sqlite:///{quote(path.resolve().as_posix(), safe="/:")}'
