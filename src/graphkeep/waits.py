"""What a run waits for, as far as this process knows: which tasks its open requests hold up."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from .errors import RunBusyError, RunPausedError, StoreError, StoreUnavailableError
from .hooks import not_claimable
from .journal import check_not_held
from .requests import NewRequest, Request, RequestQuery, RequestStatus
from .tasks import Task, request_id_of

if TYPE_CHECKING:
    from .runs import Run
    from .store import Store

__all__ = (
    'OnPause',
    'Waits',
    'check_on_pause',
    'paused_error',
    'wait_while_paused',
)

logger = logging.getLogger('graphkeep')


class Waits:
    """The requests of one run whose tasks have not ended.

    `known` is a mapping that stays the same object: running steps look into it.
    """

    __slots__ = ('_store', 'answered', 'known', 'run_id')

    def __init__(self, store: Store, run_id: str, *, answered: int) -> None:
        """Know nothing yet.

        Args:
            store: Where the run is.
            run_id: The run.
            answered: Of the header, as it was read before the requests are.
        """
        self._store = store
        self.run_id = run_id
        self.answered = answered
        """How many answers there were before `known` was read: it has these, and maybe more."""
        self.known: dict[str, Request] = {}

    async def load(self, tasks: Iterable[Task]) -> None:
        """Read the requests, if one of these tasks has ever waited."""
        if any(task.waits for task in tasks):
            await self._read()

    async def _read(self) -> None:
        query = RequestQuery(run_id=self.run_id, unused=True, limit=None)
        found, now = await self._store.find_requests(query), datetime.now(tz=UTC)
        if any(r.status == 'open' and r.deadline is not None and r.deadline <= now for r in found):
            # Decided by the database alone: an answer that comes now is either in time or refused.
            await self._store.expire(self.run_id)
            found = await self._store.find_requests(query)
        self.known.clear()
        self.known.update((request.request_id, request) for request in found)

    async def look(self) -> bool:
        """Whether anything was answered or has expired since the last look; if so, read it."""
        due, before = self.seconds_left, self._statuses
        run = await self._store.run(self.run_id)
        if run.answered <= self.answered and (due is None or due > 0):
            return False
        await self._read()
        self.answered = run.answered
        return self._statuses != before

    @property
    def _statuses(self) -> dict[str, RequestStatus]:
        return {request_id: request.status for request_id, request in self.known.items()}

    async def looked(self) -> bool:
        """As `look`; what cannot be asked just now is asked again later."""
        try:
            return await self.look()
        except StoreError as e:
            logger.debug('could not look for answers of run %r: %s', self.run_id, e)
            return False

    def holds(self, task: Task) -> bool:
        """Whether a task waits for a request that is open.

        One that is not known holds nothing: the fork of a run asks anew.
        """
        return any(self._is_open(request_id_of(task.id, name)) for name in task.waits)

    def _is_open(self, request_id: str) -> bool:
        request = self.known.get(request_id)
        return request is not None and request.status == 'open'

    def of(self, task_id: str) -> list[str]:
        """The requests of a task."""
        return [r.request_id for r in self.known.values() if r.task == task_id]

    @property
    def any_open(self) -> bool:
        """Whether anything is open."""
        return any(request.status == 'open' for request in self.known.values())

    @property
    def wake_at(self) -> datetime | None:
        """The first deadline of what is open."""
        found = (r.deadline for r in self.known.values() if r.status == 'open')
        return min((deadline for deadline in found if deadline is not None), default=None)

    @property
    def seconds_left(self) -> float | None:
        """Until that, by this machine's clock: the database has the last word."""
        wake_at = self.wake_at
        return None if wake_at is None else (wake_at - datetime.now(tz=UTC)).total_seconds()

    def pause(
        self, task: Task, asked: Mapping[str, NewRequest | None], used: Mapping[str, bytes]
    ) -> tuple[list[NewRequest], list[str]]:
        """Put into a task what its attempt waits for and has used.

        Returns:
            What to ask, and which requests are of no more use: the task itself has what they gave.
        """
        closes = [request_id_of(task.id, name) for name in used if name not in task.answers]
        task.waits, task.answers = tuple(asked), dict(used)
        asks = [new for new in asked.values() if new is not None]
        return asks, [request_id for request_id in closes if request_id in self.known]

    def written(self, asks: Iterable[NewRequest], closes: Iterable[str]) -> None:
        """A commit has asked and closed these. When exactly, only the database knows."""
        now = datetime.now(tz=UTC)
        for request_id in closes:
            self.known.pop(request_id, None)
        for new in asks:
            known = self.known.get(new.request_id)
            if known is not None:
                self.known[new.request_id] = new.opened_again(known)
                continue
            if new.timeout is not None and new.error is not None:
                # It has the deadline it had: the next look tells which.
                new = new._replace(timeout=0.0)
            self.known[new.request_id] = new.opened(self.run_id, at=now)


OnPause = Literal['raise', 'wait']
"""What to do when a run has paused."""


def check_on_pause(on_pause: object) -> None:
    """Refuse what is no `OnPause`. Raises `ValueError`."""
    if on_pause not in ('raise', 'wait'):
        raise ValueError(f"on_pause must be 'raise' or 'wait', got {on_pause!r}")


async def wait_while_paused(store: Store, run_id: str, *, has_run: bool = False) -> None:
    """Wait while a run is paused, or while somebody else who may be alive is running it.

    Args:
        store: Where the run is.
        run_id: The run.
        has_run: Whether it has run here: one that has failed since did so elsewhere.

    Raises:
        RunNotFoundError: It was deleted.
        RunStatusError: It has failed where it went on.
    """
    notices, looks = store.notices, 0
    with notices.listening(run_id) as event:
        while True:
            left = None
            try:
                run = await store.run(run_id)
            except StoreUnavailableError as e:
                # Who waits for days outlives an outage.
                logger.warning('cannot look whether run %r was answered: %s', run_id, e)
            else:
                if (looks or has_run) and run.status == 'failed':
                    raise not_claimable(run)
                if run.due or (run.status != 'paused' and not _elsewhere(run)):
                    return
                if run.wake_at is not None:
                    left = (run.wake_at - datetime.now(tz=UTC)).total_seconds()
            await notices.pause(event, looks=looks, most=left)
            looks += 1


def _elsewhere(run: Run) -> bool:
    try:
        check_not_held(run)
    except RunBusyError:
        return True
    return False


async def paused_error(store: Store, run_id: str) -> RunPausedError:
    """The error of a run that is paused: with what it waits for, oldest first."""
    requests = await store.find_requests(RequestQuery(run_id=run_id, status=('open',), limit=None))
    return RunPausedError(run_id=run_id, requests=requests)
