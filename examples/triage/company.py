"""What the support desk can look up: `company.json`, its accounts and its handbook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

__all__ = ('Account', 'Company', 'load_company')

COMPANY = Path(__file__).with_name('company.json')


@dataclass(frozen=True, kw_only=True)
class Account:
    """A customer."""

    name: str
    plan: str
    seats: int
    since: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Company:
    """Tidewell, which makes software for timesheets and invoices."""

    accounts: dict[str, Account]
    """By e-mail address."""
    handbook: dict[str, str]
    """By topic."""


def load_company() -> Company:
    """The company, as every process reads it for itself."""
    return TypeAdapter(Company).validate_json(COMPANY.read_bytes())
