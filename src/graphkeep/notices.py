"""Who waits, in this process, for a run to be answered or to be moved on by somebody else.

Where the database tells of answers, its word wakes them; everywhere they also look for themselves
from time to time, so a word that was lost costs seconds, not an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .port import Port

__all__ = ('Notices',)

logger = logging.getLogger('graphkeep')

_AGAIN = 1.0
"""Seconds after which a watch that failed is begun again."""
_LOOK = 5.0
"""Seconds between two looks where the database tells of answers."""
_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
"""Seconds between two looks where it does not: they grow."""


class Notices:
    """Wakes those who wait, in one task that lives while there are any."""

    def __init__(self, store: Port) -> None:
        self._store = store
        self._waiting: dict[str | None, set[asyncio.Event]] = {}
        self._watch: asyncio.Task[None] | None = None
        self.watched = False
        """Whether the database tells of answers just now."""

    @property
    def watching(self) -> bool:
        """Whether the database is asked to tell of answers."""
        return self._watch is not None and not self._watch.done()

    def heard(self, run_id: str | None) -> None:
        """A run was answered, or (`None`) any may have been."""
        for key in (run_id, None) if run_id is not None else tuple(self._waiting):
            for event in self._waiting.get(key, ()):
                event.set()

    @contextmanager
    def listening(self, run_id: str | None) -> Generator[asyncio.Event]:
        """An event that is set when a run (`None`: any run) may have been answered."""
        event = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(event)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(
                self._keep_watch(), name='graphkeep-notices'
            )
        try:
            yield event
        finally:
            events = self._waiting[run_id]
            events.discard(event)
            if not events:
                del self._waiting[run_id]
            if not self._waiting:
                self._unwatch()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    async def pause(self, event: asyncio.Event, *, looks: int, most: float | None = None) -> None:
        """Wait for a word, or until it is time to look.

        Args:
            event: From `listening`. It is cleared.
            looks: How often was looked before without finding anything.
            most: Seconds to wait at most, by this machine's clock. When they have passed and the
                database's clock is behind, it is asked again and again, but not without a pause.
        """
        seconds = _LOOK if self.watched else min(_FIRST_LOOK * 2 ** min(looks, 10), _LAST_LOOK)
        if most is not None:
            seconds = min(seconds, most if most > 0 else 0.2 if looks else 0.01)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        event.clear()

    async def close(self) -> None:
        """End the task, and wake whoever waits: the next look finds the store closed."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait((watch,))
        self.watched = False
        self.heard(None)

    async def _keep_watch(self) -> None:
        try:
            while True:
                told = _Told(self)
                try:
                    await self._store.watch(told)
                    return
                except Exception as e:  # noqa: BLE001 - who waits looks for himself meanwhile
                    logger.debug('cannot hear of answers just now: %s', e)
                finally:
                    told.ended = True
                self.watched = False
                self.heard(None)
                await asyncio.sleep(_AGAIN)
        finally:
            self.watched = False


class _Told:
    """What a watch tells; what it still says when it has ended does not count."""

    __slots__ = ('_notices', 'ended')

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self.ended = False

    def __call__(self, run_id: str | None) -> None:
        if not self.ended:
            self._notices.watched = True
            self._notices.heard(run_id)
