"""What every release has stored is read, and goes on, in this one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis

import graphkeep
from graphkeep import Store
from graphkeep.builder import persist
from graphkeep.conversations import ConversationQuery

from . import talks
from .graphs import WORDS, Deps, Totals, asking, squares

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if path.is_dir() and path.name[0] == 'v')
CLASSIC = find_spec('pydantic_graph.persistence') is not None
CONVERSATIONS = find_spec('pydantic_ai') and find_spec('pydantic_ai.conversation_store')


def test_there_are_golden_files() -> None:
    assert {'v1', 'v2', 'v3'} <= set(RELEASES)


async def fill_postgres(url: str, stored: dict[str, list[dict[str, str | None]]]) -> None:
    async with graphkeep.open_store(url):
        pass  # sets the schema up, as it is now
    connection = await asyncpg.connect(url)
    try:
        for table, rows in stored.items():
            if table == 'graphkeep_meta':
                continue
            for row in rows:
                names = ', '.join(f'"{column.partition("::")[0]}"' for column in row)
                marks = ', '.join(
                    f'${n}::text::{column.partition("::")[2]}' for n, column in enumerate(row, 1)
                )
                await connection.execute(
                    f'INSERT INTO "{table}" ({names}) VALUES ({marks})', *row.values()
                )
    finally:
        await connection.close()


def fill_redis(url: str, stored: dict[str, Any]) -> None:
    def raw(text: str) -> bytes:
        return text.encode('utf-8', 'surrogateescape')

    client: Any = redis.Redis.from_url(url)
    try:
        for name, (kind, value) in stored.items():
            key = raw(name)
            if kind == 'hash':
                client.hset(key, mapping={raw(k): raw(v) for k, v in value.items()})
            elif kind == 'stream':
                for entry, fields in value:
                    client.xadd(key, {raw(k): raw(v) for k, v in fields}, id=entry)
            elif kind == 'zset':
                client.zadd(key, {raw(member): score for member, score in value})
            elif kind == 'set':
                client.sadd(key, *map(raw, value))
            else:
                client.set(key, raw(value))
    finally:
        client.close()


async def check(store: Store, release: str) -> None:
    """Everything a reader and a worker may want of the stored runs."""
    runs = {run.run_id: run for run in await store.runs()}
    version = 2 if 'asks' in runs else 1
    statuses = {
        'done': 'done',
        'left': 'ready',
        'failed': 'failed',
        'ready': 'ready',
        'forked': 'ready',
        'cancelled': 'cancelled',
        'in a map': 'failed',
    }
    if version > 1:
        statuses |= {'asks': 'paused', 'asks again': 'paused', 'answered': 'ready'}
    assert {name: run.status for name, run in runs.items()} == statuses
    assert runs['done'].labels == {'team': 'zwölf', 'quote': '"'}
    labelled = await store.runs(labels={'quote': '"'})
    assert [run.run_id for run in labelled] == ['forked', 'done']
    assert (runs['forked'].parent_run_id, runs['forked'].parent_seq) == ('done', 2)
    error = runs['failed'].error
    assert error is not None
    assert (error['type'], error['message']) == ('builtins.ValueError', WORDS[3])
    for name, run in runs.items():
        snapshots = await store.snapshots(name)
        assert [s.seq for s in snapshots] == list(range(run.seq + 1))
        await store.document(name)
    await go_on_with_builder(store)
    if version > 1:
        await go_on_with_requests(store)
    if CLASSIC:
        await go_on_with_nodes(store)
    conversations = await store.find_conversations(ConversationQuery())
    assert len(conversations) == (3 if release > 'v2' else 0)
    if conversations and CONVERSATIONS:
        await talks.check(store)


async def go_on_with_builder(store: Store) -> None:
    kept = persist(squares, max_parallel=1)
    output = await graphkeep.resume(kept, store.persistence('in a map'), deps=Deps())
    assert output == [1, 4, 9]
    state = kept._plan.state.decode((await store.document('in a map')).state)
    assert state == Totals(6)


async def go_on_with_requests(store: Store) -> None:
    kept = persist(asking)
    found = await store.requests(labels={'team': 'zwölf'}, status=())
    assert {(r.run_id, r.request_id): r.status for r in found} == {
        ('asks', '0:first'): 'open',
        ('asks again', '0:first'): 'answered',
        ('asks again', '0:request-1'): 'open',
        ('answered', '0:first'): 'answered',
        ('answered', '0:request-1'): 'answered',
    }
    first = await store.request('asks', '0:first')
    assert (first.prompt, first.payload) == (WORDS[3], {'words': WORDS[:3], 'amount': 12})
    assert (first.name, first.node, first.graph) == ('first', 'ask', 'asking')
    used = await store.request('asks again', '0:first')
    assert (used.answer, used.answered_by) == ('12.50', 'zoë')
    assert used.closed_at is not None
    waiting = await store.run('asks again')
    assert waiting.answered == 1
    assert waiting.wake_at == (await store.request('asks again', '0:request-1')).deadline
    ends = {'asks': '3 none', 'asks again': '12.50 plain', 'answered': f'12.50 {WORDS[1]}'}
    await store.answer('asks', '0:first', '3')
    await store.answer('asks again', '0:request-1', 'plain')
    for run_id, start in ends.items():
        handle = store.persistence(run_id)
        while True:
            try:
                output = await graphkeep.resume(kept, handle, deps=Deps())
                break
            except graphkeep.RunPausedError as paused:
                (request,) = paused.requests
                answer = 'none' if request.name == 'request-1' else 7
                await store.answer(run_id, request.request_id, answer)
        assert output == f'{start} 7'


async def go_on_with_nodes(store: Store) -> None:
    from pydantic_graph import End
    from pydantic_graph.graph import Graph

    from .graphs import Memory, Speak, Stop

    graph = Graph(nodes=[Speak, Stop], name='speak')
    everything = ' | '.join(WORDS)
    done = await graphkeep.resume(graph, store.persistence('done'))
    assert done.output == everything
    kept = done.state
    assert (kept.count, kept.big, kept.raw, kept.log) == (5, 2**80, b'\xff\x00', WORDS)
    assert kept.tags == {*WORDS, *'01234'}
    assert kept.ratio != kept.ratio
    assert (kept.price, kept.when) == (Memory().price, Memory().when)
    history = store.persistence('done')
    history.set_graph_types(graph)
    *nodes, end = await history.load_all()
    assert [type(s.node) for s in nodes] == [Speak] * 5 + [Stop]
    assert end.node == End(everything)
    for name in ('left', 'forked'):
        assert (await graphkeep.resume(graph, store.persistence(name))).output == everything
    ready = await graphkeep.resume(graph, store.persistence('ready'))
    assert (ready.output, ready.state.count) == (' | '.join(WORDS[2:]), 10)
    with pytest.raises(ValueError, match='surrogate'):
        await graphkeep.resume(graph, store.persistence('failed'))
    with pytest.raises(graphkeep.RunStatusError):
        await graphkeep.resume(graph, store.persistence('cancelled'))


Check = Callable[[Store], Awaitable[None]]


@pytest.mark.parametrize('release', RELEASES)
async def test_a_sqlite_file_of_a_release_goes_on(release: str, tmp_path: Path) -> None:
    path = tmp_path / 'runs.db'
    shutil.copyfile(HERE / release / 'runs.db', path)
    async with graphkeep.open_store(f'sqlite:///{path}') as store:
        await check(store, release)


@pytest.mark.parametrize('release', RELEASES)
async def test_postgres_rows_of_a_release_go_on(release: str, fresh_postgres_url: str) -> None:
    stored = json.loads((HERE / release / 'postgres.json').read_text('ascii'))
    await fill_postgres(fresh_postgres_url, stored)
    async with graphkeep.open_store(fresh_postgres_url) as store:
        await check(store, release)


@pytest.mark.parametrize('release', RELEASES)
async def test_redis_keys_of_a_release_go_on(release: str, redis_url: str) -> None:
    fill_redis(redis_url, json.loads((HERE / release / 'redis.json').read_text('ascii')))
    async with graphkeep.open_store(redis_url, check_server=False) as store:
        await check(store, release)
