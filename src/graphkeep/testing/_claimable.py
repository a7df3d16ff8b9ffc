"""Contract: which runs may be claimed, by whom, and why others may not."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest

from ..errors import RunBusyError, RunMovedError, RunStatusError
from ..runs import Status
from ..store import Store
from ._base import Contract
from ._calls import shape, take
from ._worker import Worker

__all__ = ('Claimable',)

Found = Literal['ready', 'running', 'interrupted', 'paused', 'failed', 'done', 'cancelled']
Known = Literal['nothing', 'right', 'wrong']

_FOUND: tuple[Found, ...] = (
    'ready',
    'running',
    'interrupted',
    'paused',
    'failed',
    'done',
    'cancelled',
)
_ALLOW: tuple[tuple[Status, ...], ...] = (
    (),
    ('ready',),
    ('failed',),
    ('running',),
    ('ready', 'failed', 'paused'),
    ('done', 'cancelled'),
)
_KNOWN: tuple[Known, ...] = ('nothing', 'right', 'wrong')


class Claimable(Contract):
    """Every status, with everything a claim may know and allow."""

    @pytest.mark.parametrize('found', _FOUND)
    async def test_what_may_be_claimed_and_why_not(self, found: Found) -> None:
        async with self.make_store() as store:
            refused: Worker | None = None
            for number, (allow, epoch, seq) in enumerate(product(_ALLOW, _KNOWN, _KNOWN)):
                case = f'{found} run, allow={allow}, {epoch} epoch, {seq} seq'
                worker = refused or await self._brought_to(found, store, f'run-{number}')
                run = await store.run(worker.run_id)
                call = take(
                    store,
                    worker.run_id,
                    owner=f'owner-{number}',
                    allow=allow,
                    expected_epoch={'nothing': None, 'right': run.epoch, 'wrong': run.epoch - 1}[
                        epoch
                    ],
                    expected_seq={'nothing': None, 'right': run.seq, 'wrong': run.seq + 1}[seq],
                )
                expected = _refusal(found, allow, epoch, seq)
                if expected is None:
                    claimed = await call
                    after = await store.run(worker.run_id)
                    assert claimed.run == after, case
                    assert after.epoch == run.epoch + 1, case
                    assert (after.status, after.owner) == ('running', f'owner-{number}'), case
                    assert (after.interrupted, after.seq) == (False, run.seq), case
                    assert shape(claimed.snapshots) == (
                        sorted(worker.kinds.items())[run.full_seq :] if seq == 'nothing' else []
                    ), case
                    refused = None
                    continue
                with pytest.raises(expected) as caught:
                    await call
                assert caught.type is expected, case
                assert await store.run(worker.run_id) == run, f'{case}: refused, but changed'
                refused = worker

    async def _brought_to(self, found: Found, store: Store, run_id: str) -> Worker:
        ttl = 0.0 if found == 'interrupted' else 30.0
        worker = Worker(store, run_id, ttl=ttl, always_full=self.always_full)
        await worker.create()
        await worker.step()
        if found not in ('running', 'interrupted'):
            await worker.ends_as(found)
        run = await store.run(run_id)
        assert run.status == ('running' if found == 'interrupted' else found)
        assert run.interrupted == (found == 'interrupted')
        return worker


def _refusal(
    found: Found, allow: tuple[Status, ...], epoch: Known, seq: Known
) -> type[Exception] | None:
    """What the port says of a claim."""
    if seq == 'wrong':
        return RunMovedError
    if found == 'interrupted':
        return None
    if found == 'running':
        return None if epoch == 'right' else RunBusyError
    return None if found in allow else RunStatusError
