"""The same workload with what else there is: upstream's file, and LangGraph's savers."""

# LangGraph is in the environment of the benchmarks only.
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import operator
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypedDict

from pydantic_graph.persistence.file import FileStatePersistence

from benchmarks.bench import Bench
from benchmarks.classic_graphs import Chat, Say, chats, text
from benchmarks.counting import bytes_of, rows_of

__all__ = ('LANGGRAPH', 'Grown', 'langgraph_runs', 'upstream_file')

LANGGRAPH = importlib.util.find_spec('langgraph') is not None
_POSTGRES_TABLES = ('checkpoints', 'checkpoint_blobs', 'checkpoint_writes')
_SQLITE_TABLES = ('checkpoints', 'writes')


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """What a run left, and what it took."""

    document: int
    """Bytes of its final state and pending task."""
    stored: int
    """Bytes that lie in the database."""
    written: int
    """Bytes that were given to it in all."""
    step: float
    """Seconds a step."""


class _Counted(FileStatePersistence[Any, Any]):
    """Upstream's file, and how much was written to it."""

    written = 0

    def _save_sync(self, snapshots: Any) -> None:
        super()._save_sync(snapshots)
        self.written += self.json_file.stat().st_size


async def upstream_file(bench: Bench, steps: int, document: int) -> Grown:
    """Run with `FileStatePersistence`."""
    kept = _Counted(bench.file('json'))
    started = perf_counter()
    await chats.run(Say(steps), state=Chat(), persistence=kept)
    return Grown(
        document=document,
        stored=kept.json_file.stat().st_size,
        written=kept.written,
        step=(perf_counter() - started) / steps,
    )


async def langgraph_runs(bench: Bench, steps: int, document: int) -> dict[str, Grown]:
    """Run with each of LangGraph's savers, every step durable before the next (`durability`)."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    found: dict[str, Grown] = {}
    path = bench.file()
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        app = _app(saver, steps)
        taken = _timed(app, steps)
    rows = [row for table in _SQLITE_TABLES for row in rows_of(bench, 'sqlite', path, table)]
    found['LangGraph SqliteSaver'] = _grown(rows, document, taken)

    path = bench.file()
    async with _async_sqlite(path) as saver:
        taken = await _timed_async(_app(saver, steps), steps)
    rows = [row for table in _SQLITE_TABLES for row in rows_of(bench, 'sqlite', path, table)]
    found['LangGraph AsyncSqliteSaver'] = _grown(rows, document, taken)

    url = bench.url('postgres')
    if url is not None:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            taken = await _timed_async(_app(saver, steps), steps)
        rows = [r for table in _POSTGRES_TABLES for r in rows_of(bench, 'postgres', url, table)]
        found['LangGraph AsyncPostgresSaver'] = _grown(rows, document, taken)
    return found


@asynccontextmanager
async def _async_sqlite(path: Path) -> AsyncGenerator[Any]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


class _State(TypedDict):
    messages: Annotated[list[str], operator.add]


def _app(saver: Any, steps: int) -> Any:
    from langgraph.graph import END, START, StateGraph

    def say(state: _State) -> dict[str, list[str]]:
        return {'messages': [text(len(state['messages']))]}

    def on(state: _State) -> str:
        return 'say' if len(state['messages']) < steps else END

    graph = StateGraph(_State)
    graph.add_node('say', say)
    graph.add_edge(START, 'say')
    graph.add_conditional_edges('say', on)
    return graph.compile(checkpointer=saver)


def _config(steps: int) -> dict[str, Any]:
    return {'configurable': {'thread_id': 'chat'}, 'recursion_limit': steps + 10}


def _timed(app: Any, steps: int) -> float:
    started = perf_counter()
    result = app.invoke({'messages': []}, _config(steps), durability='sync')
    assert len(result['messages']) == steps
    return (perf_counter() - started) / steps


async def _timed_async(app: Any, steps: int) -> float:
    started = perf_counter()
    result = await app.ainvoke({'messages': []}, _config(steps), durability='sync')
    assert len(result['messages']) == steps
    return (perf_counter() - started) / steps


def _grown(rows: list[tuple[object, ...]], document: int, step: float) -> Grown:
    # Rows are only ever added, so what lies there is what was written.
    stored = bytes_of(rows)
    return Grown(document=document, stored=stored, written=stored, step=step)
