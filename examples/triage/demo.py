"""Kills a run twice, and shows that nothing is lost: `make demo`.

    python demo.py
    STORE=postgresql://… python demo.py
    STORE=redis://… python demo.py

Without `STORE` the run is kept in a SQLite file, in a temporary folder. Ends with 1 if a promise
was not kept.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which both examples use

import show
from killing.children import started
from killing.demo import DemoError, perform, read, run_on_terminal, sqlite_url
from killing.tables import promises
from outbox import read_mails
from promises import Evidence, Kept, Kill, Process, check, committed, ran_again
from rich.console import Console
from rich.status import Status

import graphkeep

WORKER = Path(__file__).with_name('worker.py')
KILLS = ('Research T-1007', 'File T-1018')
"""After a tool has answered and before the model has; after a mail was sent and before the step is
committed.
"""


async def demo(console: Console, url: str, folder: Path, *, pace: float) -> bool:
    """Run, kill and go on, twice; and beside it the same work undisturbed. Whether all is well."""
    run_id = f'triage-{secrets.token_hex(4)}'
    async with graphkeep.open_store(url) as store:
        console.print(f'Thirty tickets, an agent with two tools: run [b]{run_id}[/] in {store!r}.')
        (processes, kills), undisturbed = await asyncio.gather(
            disturbed(console, store, run_id, url, folder / 'outbox.jsonl', pace=pace),
            alone(run_id, folder),
        )
        kept = await read(Kept, store, run_id)
        final = len((await store.document(run_id)).to_json())
        copies = 0
        for snapshot in kept.snapshots:
            copies += len((await store.document(run_id, at=snapshot.seq)).to_json())
    stored = sum(len(snapshot.data) for snapshot in kept.snapshots)
    steps = committed(kept)
    mails = read_mails(folder / 'outbox.jsonl')

    console.rule('What ran again')
    show.workers(console, processes, steps)
    console.print(f'{" and ".join(ran_again(processes, steps))} ran twice, everything else once.')
    for mail in mails:
        if not mail.delivered:
            console.print(f'The mail provider was given {mail.key} twice, and delivered it once.')
    console.rule('The result')
    show.tickets(console, kept.document)
    console.print(f'Output: {json.dumps(kept.document["output"])}')
    console.rule('The promises')
    evidence = Evidence(
        processes=processes,
        kills=kills,
        kept=kept,
        undisturbed=undisturbed,
        deliveries=Counter(mail.key for mail in mails if mail.delivered),
        stored_bytes=stored,
        document_bytes=final,
    )
    all_kept = promises(console, check(evidence))
    console.rule('The numbers')
    show.numbers(console, kept, processes, stored=stored, final=final, copies=copies)
    return all_kept


async def disturbed(
    console: Console, store: graphkeep.Store, run_id: str, url: str, outbox: Path, *, pace: float
) -> tuple[list[Process], list[Kill]]:
    """Three workers, one after the other. The first two are killed in the middle of a node."""
    processes: list[Process] = []
    kills: list[Kill] = []
    for number, stall in enumerate((*KILLS, None), start=1):
        with console.status(f'worker {number} starts') as status:
            follow = partial(_follow, status, number)
            process = await work(run_id, url, outbox, pace=pace, stall=stall, follow=follow)
        processes.append(process)
        does = 'goes on with' if kills else 'begins with'
        said = f'Worker {number}, process {process.pid}, {does} {process.begun[0]}'
        if process.killed_in is None:
            console.print(f'\n[b]{said}[/], and works through all the rest.\n')
            break
        console.print(f'\n[b]{said}[/], and is [b red]killed[/] in the middle of {stall}.')
        kills.append(Kill(killed_in=process.killed_in, kept=await read(Kept, store, run_id)))
        left = [run.run_id for run in await store.interrupted(graph='triage')]
        show.kept_after(console, kills[-1], interrupted=run_id in left)
    return processes, kills


def _follow(status: Status, number: int, said: str) -> None:
    status.update(f'worker {number} {said}')


async def alone(run_id: str, folder: Path) -> Kept:
    """The same work in another database, where nobody disturbs it."""
    url = sqlite_url(folder / 'undisturbed.db')
    await work(run_id, url, folder / 'undisturbed.jsonl', pace=0.0)
    async with graphkeep.open_store(url) as store:
        return await read(Kept, store, run_id)


async def work(
    run_id: str,
    url: str,
    outbox: Path,
    *,
    pace: float,
    stall: str | None = None,
    follow: Callable[[str], None] | None = None,
) -> Process:
    """Let one worker work, to the end, or to the place where it stalls: there it is killed."""
    options = [f'--outbox={outbox}', f'--pace={pace}']
    if stall is not None:
        options.append(f'--stall={stall}')
    killed_in = None
    with started(WORKER, run_id, *options, store_url=url) as child:
        async for event, text in child.events():
            if follow is not None:
                follow(f'{event} {text}')
            if event == 'stalled':
                child.kill()
                killed_in = text
    if stall != killed_in or (child.code == 0) != (stall is None):
        raise DemoError(f'Worker {child.pid} ended with {child.code}, which was not the plan.')
    return Process(pid=child.pid, begun=child.begun, killed_in=killed_in, code=child.code)


def main(console: Console, argv: Sequence[str] | None = None) -> int:
    return perform(demo, console, 'Kills a run twice, and shows what is kept.', argv)


if __name__ == '__main__':
    sys.exit(run_on_terminal(main))
