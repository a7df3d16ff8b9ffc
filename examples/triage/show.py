"""What the demo shows, with rich."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from killing.tables import facts
from promises import Kept, Kill, Process, committed
from rich.columns import Columns
from rich.console import Console
from rich.json import JSON
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

__all__ = ('kept_after', 'numbers', 'tickets', 'workers')

LAST = 5
"""How many snapshots are shown."""


def kept_after(console: Console, kill: Kill, *, interrupted: bool) -> None:
    """What the store has, after a kill."""
    run, snapshots = kill.kept.run, kill.kept.snapshots
    lease = f'{run.lease_until:%H:%M:%S} UTC' if run.lease_until else 'none'
    known = {
        'run_id': run.run_id,
        'graph': run.graph,
        'status': run.status,
        'seq': run.seq,
        'epoch': run.epoch,
        'owner': (run.owner or '').partition('/')[2].partition('/')[0] + ' (its process id)',
        'lease_until': lease,
        'interrupted': 'yes, its owner is dead' if interrupted else f'at {lease}',
    }
    last = Table('seq', 'kind', 'event', 'node', 'ms', 'bytes', box=None, header_style='dim')
    for column in (0, 4, 5):
        last.columns[column].justify = 'right'
    if len(snapshots) > LAST:
        last.add_row('…')
    for s in snapshots[-LAST:]:
        ran = '' if s.duration is None else f'{s.duration * 1000:.0f}'
        last.add_row(str(s.seq), s.kind, s.event, s.node, ran, f'{len(s.data):,}')
    console.print(
        Columns(
            [
                Panel(facts(known), title='the run', height=LAST + 5),
                Panel(last, title='its last snapshots', height=LAST + 5),
            ]
        )
    )
    for task in kill.kept.document['tasks'].values():
        shown = {'node': task['node'], 'inputs': _short(task['inputs'])}
        text = json.dumps(shown, ensure_ascii=False)
        console.print(Panel(JSON(text), title='the node that was running', expand=False))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return value if not isinstance(value, str) or len(value) <= 72 else f'{value[:71]}…'


def workers(console: Console, processes: Sequence[Process], steps: Sequence[str]) -> None:
    """What each process began, beside what was committed."""
    table = Table('worker', 'process', 'nodes begun', 'first', 'last', 'ended')
    table.columns[2].justify = 'right'
    for number, process in enumerate(processes, start=1):
        ended = f'[red]killed in it ({process.code})' if process.killed_in else '[green]by itself'
        first, last = process.begun[0], process.begun[-1]
        table.add_row(str(number), str(process.pid), f'{len(process.begun)}', first, last, ended)
    begun = sum(len(process.begun) for process in processes)
    table.add_section()
    table.add_row('', '', f'{begun}', f'for {len(steps)} committed steps')
    console.print(table)


def tickets(console: Console, document: dict[str, Any]) -> None:
    """The result of the run."""
    subjects = {ticket['id']: ticket['subject'] for ticket in document['state']['tickets']}
    colours = {'P1': 'bold red', 'P2': 'yellow', 'P3': 'default', 'P4': 'dim'}
    table = Table(expand=True)
    for name, width in (('ticket', 6), ('subject', 30), ('category', 8), ('', 2), ('action', 8)):
        table.add_column(name, width=width, no_wrap=True)
    table.add_column('drafts', justify='right')
    table.add_column('reply', ratio=1, no_wrap=True)
    for case in document['state']['filed']:
        # Without the salutation, which says little in one line.
        reply = case['reply'].partition('\n\n')[2] or case['reply']
        table.add_row(
            case['ticket'],
            escape(subjects[case['ticket']]),
            case['category'],
            f'[{colours[case["priority"]]}]{case["priority"]}',
            case['action'],
            str(case['drafts']),
            escape(' '.join(reply.split())) or '[dim]none',
        )
    console.print(table)


def numbers(
    console: Console,
    kept: Kept,
    processes: Sequence[Process],
    *,
    stored: int,
    final: int,
    copies: int,
) -> None:
    """What was measured.

    Args:
        console: Where to show it.
        kept: The run.
        processes: What was seen of its workers.
        stored: Bytes of all snapshots.
        final: Bytes of the final document.
        copies: Bytes that a copy of the document at every commit would take.
    """
    steps = kept.snapshots[1:]
    pauses = [
        (after.started_at - before.started_at).total_seconds() - before.duration
        for before, after in pairwise(steps)
        if before.started_at and after.started_at and before.duration is not None
    ]
    measured = {
        'steps': f'{len(committed(kept))}',
        'nodes begun': f'{sum(len(process.begun) for process in processes)}',
        'commits': f'{len(kept.snapshots)}',
        'bytes stored': f'{stored:,}',
        'final document': f'{final:,}  ({stored / final:.2f} × is stored)',
        'a copy at every commit': f'{copies:,}  ({copies / stored:.0f} × what is stored)',
        'between two nodes': f'{median(pauses) * 1000:.1f} ms, commit included (median)',
    }
    console.print(facts(measured))
