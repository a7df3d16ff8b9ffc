"""What both demos show, with rich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from killing.records import Promise

__all__ = ('facts', 'promises')


def facts(named: Mapping[str, object]) -> Table:
    """Each fact behind its name."""
    table = Table.grid('', '', padding=(0, 2))
    for name, value in named.items():
        table.add_row(f'[dim]{name}', escape(str(value)))
    return table


def promises(console: Console, found: Iterable[Promise]) -> bool:
    """Each promise, and whether all of them were kept."""
    table = Table.grid(padding=(0, 2))
    kept = True
    for promise in found:
        kept &= promise.kept
        mark = '[green]kept' if promise.kept else '[bold red]BROKEN'
        table.add_row(mark, promise.text, f'[dim]{escape(promise.seen)}')
    console.print(table)
    return kept
