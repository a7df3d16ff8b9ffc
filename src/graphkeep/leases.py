"""The claims this process holds: renewed while their step runs, given up when idle.

A lease says that the owner's event loop turns, nothing more: a step that blocks the loop for longer
than the lease loses the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from .runs import Claim
from .shielding import Ending, ending_of

if TYPE_CHECKING:
    from .port import Port

__all__ = ('Lease', 'LeaseKeeper', 'claiming', 'idle_holder', 'is_held', 'runs_step')

logger = logging.getLogger('graphkeep')

IDLE_AFTER = 1.0
"""Seconds without a running step after which a claim is given up."""
TICK = 0.25
"""Seconds between two looks at the leases."""


class Lease:
    """One claim of this process, as its journal and the keeper see it."""

    __slots__ = (
        '__weakref__',
        'busy',
        'claim',
        'fresh',
        'idle_since',
        'renewed_at',
        'valid',
        'writing',
    )

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.valid = True
        """`False` once it was given up, taken over or lost."""
        self.fresh = False
        """Who claimed has not been told yet, and is about to run a step: this is not idle."""
        self.busy = False
        """A step is running under it."""
        self.writing = False
        """A commit is in flight under it: that renews it, and a renewal beside it would only wait
        for its row.
        """
        self.idle_since = self.renewed_at = monotonic()


_held: WeakValueDictionary[tuple[str, int], Lease] = WeakValueDictionary()
"""Every valid lease of this process, whatever its store, by run id and epoch."""
_claiming: Counter[str] = Counter()
"""Runs that a call of this process is claiming right now."""


@contextmanager
def claiming(run_id: str) -> Generator[None]:
    """Around a claim and its `hold`: in between, the database knows an owner that `_held` does
    not.
    """
    _claiming[run_id] += 1
    try:
        yield
    finally:
        _claiming[run_id] -= 1
        if not _claiming[run_id]:
            del _claiming[run_id]


def idle_holder(run_id: str, epoch: int) -> bool:
    """Whether the claim that this process has on a run is held by nobody, or by a handle that runs
    no step.

    If so, the handle's lease is ended here: the caller is about to take the run over.
    """
    lease = _held.get((run_id, epoch))
    if lease is None:
        return _claiming[run_id] <= 1
    if lease.fresh or lease.busy or lease.writing:
        return False
    lease.valid = False
    return True


def is_held(run_id: str, epoch: int) -> bool:
    """Whether a handle of this process has this claim, or is just getting one on the run."""
    return (run_id, epoch) in _held or _claiming[run_id] > 0


def runs_step(run_id: str, epoch: int) -> bool:
    """Whether the claim that this process has on a run is one under which a step runs."""
    lease = _held.get((run_id, epoch))
    return lease is not None and (lease.busy or lease.writing)


class LeaseKeeper:
    """Looks after the leases of one store, in one task that lives while there are any."""

    def __init__(self, store: Port) -> None:
        self._store = store
        self._leases: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()

    def hold(self, claim: Claim) -> Lease:
        """Look after a claim that was just got."""
        lease = Lease(claim)
        _held[claim.run_id, claim.epoch] = lease
        self._leases.add(lease)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._tick(), name='graphkeep-leases'
            )
        return lease

    def drop(self, lease: Lease) -> None:
        """Stop looking after a lease that has ended."""
        lease.valid = False
        self._leases.discard(lease)
        _held.pop((lease.claim.run_id, lease.claim.epoch), None)

    async def give_up(self, lease: Lease) -> Ending[None]:
        """End a lease and its claim in the database, to the end whatever happens to the caller."""
        if not lease.valid:
            self.drop(lease)
            return Ending()
        self.drop(lease)
        release = asyncio.ensure_future(self._store.release(lease.claim))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        return await ending_of(release, bound=self._store.retry + 5.0)

    async def close(self) -> None:
        """Give up every claim, also those that others are giving up just now, and end the task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        leases = tuple(self._leases)
        for lease in leases:
            self.drop(lease)
        await asyncio.gather(
            *(self._store.release(lease.claim) for lease in leases),
            *self._releases,
            return_exceptions=True,
        )

    async def _tick(self) -> None:
        while self._leases:
            await asyncio.sleep(min(TICK, self._store.heartbeat / 2))
            now = monotonic()
            due: list[Lease] = []
            idle: list[Lease] = []
            for lease in tuple(self._leases):
                if not lease.valid:
                    self.drop(lease)
                elif lease.writing:
                    continue
                elif lease.busy:
                    if now - lease.renewed_at >= self._store.heartbeat:
                        due.append(lease)
                elif now - lease.idle_since >= IDLE_AFTER:
                    idle.append(lease)
            if due:
                await self._renew(due)
            for lease in idle:
                # A step may have begun while the others were written.
                if lease.valid and not lease.busy and not lease.writing:
                    ending = await self.give_up(lease)
                    if ending.error is not None:
                        logger.warning(
                            'could not give up the claim on run %r: %s',
                            lease.claim.run_id,
                            ending.error,
                        )
                    if ending.cancelled is not None:
                        raise ending.cancelled

    async def _renew(self, leases: list[Lease]) -> None:
        started = monotonic()
        try:
            results = await self._store.renew([lease.claim for lease in leases])
        except Exception as e:  # noqa: BLE001 - the task must live on
            # The next tick tries again; if the lease passes meanwhile, the fence at the commit
            # tells.
            logger.warning('could not renew %d claims: %s', len(leases), e)
            return
        for lease, error in zip(leases, results, strict=True):
            if error is None:
                lease.renewed_at = started
            elif lease.valid and not lease.writing:
                # Otherwise a commit has ended the claim meanwhile, or will say how it stands.
                logger.warning('%s', error)
                self.drop(lease)
