"""Finding runs: the newest of every index are taken in turn, and their headers compared.

Both are done by the server and a stretch at a time, so that it is never busy for long, however many
runs there are.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence

from ..runs import Run, RunQuery
from .redis_client import Call, Link
from .redis_keys import HeaderError, Layout, json_of, micros, query_of, read_header

__all__ = ('Index', 'find', 'find_candidates', 'newest')

logger = logging.getLogger('graphkeep')

_STRETCH = 500
"""Most headers that the server looks at in one go: about two milliseconds."""

_Place = tuple[int, str]
"""Where a run stands in an index: when it was created, and its id. The greater one is the newer."""


async def find(link: Link, layout: Layout, query: RunQuery) -> list[Run]:
    """The runs that match, newest first."""
    before = None if query.after is None else (micros(query.after[0]), query.after[1])
    keys = layout.indexes(query.status)
    # What no filter can turn away need not be fetched in stock.
    stretch = min(_STRETCH, query.limit) if _only_status(query) else _STRETCH
    page = min(stretch, 2 * stretch // len(keys) + 10)
    indexes = [Index(link, key, before=before, page=page) for key in keys]
    found: list[Run] = []
    seen: set[_Place] = set()
    while len(found) < query.limit:
        await asyncio.gather(*(index.refill() for index in indexes))
        places = [place for place in newest(indexes, stretch) if place not in seen]
        # A run that changes its status while we look may stand in two of them.
        seen.update(places)
        if places:
            found += await _matching(link, layout, query, places, limit=query.limit - len(found))
        elif all(index.empty for index in indexes):
            break
    return found


def _only_status(query: RunQuery) -> bool:
    others = (query.graph, query.interrupted, query.parent_run_id, query.updated_before)
    return all(value is None for value in others) and not query.labels


class Index:
    """The rest of one index of runs, of which the next few are here."""

    __slots__ = ('_before', '_ended', '_highest', '_key', '_link', '_page', 'waiting')

    def __init__(
        self,
        link: Link,
        key: bytes,
        *,
        before: _Place | None = None,
        highest: str = '+inf',
        page: int = _STRETCH,
    ) -> None:
        self._link = link
        self._key = key
        self._before = before
        self._highest = highest
        self._page = page
        self._ended = False
        self.waiting: deque[_Place] = deque()

    @property
    def empty(self) -> bool:
        """Whether there is nothing left."""
        return self._ended and not self.waiting

    async def refill(self) -> None:
        """Fetch the next few, if none are here."""
        page = self._page
        while not self.waiting and not self._ended:
            highest = self._highest if self._before is None else self._before[0]
            call = Call(keys=(self._key,), args=(highest, page))
            reply: list[str] = json.loads(await self._link.call('listing', call))
            places = [
                (int(created_at), run_id)
                for run_id, created_at in zip(reply[::2], reply[1::2], strict=True)
            ]
            self._ended = len(places) < page
            self.waiting.extend(p for p in places if self._before is None or p < self._before)
            # More runs of one microsecond than a page holds.
            page *= 2
        if self.waiting:
            self._before = self.waiting[-1]


def newest(indexes: Sequence[Index], count: int) -> list[_Place]:
    """Take the newest of all indexes, up to where one of them has to be filled again."""
    heap = [(_Newest(index.waiting[0]), index) for index in indexes if index.waiting]
    heapq.heapify(heap)
    taken: list[_Place] = []
    while heap and len(taken) < count:
        _, index = heap[0]
        taken.append(index.waiting.popleft())
        if index.waiting:
            heapq.heapreplace(heap, (_Newest(index.waiting[0]), index))
        elif index.empty:
            heapq.heappop(heap)
        else:
            break
    return taken


class _Newest:
    """A place whose order is turned round, for a heap."""

    __slots__ = ('place',)

    def __init__(self, place: _Place) -> None:
        self.place = place

    def __lt__(self, other: _Newest) -> bool:
        return self.place > other.place


async def _matching(
    link: Link, layout: Layout, query: RunQuery, places: Sequence[_Place], *, limit: int
) -> list[Run]:
    """Those of the runs that match, in the same order."""
    wanted = query_of(query)
    buckets: dict[bytes, list[tuple[int, bytes]]] = {}
    for position, (_, run_id) in enumerate(places):
        keys = layout.keys(run_id)
        buckets.setdefault(keys.tag, []).append((position, keys.run))

    async def ask(bucket: list[tuple[int, bytes]]) -> dict[int, Run]:
        call = Call(keys=[run for _, run in bucket], args=(wanted, limit))
        run_ids = [places[position][1] for position, _ in bucket]
        read = _readable(run_ids, await link.call('match', call))
        return {bucket[number][0]: run for number, run in read}

    found: dict[int, Run] = {}
    for matching in await asyncio.gather(*(ask(bucket) for bucket in buckets.values())):
        found |= matching
    return [found[position] for position in sorted(found)][:limit]


def _readable(run_ids: Sequence[str], reply: bytes) -> Iterator[tuple[int, Run]]:
    """The runs in a reply, each with its position among those that were asked for."""
    for line in reply.splitlines():
        position, _, header = line.partition(b' ')
        number = int(position) - 1
        try:
            yield number, read_header(run_ids[number], header)
        except HeaderError as e:
            # One that is damaged does not hide the others.
            logger.warning(
                'the header of run %r is damaged, it is left out: %s', run_ids[number], e
            )


# --- runs that can be claimed --------------------------------------------------------------------


async def find_candidates(
    link: Link, layout: Layout, graphs: Sequence[str], limit: int
) -> list[Run]:
    """Runs of these graphs that can be claimed, longest untouched first.

    There is no index of that order, for every commit would have to write it: all that are `ready`
    or `running` are looked at, and those whose `wake_at` has passed. Those that wait are not.
    """
    if not graphs:
        return []
    indexes = [
        *(Index(link, key) for key in layout.indexes(('ready', 'running'))),
        *(Index(link, key, highest='now') for key in layout.buckets_of('wake')),
    ]
    wanted = json_of(dict.fromkeys(graphs, True))
    found: dict[str, Run] = {}
    while not all(index.empty for index in indexes):
        await asyncio.gather(*(index.refill() for index in indexes))
        buckets: dict[bytes, dict[str, bytes]] = {}
        for _, run_id in newest(indexes, _STRETCH):
            keys = layout.keys(run_id)
            buckets.setdefault(keys.tag, {})[run_id] = keys.run
        calls = [Call(keys=list(b.values()), args=(wanted, limit)) for b in buckets.values()]
        replies = await asyncio.gather(*(link.call('candidates', call) for call in calls))
        for bucket, reply in zip(buckets.values(), replies, strict=True):
            found |= {run.run_id: run for _, run in _readable(list(bucket), reply)}
        first = sorted((run.updated_at, run_id) for run_id, run in found.items())
        found = {run_id: found[run_id] for _, run_id in first[:limit]}
    return list(found.values())
