"""What every part of the contract suite stands on: how a store is made, and the modes."""

from __future__ import annotations

from typing import Any

import pytest

from ..store import Store
from ._worker import Worker

__all__ = ('Contract',)


class Contract:
    """Where the suite gets its stores from, and in which mode it runs."""

    pytestmark = [pytest.mark.asyncio]  # noqa: RUF012 - the form pytest knows

    outlives_process: bool = True
    """Whether runs are still there when every store object has been closed."""
    ttl: float = 30.0
    """The lease of ordinary claims, in seconds. With 0 it has passed at once."""
    always_full: bool = False
    """Every snapshot is a full one."""
    reclaims: bool = False
    """Every step begins with a new claim."""

    def make_store(self, **options: Any) -> Store:
        """A new store object over this test's database, which no other test has written to.

        It is not opened. Called more than once in a test, it gives further store objects over the
        same runs.

        Args:
            **options: Of every store: `lease`, `heartbeat`, `history`, `retry`.
        """
        raise NotImplementedError

    def worker(self, store: Store, run_id: str = 'run-1', **options: Any) -> Worker:
        """A worker in the mode of the suite."""
        options = {
            'ttl': self.ttl,
            'always_full': self.always_full,
            'reclaims': self.reclaims,
            **options,
        }
        return Worker(store, run_id, **options)

    async def started(
        self, store: Store, run_id: str = 'run-1', *, steps: int = 0, **options: Any
    ) -> Worker:
        """A worker that has created its run and written some steps.

        `options` are as for `Worker.create`.
        """
        worker = self.worker(store, run_id)
        await worker.create(**options)
        for _ in range(steps):
            await worker.step()
        return worker
