"""What is kept of a run, and what is promised of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphkeep import Run, Snapshot

__all__ = ('Kept', 'Promise')


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a store has of a run."""

    run: Run
    snapshots: Sequence[Snapshot]
    document: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise, and whether it was kept."""

    text: str
    kept: bool
    seen: str
