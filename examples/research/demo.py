"""Kills a run in the middle of a map, and shows what goes on: `make demo-research`.

    python demo.py
    STORE=postgresql://… python demo.py
    STORE=redis://… python demo.py

Without `STORE` the run is kept in a SQLite file, in a temporary folder. Ends with 1 if a promise
was not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import show
from graph import AT_ONCE
from promises import Evidence, Kept, Process, check
from rich.console import Console
from rich.markup import escape
from texts import load_texts

import graphkeep

WORKER = Path(__file__).with_name('worker.py')
KILL_AFTER = 8
"""So many texts are done when the first worker is killed."""
PATIENCE = 120.0
"""Seconds after which the demo gives up."""


class DemoError(Exception):
    """Something other than a promise is in the way."""


async def demo(console: Console, url: str, folder: Path, *, pace: float) -> bool:
    """Run, kill and go on; and beside it the same work undisturbed. Whether all is well."""
    run_id = f'research-{secrets.token_hex(4)}'
    texts = load_texts()
    report = folder / 'report.md'
    async with graphkeep.open_store(url) as store:
        console.print(
            f'{len(texts)} texts, {AT_ONCE} of them at once, '
            f'pydantic-graph {version("pydantic-graph")}: run [b]{run_id}[/] in {store!r}.'
        )
        undisturbed = asyncio.create_task(alone(run_id, folder))
        with console.status('worker 1 starts') as status:
            killed = await work(
                run_id, url, report, pace=pace, stall_after=KILL_AFTER, follow=status.update
            )
        console.print(
            f'\n[b]Process {killed.pid}[/] begins, and is [b red]killed[/] ({killed.code}) while '
            f'{AT_ONCE} texts are being read.\n'
        )
        at_kill = await read(store, run_id)
        show.kept_after(console, at_kill, killed)
        with console.status('worker 2 starts') as status:
            resumed = await work(run_id, url, report, pace=pace, follow=status.update)
        console.print(
            f'\n[b]Process {resumed.pid}[/], the same command, goes on with {resumed.begun[0]}.\n'
        )
        evidence = Evidence(
            texts={name: text.words for name, text in texts.items()},
            killed=killed,
            resumed=resumed,
            at_kill=at_kill,
            kept=await read(store, run_id),
            undisturbed=await undisturbed,
            report=report.read_text(encoding='utf-8'),
        )
    console.rule('What ran')
    show.what_ran(console, evidence, texts)
    console.rule('The report')
    show.report(console, evidence.report)
    console.rule('The promises')
    return show.promises(console, check(evidence))


async def alone(run_id: str, folder: Path) -> Kept:
    """The same work in another database, where nobody disturbs it."""
    url = sqlite_url(folder / 'undisturbed.db')
    await work(run_id, url, folder / 'undisturbed.md', pace=0.0)
    async with graphkeep.open_store(url) as store:
        return await read(store, run_id)


async def work(
    run_id: str,
    url: str,
    report: Path,
    *,
    pace: float,
    stall_after: int | None = None,
    follow: Callable[[str], None] | None = None,
) -> Process:
    """Let one worker work, to the end, or until all that it reads stalls: there it is killed."""
    arguments = [run_id, f'--report={report}', f'--pace={pace}']
    # The demo opens the store as well, and so has warned once.
    arguments.append('--quiet')
    if stall_after is not None:
        arguments.append(f'--stall-after={stall_after}')
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(WORKER),
        *arguments,
        stdout=PIPE,
        env={**os.environ, 'STORE': url},
        # Ctrl-C is for the demo, which then ends its workers itself.
        start_new_session=True,
    )
    begun: list[str] = []
    stalled = 0
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            event, _, text = line.decode(errors='replace').rstrip().partition(' ')
            if follow is not None:
                follow(f'process {process.pid} {event} {escape(text)}')
            if event == 'begins':
                begun.append(text)
            stalled += event == 'stalled'
            if stalled == AT_ONCE:
                process.kill()  # SIGKILL, which a process can neither catch nor prepare for
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if (code == 0) != (stall_after is None):
        raise DemoError(f'Worker {process.pid} ended with {code}, which was not the plan.')
    return Process(pid=process.pid, begun=begun, unanswered=stalled, code=code)


async def read(store: graphkeep.Store, run_id: str) -> Kept:
    """What a store has of a run. Nothing of the graph is needed for that."""
    document = await store.document(run_id)
    return Kept(
        run=await store.run(run_id),
        snapshots=await store.snapshots(run_id),
        document=json.loads(document.to_json()),
    )


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f'sqlite:///{quote(path.resolve().as_posix(), safe="/:")}'


def main(console: Console, argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Kills a run in a map, and shows what goes on.')
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
        all_kept = asyncio.run(in_time(console, url, folder, pace=args.pace))
    console.print(f'\n[dim]{time.monotonic() - begun:.1f} s in all.')
    if given:
        console.print('[dim]The run is still in your store; `store.delete(run_id)` removes it.')
    return 0 if all_kept else 1


async def in_time(console: Console, url: str, folder: Path, *, pace: float) -> bool:
    """The demo, unless it takes too long."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await demo(console, url, folder, pace=pace)
    except TimeoutError:
        raise DemoError(f'Not done after {PATIENCE:.0f} s.') from None


if __name__ == '__main__':
    terminal = show.make_console()
    try:
        sys.exit(main(terminal))
    except KeyboardInterrupt:
        terminal.print('\nStopped. All workers have ended.')
        sys.exit(130)
    except (DemoError, graphkeep.GraphkeepError, ValueError) as error:
        terminal.print(f'[b red]{type(error).__name__}[/]: {escape(str(error))}')
        sys.exit(1)
