"""Writes the golden files of this release: `python -m tests.golden.make`, once, when it is made.

A file that exists is never written again: what a release has stored is what the next one must read.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import redis

import graphkeep
from graphkeep import Store
from tests.servers import run_postgres, run_redis

from . import talks
from .graphs import WORDS, Deps, Memory, Speak, Stop, Totals, asking, squares

HERE = Path(__file__).parent
RELEASE = 'v3'


async def write(store: Store) -> None:
    """One run of every kind."""
    from pydantic_graph.graph import Graph

    graph = Graph(nodes=[Speak, Stop], name='speak')
    labels = {'team': 'zwölf', 'quote': '"'}
    done = store.persistence('done', labels=labels)
    await graph.run(Speak(), state=Memory(), persistence=done)
    async with graph.iter(Speak(), state=Memory(), persistence=store.persistence('left')) as run:
        await run.next()
        await run.next()
    with suppress(ValueError):
        failed = store.persistence('failed')
        await graph.run(Speak(fail_at=3), state=Memory(), persistence=failed)
    await graph.initialize(Speak(2), store.persistence('ready'), state=Memory(count=7))
    await store.fork('done', new_run_id='forked', at=2)
    await graph.initialize(Speak(), store.persistence('cancelled'), state=Memory())
    await store.cancel('cancelled')
    kept = graphkeep.persist(squares, max_parallel=1)
    with suppress(ValueError):
        await kept.run(
            state=Totals(),
            inputs=[3, 1, 2],
            deps=Deps(2),
            persistence=store.persistence('in a map'),
        )
    # One waits for its first answer, one has used it and waits for the second, one was answered.
    asks = graphkeep.persist(asking)
    for name, answers in (('asks', 0), ('asks again', 1), ('answered', 2)):
        handle = store.persistence(name, labels={'team': 'zwölf'})
        with suppress(graphkeep.RunPausedError):
            await asks.run(state=Totals(), inputs=12, deps=Deps(), persistence=handle)
        if answers:
            await store.answer(name, '0:first', '12.50', by='zoë')
            with suppress(graphkeep.RunPausedError):
                await asks.resume(handle, deps=Deps())
        if answers == 2:
            await store.answer(name, '0:request-1', WORDS[1])
    await talks.write(store)


async def on(url: str) -> None:
    async with graphkeep.open_store(url) as store:
        await write(store)


def sqlite_file(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'runs.db'
        asyncio.run(on(f'sqlite:///{path}'))
        with sqlite3.connect(path) as connection:
            connection.execute(f"VACUUM INTO '{target}'")
        connection.close()


async def postgres_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'graphkeep%' ORDER BY 1"
        )
        tables: dict[str, list[dict[str, Any]]] = {}
        for (name,) in names:
            columns = await connection.fetch(
                'SELECT column_name, udt_name FROM information_schema.columns '
                "WHERE table_name = $1 AND is_generated = 'NEVER' ORDER BY ordinal_position",
                name,
            )
            # As text: what the server would print, to the letter.
            selected = ', '.join(f'"{column}"::text' for column, _ in columns)
            rows = await connection.fetch(f'SELECT {selected} FROM "{name}" ORDER BY 1, 2')
            tables[name] = [
                {
                    f'{column}::{kind}': value
                    for (column, kind), value in zip(columns, row.values(), strict=True)
                }
                for row in rows
            ]
        return tables
    finally:
        await connection.close()


def redis_keys(url: str) -> dict[str, Any]:
    def text(value: bytes) -> str:
        return value.decode('utf-8', 'surrogateescape')

    client: Any = redis.Redis.from_url(url)
    try:
        keys: dict[str, Any] = {}
        for key in sorted(client.keys('*')):
            kind = client.type(key).decode()
            if kind == 'hash':
                value: Any = {text(k): text(v) for k, v in sorted(client.hgetall(key).items())}
            elif kind == 'stream':
                value = [
                    [text(entry), [[text(k), text(v)] for k, v in fields.items()]]
                    for entry, fields in client.xrange(key)
                ]
            elif kind == 'zset':
                members = client.zrange(key, 0, -1, withscores=True)
                value = [[text(member), score] for member, score in members]
            elif kind == 'set':
                value = sorted(map(text, client.smembers(key)))
            else:
                value = text(client.get(key))
            keys[text(key)] = [kind, value]
        return keys
    finally:
        client.close()


def main() -> int:
    folder = HERE / RELEASE
    if folder.exists():
        print(f'{folder.name} exists: what a release has stored is not written again')
        return 1
    folder.mkdir()
    # A traceback names files of the machine that made it.
    traceback.format_exception = lambda error, *_: [f'{type(error).__name__}\n']
    sqlite_file(folder / 'runs.db')
    with run_postgres() as server:
        url = server.create_database()
        asyncio.run(on(url))
        rows = asyncio.run(postgres_rows(url))
    with run_redis() as server:
        url = server.url()
        asyncio.run(on(url))
        keys = redis_keys(url)
    for name, stored in (('postgres', rows), ('redis', keys)):
        text = json.dumps(stored, indent=1, ensure_ascii=True, sort_keys=True)
        (folder / f'{name}.json').write_text(text + '\n', encoding='ascii')
    return 0


if __name__ == '__main__':
    sys.exit(main())
