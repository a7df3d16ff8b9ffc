"""Stands for a payment provider: outside of the run, with a ledger of its own.

The ledger is a SQLite file that graphkeep does not know. It shows how often money was really moved.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel

__all__ = ('Payment', 'Provider', 'Receipt', 'Wait', 'read_ledger')

Wait = Callable[[str, float], Awaitable[None]]
"""`await wait('pay A-1004', 0.2)`: take these seconds at this place."""

_TABLES = """
CREATE TABLE IF NOT EXISTS refunds (
    key TEXT PRIMARY KEY, receipt TEXT NOT NULL, "order" TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS calls (key TEXT NOT NULL);
"""


class Receipt(BaseModel):
    """What the provider says of a refund."""

    number: str
    order: str
    cents: int


class Payment(BaseModel):
    """One refund in the ledger: money that was moved."""

    key: str
    receipt: str
    order: str
    cents: int
    calls: int
    """How often the provider was asked for it."""


class Provider:
    """Refunds, unless it has done so under the same key before."""

    def __init__(self, ledger: Path, wait: Wait) -> None:
        self._ledger = ledger
        self._wait = wait

    async def refund(self, *, key: str, order: str, cents: int) -> Receipt:
        """Give money back. A key that came before moves none, and gives its receipt again."""
        await self._wait(f'pay {order}', 0.2)
        with closing(sqlite3.connect(self._ledger)) as db:
            db.executescript(_TABLES)
            with db:
                db.execute('INSERT INTO calls VALUES (?)', (key,))
                db.execute(
                    "INSERT INTO refunds SELECT ?, printf('R-%03d', count(*) + 1), ?, ? "
                    'FROM refunds WHERE true ON CONFLICT DO NOTHING',
                    (key, order, cents),
                )
                found = 'SELECT receipt, "order", cents FROM refunds WHERE key = ?'
                number, order, cents = db.execute(found, (key,)).fetchone()
        await self._wait(f'paid {order}', 0.2)
        return Receipt(number=number, order=order, cents=cents)


def read_ledger(ledger: Path) -> list[Payment]:
    """All money that was moved, oldest first."""
    with closing(sqlite3.connect(ledger)) as db:
        db.row_factory = sqlite3.Row
        db.executescript(_TABLES)
        rows = db.execute(
            'SELECT *, (SELECT count(*) FROM calls WHERE calls.key = refunds.key) AS calls '
            'FROM refunds ORDER BY rowid'
        )
        return [Payment.model_validate(dict(row)) for row in rows]
