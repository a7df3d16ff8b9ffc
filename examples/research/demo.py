"""Kills a run in the middle of a map, and shows what goes on: `make demo-research`.

    python demo.py
    STORE=postgresql://… python demo.py
    STORE=redis://… python demo.py

Without `STORE` the run is kept in a SQLite file, in a temporary folder. Ends with 1 if a promise
was not kept.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which both examples use

import show
from graph import AT_ONCE
from killing.children import started
from killing.demo import DemoError, perform, read, run_on_terminal, sqlite_url
from killing.tables import promises
from promises import Evidence, Kept, Process, check
from rich.console import Console
from rich.markup import escape
from texts import load_texts

import graphkeep

WORKER = Path(__file__).with_name('worker.py')
KILL_AFTER = 8
"""So many texts are done when the first worker is killed."""


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
        at_kill = await read(Kept, store, run_id)
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
            kept=await read(Kept, store, run_id),
            undisturbed=await undisturbed,
            report=report.read_text(encoding='utf-8'),
        )
    console.rule('What ran')
    show.what_ran(console, evidence, texts)
    console.rule('The report')
    show.report(console, evidence.report)
    console.rule('The promises')
    return promises(console, check(evidence))


async def alone(run_id: str, folder: Path) -> Kept:
    """The same work in another database, where nobody disturbs it."""
    url = sqlite_url(folder / 'undisturbed.db')
    await work(run_id, url, folder / 'undisturbed.md', pace=0.0)
    async with graphkeep.open_store(url) as store:
        return await read(Kept, store, run_id)


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
    options = [f'--report={report}', f'--pace={pace}']
    if stall_after is not None:
        options.append(f'--stall-after={stall_after}')
    stalled = 0
    with started(WORKER, run_id, *options, store_url=url) as child:
        async for event, text in child.events():
            if follow is not None:
                follow(f'process {child.pid} {event} {escape(text)}')
            stalled += event == 'stalled'
            if stalled == AT_ONCE:
                child.kill()
    if (child.code == 0) != (stall_after is None):
        raise DemoError(f'Worker {child.pid} ended with {child.code}, which was not the plan.')
    return Process(pid=child.pid, begun=child.begun, unanswered=stalled, code=child.code)


def main(console: Console, argv: Sequence[str] | None = None) -> int:
    return perform(demo, console, 'Kills a run in a map, and shows what goes on.', argv)


if __name__ == '__main__':
    sys.exit(run_on_terminal(main))
