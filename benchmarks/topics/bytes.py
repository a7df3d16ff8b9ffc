"""Bytes that a growing run stores and writes, against its final document; and what others do."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench import NAMES, Bench
from benchmarks.classic_graphs import Chat, Say, chats
from benchmarks.counting import bytes_of, redis_bytes, redis_rows, rows_of, sqlite_path
from benchmarks.peers import LANGGRAPH, Grown, langgraph_runs, upstream_file
from benchmarks.report import Line, Target, at_most, ms, size
from graphkeep import Store, open_store

__all__ = ('measure',)


async def measure(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    documents: dict[int, int] = {}
    many, few = bench.n(400, 60), bench.n(200, 30)
    for name, url in bench.stores('sqlite', 'postgres', 'redis').items():
        for steps in (few, many):
            grown = await _run(bench, name, url, steps)
            documents[steps] = grown.document
            targets = (at_most(3), at_most(4)) if steps == many else (None, None)
            lines += _lines(f'graphkeep on {NAMES[name]}', steps, grown, *targets)
    grown = await upstream_file(bench, few, documents[few])
    lines += _lines('upstream FileStatePersistence', few, grown)
    if LANGGRAPH:
        for steps in (few, many):
            found = await langgraph_runs(bench, steps, documents[steps])
            for what, grown in found.items():
                lines += _lines(what, steps, grown)
    else:
        bench.note('bytes: LangGraph is not installed')
    return lines


def _lines(
    what: str,
    steps: int,
    grown: Grown,
    stored: Target | None = None,
    written: Target | None = None,
) -> list[Line]:
    of = f'{size(grown.document)}  final document'
    return [
        Line(
            what=f'{what}, {steps} steps: {how}',
            measured=f'{size(count)}, {ms(grown.step)} a step' if how == 'stored' else size(count),
            baseline=of,
            figure=count / grown.document,
            target=target,
            raw={'measured': count, 'baseline': grown.document, 'step': grown.step},
        )
        for how, count, target in (
            ('stored', grown.stored, stored),
            ('written in all', grown.written, written),
        )
        # Where nothing is ever replaced both are the same.
        if how == 'stored' or grown.written != grown.stored
    ]


async def _run(bench: Bench, name: str, url: str, steps: int) -> Grown:
    """Stored: every row of the run. Written: these, and the header again at each commit.

    On Redis, written is what came in through its sockets.
    """
    run_id = f'chat-{steps}'
    async with open_store(url) as store:
        # What is only done once is not a part of a run: connections, scripts.
        await chats.run(Say(1), state=Chat(), persistence=store.persistence(f'first-{steps}'))
        before = redis_bytes(bench) if name == 'redis' else 0
        started = perf_counter()
        await chats.run(Say(steps), state=Chat(), persistence=store.persistence(run_id))
        step = (perf_counter() - started) / steps
        if name == 'redis':
            written = redis_bytes(bench) - before
            stored = bytes_of(await redis_rows(url, run_id))
        else:
            place = sqlite_path(url) if name == 'sqlite' else url
            snapshots = rows_of(bench, name, place, 'graphkeep_snapshots')
            headers = rows_of(bench, name, place, 'graphkeep_runs')
            # The run's id is the first column of both.
            snapshots = [row for row in snapshots if row[0] == run_id]
            headers = [row for row in headers if row[0] == run_id]
            stored = bytes_of(snapshots) + bytes_of(headers)
            written = bytes_of(snapshots) + bytes_of(headers) * len(snapshots)
        document = await _document_size(store, run_id)
    return Grown(document=document, stored=stored, written=written, step=step)


async def _document_size(store: Store, run_id: str) -> int:
    return len((await store.document(run_id)).to_json())
