"""Requests in Redis: what is written of them, and how they are found.

Those that are open over all runs are found without a look at the runs: `redis_waiting` has how. For
any other status all runs are gone through.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast, get_args

from redis.exceptions import ResponseError

from ..errors import DamagedRunError, StoreError
from ..requests import NewRequest, Request, RequestQuery, RequestStatus
from .redis_client import Call, Link
from .redis_errors import meaning
from .redis_find import Index, newest
from .redis_keys import Layout, RunKeys, json_of, micros, time_of
from .redis_waiting import Place, Waiting, id_of

__all__ = ('answered', 'asked_of', 'find_requests')

logger = logging.getLogger('graphkeep')

_STRETCH = 500
"""Most requests, or runs, that the server looks at in one go."""
_OPEN_STRETCH = 1_000
"""The same of open requests, which take it less time."""
_REPLY_BYTES = 16_000_000
"""Bytes of a reply after which the server gives no more than the ids of requests."""
_STATUSES = frozenset(get_args(RequestStatus))

_Wanted = dict[str, list[str] | None]
"""Requests of runs; `None` for all of a run."""


class _Found(NamedTuple):
    place: Place
    request: Request | None
    """`None` where its parts have to be asked for."""


# --- what is written -----------------------------------------------------------------------------


def asked_of(new: NewRequest) -> str:
    """What stays the same of a request, but for payload and schema. The name is the first."""
    return json_of([new.name, new.node, new.task, new.prompt])


# --- finding -------------------------------------------------------------------------------------


async def find_requests(link: Link, layout: Layout, query: RequestQuery) -> list[Request]:
    """The requests that match, longest waiting first.

    Raises:
        DamagedRunError: One of the run that is asked for cannot be read. Over all runs, it is left
            out with a warning.
    """
    if query.run_id is not None:
        return await _of_run(link, layout, query, query.run_id)
    if query.status == ('open',):
        return await _open(link, layout, query)
    return await _of_all(link, layout, query)


async def _of_run(link: Link, layout: Layout, query: RequestQuery, run_id: str) -> list[Request]:
    ids = None if query.request_id is None else [query.request_id]
    looked = await _look(link, layout, query, {run_id: ids}, strict=True)
    return await _whole(link, layout, query, _first(looked, query), strict=True)


async def _open(link: Link, layout: Layout, query: RequestQuery) -> list[Request]:
    filtered = query.labels or query.graph is not None or query.name is not None
    if filtered or query.request_id is not None or query.unused or query.limit is None:
        stretch = _OPEN_STRETCH
    else:
        # What no filter can turn away need not be fetched in stock.
        stretch = min(_OPEN_STRETCH, query.limit)
    waiting = Waiting(
        link,
        layout,
        after=None if query.after is None else (micros(query.after[0]), *query.after[1:]),
        before=query.created_before,
        stretch=stretch,
    )
    asked, begins = _query_of(query) if filtered else ('', '')
    found: list[Request] = []
    async for taken in waiting.stretches():
        places = [p for p in taken if query.request_id in (None, p[1][2])]
        texts = await waiting.texts(places, asked, begins)
        there: dict[Place, Request] = {}
        wanted: _Wanted = {}
        for (_, place), text in zip(places, texts, strict=True):
            if text == b'':
                continue
            request = None if text is None else _listed(place, text)
            if request is None:
                # Changed meanwhile, too long to be held twice, or lost: its run says.
                _add(wanted, place)
            elif not query.unused or request.closed_at is None:
                there[place] = request
        if wanted:
            looked = await _look(link, layout, query, wanted)
            for request in await _whole(link, layout, query, _first(looked, query)):
                there[micros(request.created_at), request.run_id, request.request_id] = request
        found += [there[place] for place in sorted(there)]
        if query.limit is not None and len(found) >= query.limit:
            return found[: query.limit]
    return found


async def _of_all(link: Link, layout: Layout, query: RequestQuery) -> list[Request]:
    indexes = [Index(link, key) for key in layout.buckets_of('created')]
    found: list[_Found] = []
    while not all(index.empty for index in indexes):
        await asyncio.gather(*(index.refill() for index in indexes))
        wanted: _Wanted = dict.fromkeys(run_id for _, run_id in newest(indexes, _STRETCH))
        # Only what they are: which of them are given is known when all have been seen.
        looked = await _look(link, layout, query, wanted, size=0)
        found = _first(found + looked, query)
    return await _whole(link, layout, query, found)


def _first(found: Sequence[_Found], query: RequestQuery) -> list[_Found]:
    """Those of them that are given, in order."""
    ids = query.request_id
    kept = [f for f in found if ids is None or f.place[2] == ids]
    if query.after is not None:
        after = (micros(query.after[0]), *query.after[1:])
        kept = [f for f in kept if f.place > after]
    kept.sort(key=lambda f: f.place)
    return kept if query.limit is None else kept[: query.limit]


async def _look(
    link: Link,
    layout: Layout,
    query: RequestQuery,
    wanted: _Wanted,
    *,
    size: int | None = None,
    strict: bool = False,
) -> list[_Found]:
    """Those of these requests that match."""
    size = _REPLY_BYTES if size is None else size
    asked, begins = _query_of(query)
    buckets: dict[bytes, list[tuple[str, RunKeys]]] = {}
    for run_id in wanted:
        keys = layout.keys(run_id)
        buckets.setdefault(keys.tag, []).append((run_id, keys))

    async def look(bucket: list[tuple[str, RunKeys]]) -> list[_Found]:
        where: list[bytes] = []
        args: list[bytes | str | int] = [asked, begins, size]
        for position, (run_id, keys) in enumerate(bucket, 1):
            where += (keys.run, keys.requests)
            for request_id in wanted[run_id] or ():
                args += (position, id_of(request_id))
        reply = await link.call('requests', Call(keys=where, args=args))
        run_ids = [run_id for run_id, _ in bucket]
        return list(_read(run_ids, reply, where=link.where, strict=strict))

    looked = await asyncio.gather(*(look(bucket) for bucket in buckets.values()))
    return [found for part in looked for found in part]


async def _whole(
    link: Link,
    layout: Layout,
    query: RequestQuery,
    found: Sequence[_Found],
    *,
    strict: bool = False,
) -> list[Request]:
    """The requests of which some only the place is known: those that match still."""
    there = {f.place: f.request for f in found if f.request is not None}
    rest = [f.place for f in found if f.request is None]
    while rest:
        wanted: _Wanted = {}
        for place in rest[:_STRETCH]:
            _add(wanted, place)
        looked = await _look(link, layout, query, wanted, strict=strict)
        there |= {f.place: f.request for f in looked if f.request is not None}
        # Where the reply was full, what is left is asked for again.
        left = {f.place for f in looked if f.request is None}
        rest = [place for place in rest[:_STRETCH] if place in left] + rest[_STRETCH:]
    return [there[f.place] for f in found if f.place in there]


def _add(wanted: _Wanted, place: Place) -> None:
    ids = wanted.setdefault(place[1], [])
    assert ids is not None
    ids.append(place[2])


def _query_of(query: RequestQuery) -> tuple[str, str]:
    """A query as `requests.lua` takes it."""
    asked: dict[str, object] = {}
    if query.graph is not None:
        asked['graph'] = query.graph
    if query.labels:
        asked['labels'] = dict(query.labels)
    if query.status:
        asked['status'] = dict.fromkeys(query.status, True)
    if query.unused:
        asked['unused'] = True
    if query.created_before is not None:
        asked['before'] = str(micros(query.created_before))
    if query.after is not None:
        asked['from'] = str(micros(query.after[0]))
    begins = '' if query.name is None else f'[{json_of(query.name)},'
    return json_of(asked), begins


# --- what is read --------------------------------------------------------------------------------


def answered(run_id: str, reply: Sequence[bytes], *, where: str) -> Request:
    """The request in the reply of `answer.lua`.

    Raises:
        DamagedRunError: It cannot be read.
    """
    [(_, request)] = _read([run_id], reply, where=where, strict=True)
    assert request is not None
    return request


def _read(
    run_ids: Sequence[str], reply: Sequence[bytes], *, where: str, strict: bool
) -> Iterator[_Found]:
    """The requests in a reply that `shown.lua` made."""
    lines, data = reply
    at = 0
    for line in lines.splitlines():
        position, status, *rest = line.decode().split(' ')
        parts: list[bytes | None] = []
        for size in rest[4:]:
            parts.append(None if size == '-' else data[at : at + int(size)])
            at += 0 if size == '-' else int(size)
        run_id = run_ids[int(position) - 1]
        damage: StoreError | DamagedRunError
        try:
            found = _found(run_id, status, rest[:4], parts)
        except ResponseError as e:
            damage = meaning(e, where=where, writes=False)
        except (ValueError, TypeError, OverflowError) as e:
            name = (parts[0] or b'').decode(errors='replace')
            reason = f'its request {name!r} has {e}'
            damage = DamagedRunError(run_id=run_id, seq=None, reason=reason)
        else:
            yield found
            continue
        if strict:
            raise damage
        # What is damaged does not hide the others.
        logger.warning('left out of a list of requests: %s', damage)


def _found(run_id: str, status: str, times: Sequence[str], parts: Sequence[bytes | None]) -> _Found:
    name = parts[0] or b''
    if status == 'unreadable':
        raise ResponseError(name.decode(errors='replace'))
    if status not in _STATUSES:
        raise ValueError('no state')
    place = int(times[0]), run_id, name.decode('utf-8', 'surrogatepass')
    if len(parts) == 1:
        return _Found(place, None)
    return _Found(place, _request_of(place, status, times, parts[1:]))


def _listed(place: Place, text: bytes) -> Request | None:
    """The request in a text that `put_open` of `request.lua` made; `None` if it cannot be read."""
    at = text.find(b'\n')
    try:
        graph_size, labels_size, *times, asked, payload, schema, error = (
            text[:at].decode().split(' ')
        )
        parts: list[bytes | None] = []
        at += 1
        for size in (graph_size, labels_size, asked, payload, schema, error):
            if size == '-':
                parts.append(None)
            else:
                end = at + int(size)
                parts.append(text[at:end])
                at = end
        if at != len(text):
            return None
        created_at, deadline, closed_at = times
        times = created_at, deadline, '-', closed_at
        graph, labels, asked, payload, schema, error = parts
        return _request_of(
            place, 'open', times, (asked, payload, schema, None, None, error, graph, labels)
        )
    except (ValueError, TypeError, OverflowError):
        return None


def _request_of(
    place: Place, status: str, times: Sequence[str], parts: Sequence[bytes | None]
) -> Request:
    asked, payload, schema, answer, by, error, graph, labels = parts
    if asked is None or payload is None or schema is None:
        raise ValueError('not all of its fields')
    name, node, task, prompt = json.loads(asked.decode())
    created_at, deadline, answered_at, closed_at = [
        None if time == '-' else time_of(int(time)) for time in times
    ]
    assert created_at is not None
    found: Any = {} if labels is None else json.loads(labels.decode())
    if not isinstance(found, dict):
        raise TypeError(f'{found!r} for labels')
    return Request(
        run_id=place[1],
        request_id=place[2],
        name=name,
        node=node,
        task=task,
        status=cast('RequestStatus', status),
        prompt=prompt,
        payload_json=payload,
        schema_json=schema,
        deadline=deadline,
        created_at=created_at,
        answer_json=answer,
        answered_by=None if by is None else by.decode(),
        answered_at=answered_at,
        closed_at=closed_at,
        error=None if error is None else json.loads(error.decode()),
        graph=None if graph is None else graph.decode(),
        labels=cast('dict[str, str]', found),
    )
