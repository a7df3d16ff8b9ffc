"""Open requests in Redis: their places come from the index of each bucket, and what a list shows of
them from the hash beside it.

The server is asked for a stretch at a time, and looks at no run.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from .redis_client import Call, Link
from .redis_keys import Layout, micros

__all__ = ('Place', 'Waiting', 'id_of')

Place = tuple[int, str, str]
"""Where a request stands in the order: when it was asked, its run, its id."""


def id_of(request_id: str) -> bytes:
    """A request id as it is stored. A foreign hand may have written any."""
    return request_id.encode('utf-8', 'surrogatepass')


class Waiting:
    """The open requests of all buckets, longest waiting first."""

    def __init__(
        self,
        link: Link,
        layout: Layout,
        *,
        after: Place | None,
        before: datetime | None,
        stretch: int,
    ) -> None:
        """Begin at a place.

        Args:
            link: The server.
            layout: Where the buckets are.
            after: Only requests after this place.
            before: Only requests that were asked before this aware datetime.
            stretch: Most of them at a time.
        """
        self._link = link
        self._stretch = stretch
        self._listed = layout.buckets_of('listed')
        keys = layout.buckets_of('open')
        highest = '+inf' if before is None else f'({micros(before)}'
        page = min(stretch, 2 * stretch // len(keys) + 10)
        self._indexes = [_Index(link, key, after=after, highest=highest, page=page) for key in keys]

    async def stretches(self) -> AsyncIterator[list[tuple[int, Place]]]:
        """The next few places, each with the bucket that it is in."""
        while True:
            await asyncio.gather(*(index.refill() for index in self._indexes))
            if taken := self._oldest():
                yield taken
            elif all(index.empty for index in self._indexes):
                return

    def _oldest(self) -> list[tuple[int, Place]]:
        """Take the oldest of all indexes, up to where one of them has to be filled again."""
        indexes = self._indexes
        heap = [(index.waiting[0], n) for n, index in enumerate(indexes) if index.waiting]
        heapq.heapify(heap)
        taken: list[tuple[int, Place]] = []
        while heap and len(taken) < self._stretch:
            place, n = heap[0]
            waiting = indexes[n].waiting
            waiting.popleft()
            taken.append((n, place))
            if waiting:
                heapq.heapreplace(heap, (waiting[0], n))
            elif indexes[n].empty:
                heapq.heappop(heap)
            else:
                break
        return taken

    async def texts(
        self, places: Sequence[tuple[int, Place]], query: str, begins: str
    ) -> list[bytes | None]:
        """What a list shows of them: `None` for what has to be looked for in its run, empty for
        what does not match.

        Args:
            places: Where the requests are.
            query: What is wanted, as `listed.lua` takes it; '' for all.
            begins: The beginning of what was asked.
        """
        buckets: dict[int, list[int]] = {}
        for position, (bucket, _) in enumerate(places):
            buckets.setdefault(bucket, []).append(position)
        found: list[bytes | None] = [None] * len(places)

        async def read(bucket: int, positions: Sequence[int]) -> None:
            names = [_member(places[position][1]) for position in positions]
            if not query:
                # The server's own command takes a fraction of what a script does.
                texts = await self._link.fields(self._listed[bucket], *names)
                for position, text in zip(positions, texts, strict=True):
                    found[position] = text or None
                return
            call = Call(keys=(self._listed[bucket],), args=(query, begins, *names))
            sizes, data = await self._link.call('listed', call)
            at = 0
            for position, size in zip(positions, sizes.split(), strict=True):
                if size != b'-':
                    end = at + int(size)
                    found[position] = data[at:end]
                    at = end

        await asyncio.gather(*(read(*bucket) for bucket in buckets.items()))
        return found


def _member(place: Place) -> bytes:
    return id_of(f'{place[1]}\0{place[2]}')


class _Index:
    """The rest of the open requests of one bucket, of which the next few are here."""

    __slots__ = ('_after', '_ended', '_highest', '_key', '_link', '_page', 'waiting')

    def __init__(
        self, link: Link, key: bytes, *, after: Place | None, highest: str, page: int
    ) -> None:
        self._link = link
        self._key = key
        self._after = after
        self._highest = highest
        self._page = page
        self._ended = False
        self.waiting: deque[Place] = deque()

    @property
    def empty(self) -> bool:
        """Whether there is nothing left."""
        return self._ended and not self.waiting

    async def refill(self) -> None:
        """Fetch the next few, if none are here."""
        page = self._page
        while not self.waiting and not self._ended:
            lowest = '-inf' if self._after is None else self._after[0]
            call = Call(keys=(self._key,), args=(lowest, self._highest, page))
            reply: bytes = await self._link.call('waiting', call)
            # A member that is not UTF-8 is not ours: as another one, it names no run.
            found: list[str] = json.loads(reply.decode(errors='replace'))
            self._ended = len(found) < 2 * page
            for member, created_at in zip(found[::2], found[1::2], strict=True):
                run_id, _, request_id = member.partition('\0')
                place = int(created_at), run_id, request_id
                if self._after is None or place > self._after:
                    self.waiting.append(place)
            # More requests of one microsecond than a page holds: one commit can ask a thousand.
            page *= 2
        if self.waiting:
            self._after = self.waiting[-1]
