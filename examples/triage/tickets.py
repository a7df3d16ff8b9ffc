"""The tickets that are worked through: `tickets.jsonl`, one a line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

__all__ = ('Ticket', 'load_tickets')

TICKETS = Path(__file__).with_name('tickets.jsonl')


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a customer wrote."""

    id: str
    received: datetime
    sender: str
    subject: str
    body: str


def load_tickets(path: Path = TICKETS) -> list[Ticket]:
    """The tickets of a file, in its order."""
    adapter = TypeAdapter(Ticket)
    with path.open(encoding='utf-8') as lines:
        return [adapter.validate_json(line) for line in lines if line.strip()]
