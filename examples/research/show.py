"""What the demo shows, with rich."""

from __future__ import annotations

from collections.abc import Mapping

from killing.tables import facts
from promises import REPORT, Evidence, Kept, Process
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from texts import Text

__all__ = ('kept_after', 'report', 'what_ran')

FIRST = 3
"""How many entries of the report are shown."""


def kept_after(console: Console, kept: Kept, killed: Process) -> None:
    """What the store has, after the kill."""
    begun = [text for text in kept.left if text in killed.begun]
    known = {
        'status': f'{kept.run.status}, by a process that is dead',
        'commits': f'{len(kept.snapshots)}: the start, and the ends of steps',
        'joins': f'{len(kept.done)} entries that wait: {", ".join(kept.done)}',
        'tasks': f'{len(kept.left)}. In flight were {", ".join(begun)}',
        'state': f'{len(kept.document["state"]["read"])} texts read, '
        f'{kept.document["state"]["words"]:,} words',
    }
    console.print(Panel(facts(known), title=f'what the store has of {kept.run.run_id}'))


def what_ran(console: Console, evidence: Evidence, texts: Mapping[str, Text]) -> None:
    """Each text, before the kill and after it."""
    killed, resumed, done = evidence.killed, evidence.resumed, evidence.at_kill.done
    table = Table(expand=True)
    table.add_column('text', ratio=2, no_wrap=True)
    table.add_column('author', ratio=2, no_wrap=True)
    for name in ('year', 'words'):
        table.add_column(name, justify='right')
    table.add_column(f'process {killed.pid}', no_wrap=True)
    table.add_column(f'process {resumed.pid}', no_wrap=True)
    table.add_column('runs', justify='right')
    for name, text in texts.items():
        if name in done:
            before = '[green]done'
        else:
            before = '[red]killed in it' if name in killed.begun else '[dim]not begun'
        if name in resumed.begun:
            after = '[yellow]done again' if name in done else '[green]done'
        else:
            after = '[dim]-'
        runs = [*killed.begun, *resumed.begun].count(name)
        shown = (escape(text.title), escape(text.author), str(text.year), str(text.words))
        table.add_row(*shown, before, after, str(runs))
    table.add_section()
    after = '[green]done' if REPORT in resumed.begun else '[red]missing'
    runs = [*killed.begun, *resumed.begun].count(REPORT)
    table.add_row(REPORT, '', '', '', '[dim]not begun', after, str(runs))
    console.print(table)


def report(console: Console, markdown: str) -> None:
    """How the report begins."""
    head, *entries = markdown.split('\n## ')
    shown = '\n## '.join([head, *entries[:FIRST]])
    console.print(Panel(Markdown(shown), subtitle=f'and {len(entries) - FIRST} more'))
