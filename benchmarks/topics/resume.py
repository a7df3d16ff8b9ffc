"""Reading a long run, against reading and validating its final document once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from pydantic_graph.graph import Graph

from benchmarks import bare
from benchmarks.bench import NAMES, Bench
from benchmarks.classic_graphs import (
    Counter,
    Kept,
    Page,
    Talk,
    Tick,
    Write,
    counters,
    kept_talks,
    pages,
)
from benchmarks.counting import sqlite_path
from benchmarks.report import Line, at_most, ms, ratio
from benchmarks.timing import in_turns, one_by_one
from graphkeep import Store, open_store

__all__ = ('measure',)

_DELTA = 5e-6
"""What reading one more delta may cost, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A long run."""

    what: str
    graph: Graph[Any, Any, Any]
    node: Any
    state: Any
    deps: Any


async def measure(bench: Bench) -> list[Line]:
    messages: list[Line] = []
    others: list[Line] = []
    steps = bench.n(5_000, 200)
    for name, url in bench.stores('sqlite', 'postgres', 'redis').items():
        async with open_store(_unsynced(name, url)) as store:
            for case in _cases(steps):
                found = await _compare(bench, name, url, store, case, steps)
                what = f'{NAMES[name]}: {steps:,} steps, {case.what}'
                if case.graph is kept_talks:
                    load, target = found['load'], at_most(2)
                    line = ratio(what, found['resume'], load, of=_OF, show=ms, target=target)
                    messages.append(line)
                else:
                    others.append(_per_delta(what, found))
    return messages + others


def _cases(steps: int) -> list[_Case]:
    return [
        _Case(
            what=f'{2 * steps:,} ModelMessages',
            graph=kept_talks,
            node=Talk(steps),
            state=Kept([]),
            deps=[],
        ),
        _Case(
            what='a line more each',
            graph=pages,
            node=Write(steps),
            state=Page(),
            deps=None,
        ),
        _Case(
            what='a counter in 20 kB',
            graph=counters,
            node=Tick(steps),
            state=Counter(customer='x' * 20_000),
            deps=[],
        ),
    ]


_OF = 'final document'


def _unsynced(name: str, url: str) -> str:
    """How a run is written does not matter for how it is read: quickly."""
    options = {'sqlite': '?synchronous=NORMAL', 'postgres': '?synchronous_commit=off'}
    return url + options.get(name, '')


def _per_delta(what: str, found: dict[str, float]) -> Line:
    more, deltas = found['resume'] - found['fork'], found['deltas']
    return Line(
        what=f'{what}, {deltas:,.0f} deltas read',
        measured=ms(found['resume']),
        baseline=f'{ms(found["fork"])}  its fork: one snapshot',
        figure=more * 1e6 / max(deltas, 1),
        unit='µs a delta',
        target=at_most(_DELTA * 1e6, 'µs'),
        raw=found,
    )


async def _compare(
    bench: Bench, name: str, url: str, store: Store, case: _Case, steps: int
) -> dict[str, float]:
    run_id = f'run-{bench.number()}'
    graph, kept = case.graph, store.persistence(run_id)
    async with graph.iter(case.node, state=case.state, deps=case.deps, persistence=kept) as run:
        for _ in range(steps - 1):
            await run.next()
    del run
    header = await store.run(run_id)
    document = await store.document(run_id)
    assert isinstance(document.state, dict)
    whole = document.to_json()
    adapter = TypeAdapter(graph.inferred_types[0])

    await store.fork(run_id, new_run_id=f'{run_id}-fork')

    async def resume(run_id: str) -> None:
        handle = store.persistence(run_id)
        async with graph.iter_from_persistence(handle, deps=case.deps) as again:
            assert again.state is not None

    async with _loading(bench, name, url, whole) as read:

        async def load() -> None:
            data: Any = await read()
            # The state stands right behind the format; the rest is one small task.
            adapter.validate_json(_state_of(data))

        found = await in_turns(
            {
                'resume': one_by_one(partial(resume, run_id)),
                'fork': one_by_one(partial(resume, f'{run_id}-fork')),
                'load': one_by_one(load),
            },
            rounds=bench.n(5, 1),
            each=1,
        )
    return {**found, 'deltas': float(header.seq - header.full_seq)}


def _state_of(document: bytes) -> bytes:
    """The state in the text of a document."""
    start = len(b'{"format":1,"state":')
    return document[start : document.rindex(b',"tasks":')]


@asynccontextmanager
async def _loading(
    bench: Bench, name: str, url: str, document: bytes
) -> AsyncGenerator[bare.Write]:
    """Reads one document by hand from the same kind of database."""
    if name == 'sqlite':
        path = f'{sqlite_path(url)}-{bench.number()}-document'
        with ThreadPoolExecutor(1) as thread:
            in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
            connection = await in_thread(_one_row, path, document)
            sql = 'SELECT CAST(data AS BLOB) FROM bare'
            try:
                yield lambda: in_thread(lambda: connection.execute(sql).fetchone()[0])
            finally:
                await in_thread(connection.close)
    elif name == 'postgres':
        import asyncpg

        database: Any = await asyncpg.connect(url)
        try:
            await database.execute('DROP TABLE IF EXISTS bare; CREATE TABLE bare (data json)')
            await database.execute('INSERT INTO bare VALUES ($1)', document.decode())

            async def fetch() -> bytes:
                text = await database.fetchval('SELECT data FROM bare')
                return text.encode()

            yield fetch
        finally:
            await database.close()
    else:
        from redis.asyncio import Redis

        client = Redis.from_url(url)
        try:
            await client.set('document', document)
            yield lambda: client.get('document')
        finally:
            await client.aclose()


def _one_row(path: str, document: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE bare (data TEXT)')
    connection.execute('INSERT INTO bare VALUES (CAST(? AS TEXT))', (document,))
    connection.commit()
    return connection
