"""Who keeps the turns of chats, and what that costs: the same is measured of each."""

# The libraries of others are in the environment of the benchmarks only.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from benchmarks.bench import NAMES, Bench
from benchmarks.counting import sqlite_path
from benchmarks.report import Line, at_most, ms, ratio, size
from benchmarks.timing import Calls, in_turns, one_by_one
from benchmarks.turns import Turns, turn

__all__ = ('Side', 'long_and_short', 'one_value', 'others')

_SAVE = 1.5
_REST = 1.3
_LOAD = 1.3


class Side(ABC):
    """Who keeps chats."""

    name: str
    """As it is shown."""
    promised = False
    """Whether the project promises something of it."""
    chats = 4
    """How many long chats there are."""

    def __init__(self, database: str, url: str) -> None:
        self.database = database
        self.url = url

    @abstractmethod
    async def save(self, chat: str, messages: list[ModelMessage]) -> None:
        """Keep a turn more of a chat."""

    @abstractmethod
    async def load(self, chat: str) -> Sequence[object]:
        """All that was kept of a chat."""

    async def build(self, chats: Sequence[str], numbers: range) -> None:
        """Save turns, those of the chats in between each other."""
        for number in numbers:
            for chat in chats:
                await self.save(chat, turn(chat, number))

    def as_json(self, messages: list[ModelMessage]) -> bytes:
        """What it is given, as JSON."""
        return ModelMessagesTypeAdapter.dump_json(messages)

    def read(self, data: bytes) -> Sequence[object]:
        """What `load` gives, from this JSON."""
        return ModelMessagesTypeAdapter.validate_json(data)


# --- what is measured of each ---------------------------------------------------------------------


async def long_and_short(bench: Bench, side: Side) -> list[Line]:
    """A save behind many turns against one behind ten, what many turns take, and to load them."""
    late, early = bench.n(1_000, 40), bench.n(10, 4)
    chats = bench.n(side.chats, 1)
    # What is only made once is not a part of a chat.
    await side.build(['first'], range(1, 6))
    long = [f'long-{number}' for number in range(chats)]
    before = await _resting(bench, side)
    await side.build(long, range(1, late + 1))
    resting = await _resting(bench, side) - before
    messages: Turns = {
        chat: [m for number in range(1, late + 1) for m in turn(chat, number)] for chat in long
    }
    data = {chat: side.as_json(messages[chat]) for chat in long}
    whole = sum(map(len, data.values()))
    assert len(await side.load(long[0])) == len(side.read(data[long[0]]))
    loads = await in_turns(
        {
            'load': one_by_one(_in_a_row(long, side.load), tidy=True),
            'read': one_by_one(_in_a_row(long, _reading(side, data)), tidy=True),
        },
        rounds=bench.n(12, 1),
        each=1,
    )

    short = [f'short-{number}' for number in range(4 * chats)]
    await side.build(short, range(1, early + 1))
    numbers = {chat: itertools.count(10_001) for chat in (*long, *short)}
    rounds = bench.n(3, 1)
    written = {
        'long': await _written(bench, side, long, rounds, numbers),
        'short': await _written(bench, side, short[:chats], rounds, numbers),
    }
    saves = await in_turns(
        {
            'long': _saving(side, long, numbers),
            'short': _saving(side, short[chats:] or short, numbers),
        },
        rounds=bench.n(20, 1),
        each=chats,
    )
    of, name = f'behind {early}', f'{side.name}: '
    save, rest, load = (
        (at_most(_SAVE), at_most(_REST), at_most(_LOAD)) if side.promised else (None, None, None)
    )
    behind = f'a save behind {late:,} turns'
    return [
        ratio(f'{name}{behind}', saves['long'], saves['short'], of=of, target=save),
        ratio(
            f'{name}bytes written by {behind}',
            written['long'],
            written['short'],
            of=of,
            show=size,
            target=save,
        ),
        ratio(
            f'{name}{late:,} turns at rest',
            resting / chats,
            whole / chats,
            of='their JSON',
            show=size,
            target=rest,
        ),
        ratio(
            f'{name}loading {late:,} turns',
            loads['load'],
            loads['read'],
            of='from their JSON in memory',
            show=ms,
            target=load,
        ),
    ]


def _in_a_row(
    chats: Sequence[str], call: Callable[[str], Awaitable[object]]
) -> Callable[[], Awaitable[object]]:
    row = itertools.cycle(chats)
    return lambda: call(next(row))


def _reading(side: Side, data: dict[str, bytes]) -> Callable[[str], Awaitable[object]]:
    async def read(chat: str) -> object:
        return side.read(data[chat])

    return read


def _saving(side: Side, chats: Sequence[str], numbers: dict[str, itertools.count[int]]) -> Calls:
    """Saves a turn of each chat after the other: their contents are the same on both sides."""
    row = itertools.cycle(chats)

    async def calls(count: int) -> list[float]:
        taken: list[float] = []
        for place in range(count):
            chat = next(row)
            messages = turn(f'both-{place}', next(numbers[chat]))
            started = perf_counter()
            await side.save(chat, messages)
            taken.append(perf_counter() - started)
        return taken

    return calls


# --- bytes, counted at the database ---------------------------------------------------------------


async def _written(
    bench: Bench,
    side: Side,
    chats: Sequence[str],
    rounds: int,
    numbers: dict[str, itertools.count[int]],
) -> float:
    """Bytes that a save writes to the log of the database."""
    save = _saving(side, chats, numbers)
    # Postgres writes a page whole when it first changes after a checkpoint: here once for all.
    await save(len(chats))
    total = 0
    for _ in range(rounds):
        before = await _log(bench, side, fresh=True)
        await save(len(chats))
        total += await _log(bench, side, fresh=False) - before
    return total / rounds / len(chats)


async def _log(bench: Bench, side: Side, *, fresh: bool) -> int:
    """How long the log of the database is: only differences mean something."""
    if side.database == 'sqlite':
        path = sqlite_path(side.url)
        if fresh:
            _checkpoint(path)
        return Path(f'{path}-wal').stat().st_size
    if side.database == 'postgres':
        assert bench.postgres is not None
        sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
        return int((await asyncio.to_thread(bench.postgres.fetch, sql))[0][0])
    return await asyncio.to_thread(_append_only_file, bench)


def _append_only_file(bench: Bench) -> int:
    assert bench.redis is not None
    if bench.redis.setting('auto-aof-rewrite-percentage') != '0':
        # It would be shorter after that than before.
        bench.redis.command('CONFIG', 'SET', 'auto-aof-rewrite-percentage', 0)
    until = time.monotonic() + 20
    while True:
        found = bench.redis.command('INFO', 'persistence')
        # What waits for a sync that goes on is not in the file yet.
        if not int(found['aof_buffer_length']) and not found['aof_rewrite_in_progress']:
            return int(found['aof_current_size'])
        assert time.monotonic() < until, 'the log is never written'


def _checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        busy, *_ = connection.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchone()
        assert not busy


async def _resting(bench: Bench, side: Side) -> int:
    """Bytes of all that lies there."""
    if side.database == 'sqlite':
        path = sqlite_path(side.url)
        _checkpoint(path)
        return path.stat().st_size
    if side.database == 'postgres':
        assert bench.postgres is not None
        dbname = urlsplit(side.url).path[1:]
        await asyncio.to_thread(bench.postgres.execute, 'VACUUM', dbname=dbname)
        sql = (
            'SELECT sum(pg_total_relation_size(oid)) FROM pg_class '
            "WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        found = await asyncio.to_thread(partial(bench.postgres.fetch, sql, dbname=dbname))
        return int(found[0][0])
    from redis.asyncio import Redis

    client = Redis.from_url(side.url)
    try:
        keys = [key async for key in client.scan_iter(count=1_000)]
        return sum([await client.memory_usage(key, samples=0) or 0 for key in keys])
    finally:
        await client.aclose()


# --- all messages as one value --------------------------------------------------------------------


class _OneValue(Side):
    """The whole list as JSON, replaced at every turn."""

    chats = 1

    def __init__(self, database: str, url: str, write: Any, fetch: Any) -> None:
        super().__init__(database, url)
        self.name = f'{NAMES[database]}, the list as one value'
        self._messages: Turns = {}
        self._write = write
        self._fetch = fetch

    async def save(self, chat: str, messages: list[ModelMessage]) -> None:
        kept = self._messages.setdefault(chat, [])
        kept += messages
        await self._write(chat, self.as_json(kept))

    async def load(self, chat: str) -> Sequence[object]:
        return self.read(await self._fetch(chat))

    async def build(self, chats: Sequence[str], numbers: range) -> None:
        # All of them would take long, and leave nothing else than the last ones do.
        for chat in chats:
            kept = self._messages.setdefault(chat, [])
            for number in numbers[:-5]:
                kept += turn(chat, number)
        await super().build(chats, numbers[-5:])


@asynccontextmanager
async def one_value(database: str, url: str) -> AsyncGenerator[Side]:
    """Saves with nothing around, as durable as ours."""
    make = {'sqlite': _in_sqlite, 'postgres': _in_postgres, 'redis': _in_redis}[database]
    async with make(url) as (write, fetch):
        yield _OneValue(database, url, write, fetch)


@asynccontextmanager
async def _in_sqlite(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    with ThreadPoolExecutor(1) as thread:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        connect = partial(sqlite3.connect, sqlite_path(url), isolation_level=None)
        connection = await in_thread(connect)

        def write(chat: str, data: bytes) -> None:
            connection.execute(
                'INSERT OR REPLACE INTO chats VALUES (?, CAST(? AS TEXT))', (chat, data)
            )

        def fetch(chat: str) -> bytes:
            sql = 'SELECT CAST(data AS BLOB) FROM chats WHERE chat = ?'
            return connection.execute(sql, (chat,)).fetchone()[0]

        def begin() -> None:
            connection.execute('PRAGMA journal_mode = WAL').close()
            connection.execute('PRAGMA synchronous = FULL').close()
            connection.execute('CREATE TABLE chats (chat TEXT PRIMARY KEY, data TEXT)')

        await in_thread(begin)
        try:
            yield partial(in_thread, write), partial(in_thread, fetch)
        finally:
            await in_thread(connection.close)


@asynccontextmanager
async def _in_postgres(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    import asyncpg

    connection: Any = await asyncpg.connect(url)
    sql = 'INSERT INTO chats VALUES ($1, $2) ON CONFLICT (chat) DO UPDATE SET data = excluded.data'

    async def write(chat: str, data: bytes) -> None:
        await connection.execute(sql, chat, data.decode())

    async def fetch(chat: str) -> bytes:
        text = await connection.fetchval('SELECT data FROM chats WHERE chat = $1', chat)
        return text.encode()

    try:
        await connection.execute('CREATE TABLE chats (chat text PRIMARY KEY, data json)')
        yield write, fetch
    finally:
        await connection.close()


@asynccontextmanager
async def _in_redis(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    from redis.asyncio import Redis

    client = Redis.from_url(url)
    try:
        yield client.set, client.get
    finally:
        await client.aclose()


# --- the libraries of others ----------------------------------------------------------------------


async def others(bench: Bench) -> list[Line]:
    """What there is beside, on the same turns."""
    lines: list[Line] = []
    for name, make, database in (
        ('OpenAI Agents SQLiteSession', _openai, 'sqlite'),
        ('LangChain PostgresChatMessageHistory', _langchain, 'postgres'),
    ):
        url = bench.url(database)
        if url is None:
            continue
        try:
            async with make(url) as side:
                lines += await long_and_short(bench, side)
        except ImportError as e:
            bench.note(f'{name} ({e})')
    return lines


class _OpenAI(Side):
    name = 'OpenAI Agents SQLiteSession'

    def __init__(self, url: str, make: Callable[[str], Any]) -> None:
        super().__init__('sqlite', url)
        self._make = make
        self.sessions: dict[str, Any] = {}

    async def save(self, chat: str, messages: list[ModelMessage]) -> None:
        await self._of(chat).add_items(_items(messages))

    async def load(self, chat: str) -> Sequence[object]:
        return await self._of(chat).get_items()

    def _of(self, chat: str) -> Any:
        if chat not in self.sessions:
            self.sessions[chat] = self._make(chat)
        return self.sessions[chat]

    def as_json(self, messages: list[ModelMessage]) -> bytes:
        return json.dumps(_items(messages)).encode()

    def read(self, data: bytes) -> Sequence[object]:
        return json.loads(data)


@asynccontextmanager
async def _openai(url: str) -> AsyncGenerator[Side]:
    from agents import SQLiteSession

    # It works in any thread, with a connection in each: here there is one, which is open.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    side = _OpenAI(url, lambda chat: SQLiteSession(chat, sqlite_path(url)))
    try:
        yield side
    finally:
        for session in side.sessions.values():
            session.close()


def _items(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    """Messages as the Responses API has them."""
    items: list[dict[str, Any]] = []
    for message in messages:
        own = message.provider_response_id if isinstance(message, ModelResponse) else None
        for part in message.parts:
            match part:
                case UserPromptPart():
                    items.append({'role': 'user', 'content': part.content})
                case TextPart():
                    said = {'type': 'output_text', 'text': part.content, 'annotations': []}
                    items.append(
                        {
                            'id': f'msg_{own}',
                            'type': 'message',
                            'role': 'assistant',
                            'status': 'completed',
                            'content': [{**said, 'logprobs': []}],
                        }
                    )
                case ToolCallPart():
                    items.append(
                        {
                            'id': f'fc_{own}',
                            'type': 'function_call',
                            'call_id': part.tool_call_id,
                            'name': part.tool_name,
                            'arguments': part.args_as_json_str(),
                            'status': 'completed',
                        }
                    )
                case ToolReturnPart():
                    items.append(
                        {
                            'type': 'function_call_output',
                            'call_id': part.tool_call_id,
                            'output': part.model_response_str(),
                        }
                    )
                case _:
                    raise TypeError(part)
    return items


class _LangChain(Side):
    name = 'LangChain PostgresChatMessageHistory'

    def __init__(self, url: str, connection: Any) -> None:
        super().__init__('postgres', url)
        self._connection = connection

    async def save(self, chat: str, messages: list[ModelMessage]) -> None:
        await self._of(chat).aadd_messages(_langchain_messages(messages))

    async def load(self, chat: str) -> Sequence[object]:
        found = await self._of(chat).aget_messages()
        await self._connection.commit()  # it leaves its transaction open
        return found

    def _of(self, chat: str) -> Any:
        from langchain_postgres import PostgresChatMessageHistory

        session = str(uuid.uuid5(uuid.NAMESPACE_OID, chat))
        return PostgresChatMessageHistory('history', session, async_connection=self._connection)

    def as_json(self, messages: list[ModelMessage]) -> bytes:
        from langchain_core.messages import messages_to_dict

        return json.dumps(messages_to_dict(_langchain_messages(messages))).encode()

    def read(self, data: bytes) -> Sequence[object]:
        from langchain_core.messages import messages_from_dict

        return messages_from_dict(json.loads(data))


@asynccontextmanager
async def _langchain(url: str) -> AsyncGenerator[Side]:
    import psycopg
    from langchain_postgres import PostgresChatMessageHistory

    async with await psycopg.AsyncConnection.connect(url) as connection:
        await PostgresChatMessageHistory.acreate_tables(connection, 'history')
        yield _LangChain(url, connection)


def _langchain_messages(messages: list[ModelMessage]) -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    made: list[Any] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            text = ''.join(part.content for part in message.parts if isinstance(part, TextPart))
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            usage = message.usage
            made.append(
                AIMessage(
                    text,
                    id=message.provider_response_id,
                    tool_calls=[
                        {'name': c.tool_name, 'args': c.args_as_dict(), 'id': c.tool_call_id}
                        for c in calls
                    ],
                    response_metadata={
                        'id': message.provider_response_id,
                        'model_name': message.model_name,
                        'model_provider': message.provider_name,
                        'finish_reason': message.finish_reason,
                        'created_at': message.timestamp.timestamp(),
                    },
                    usage_metadata={
                        'input_tokens': usage.input_tokens,
                        'output_tokens': usage.output_tokens,
                        'total_tokens': usage.input_tokens + usage.output_tokens,
                    },
                )
            )
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                made.append(HumanMessage(str(part.content)))
            elif isinstance(part, ToolReturnPart):
                text = part.model_response_str()
                made.append(ToolMessage(text, name=part.tool_name, tool_call_id=part.tool_call_id))
    return made
