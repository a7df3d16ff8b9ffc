"""What the demo shows, with rich."""

from __future__ import annotations

from promises import Evidence, Kill
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from shop import ORDERS, euros

__all__ = ('kill', 'refunds')


def kill(console: Console, number: int, killed: Kill, means: str) -> None:
    """One worker, and what people are asked after its end."""
    at = f'at [b]{killed.place}[/]' if killed.place else 'at rest'
    console.print(
        f'[b]Worker {number}[/], process {killed.pid}, is [b red]killed[/] ({killed.code}) '
        f'{at}: {means}.'
    )
    waiting = ', '.join(sorted(killed.waiting)) or 'nothing'
    console.print(f'[dim]People are asked about {waiting}.\n')


def refunds(console: Console, evidence: Evidence) -> None:
    """Each refund: what was asked, what was answered, how often the money moved."""
    requests = {request.labels['order']: request for request in evidence.requests}
    table = Table(expand=True)
    for name in ('order', 'customer'):
        table.add_column(name, no_wrap=True)
    table.add_column('paid', justify='right')
    table.add_column('answer to the agent', ratio=1)
    for name in ('calls', 'refunds', 'refunded'):
        table.add_column(name, justify='right')
    table.add_column('receipt')
    for order in evidence.expected:
        payments = [payment for payment in evidence.ledger if payment.order == order]
        request = requests.get(order)
        outcome = evidence.outcomes[order]
        color = 'green' if len(payments) == bool(evidence.expected[order]) else 'bold red'
        table.add_row(
            order,
            ORDERS[order].customer,
            euros(ORDERS[order].cents),
            '[dim]nobody was asked' if request is None else escape(str(request.answer)),
            str(sum(payment.calls for payment in payments)),
            f'[{color}]{len(payments)}',
            euros(outcome.refunded),
            outcome.receipt or '[dim]-',
        )
    console.print(table)
    console.print('[dim]calls and refunds are counted in the ledger of the payment provider.')
