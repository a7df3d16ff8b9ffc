"""What runs cost that wait for a person: held meanwhile, listed, answered, and in the database."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.bench import CLASSIC, NAMES, Bench
from benchmarks.builder_graphs import APPROVED, Ticks, asking, ticking
from benchmarks.commits import Committer, pausing
from benchmarks.counting import sqlite_path, writes_of
from benchmarks.looking import Look, looking
from benchmarks.report import Line, at_most, exactly, ms, ratio
from benchmarks.timing import in_turns, one_by_one
from graphkeep import RunPausedError, Store, open_store, persist, resume

__all__ = ('measure',)

_ROOT = Path(__file__).resolve().parent.parent.parent
_AT_ONCE = 64
_PAGE = 100
_DATABASE = 50
"""Milliseconds of the database for all open requests."""
_HEARD = 100
"""Milliseconds from an answer to whoever waits for it."""
_DATABASES = ('sqlite', 'postgres', 'redis')


async def measure(bench: Bench) -> list[Line]:
    held: list[Line] = []
    listed: list[Line] = []
    for name, url in bench.stores().items():
        async with open_store(url) as store:
            held += await _held(bench, name, url, store)
            if name == 'memory':
                listed += await _listed_in_memory(bench, store)
        if name != 'memory':
            listed += await _listed(bench, name, url)
    heard = [await _heard(bench, name, url) for name, url in bench.stores(*_DATABASES).items()]
    written: list[Line] = []
    for name, url in bench.stores(*_DATABASES).items():
        written += await _written(bench, name, url)
    commits = [await _commits(bench, name, url) for name, url in bench.stores().items()]
    return held + listed + heard + written + commits


# --- what is held ---------------------------------------------------------------------------------


class _Held(NamedTuple):
    """What this process holds."""

    tasks: int
    threads: int
    connections: int

    def __str__(self) -> str:
        tasks = 'task' if self.tasks == 1 else 'tasks'
        return f'{self.tasks} {tasks}, {self.threads} threads, {self.connections} connections'


async def _held(bench: Bench, name: str, url: str, store: Store) -> list[Line]:
    count, real = bench.n(10_000, 200), bench.n(1_000, 50)
    kept, unpaused, payload = persist(asking()), persist(ticking()), await _payload()

    async def ends(number: int) -> None:
        await unpaused.run(
            state=Ticks(), inputs=1, deps=[], persistence=store.persistence(f'ended-{number}')
        )

    async def pauses(number: int) -> None:
        if number >= real:
            # The others are written by hand: it is quicker, and they are the same there.
            await pausing(store, f'paused-{number}', payload, graph='asking')
            return
        handle = store.persistence(f'paused-{number}')
        try:
            await kept.run(state=Ticks(count=number), inputs=1, deps=[], persistence=handle)
        except RunPausedError:
            return
        raise RuntimeError(f'run {number} was to pause')

    # A worker of eight, when nothing can go on.
    look = one_by_one(lambda: store.candidates(['asking', 'ticking'], limit=58))
    looks = bench.n(200, 5)
    # As many at once: what a store keeps of its connections is the same then.
    await _many(ends, bench.n(10, 1) * _AT_ONCE)
    before, look_before = await _holds(bench, name, url), await look(looks)
    await _many(pauses, count)
    if name == 'postgres':
        assert bench.postgres is not None
        # As autovacuum does, which is off here: within a minute of so many writes.
        dbname = urlsplit(url).path[1:]
        await asyncio.to_thread(bench.postgres.execute, 'VACUUM ANALYZE', dbname=dbname)
    after, look_after = await _holds(bench, name, url), await look(looks)
    return [
        Line(
            what=f'{NAMES[name]}: held for {count:,} paused runs',
            measured=str(after),
            baseline=f'{before}  without',
            figure=max(b - a for a, b in zip(before, after, strict=True)),
            unit='more',
            target=at_most(0, 'more'),
            raw=dict(after._asdict()),
        ),
        ratio(
            f'{NAMES[name]}: a look of a worker beside {count:,} paused runs',
            median(look_after),
            median(look_before),
            of='without',
        ),
    ]


async def _many(run: Callable[[int], Awaitable[None]], count: int) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await run(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(some())


async def _holds(bench: Bench, name: str, url: str) -> _Held:
    # What was just given back is back.
    await asyncio.sleep(0.2)
    connections = await asyncio.to_thread(_connections, bench, name, url)
    threads = [t for t in threading.enumerate() if not t.name.startswith('asyncio_')]
    return _Held(len(asyncio.all_tasks()), len(threads), connections)


def _connections(bench: Bench, name: str, url: str) -> int:
    """Connections to this database, as the server counts them; of SQLite, opened files."""
    if name == 'sqlite':
        path = str(sqlite_path(url))
        return sum(_points_to(entry) == path for entry in Path('/proc/self/fd').iterdir())
    if name == 'postgres':
        assert bench.postgres is not None
        sql = 'SELECT count(*) FROM pg_stat_activity WHERE datname = $1'
        return int(bench.postgres.fetch(sql, urlsplit(url).path[1:])[0][0])
    if name == 'redis':
        assert bench.redis is not None
        clients = bench.redis.command('CLIENT', 'LIST').decode().splitlines()
        database = f' db={urlsplit(url).path[1:]} '
        return sum(database in client and 'cmd=client|list' not in client for client in clients)
    return 0


def _points_to(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:
        return None


# --- listing --------------------------------------------------------------------------------------


async def _listed(bench: Bench, name: str, url: str) -> list[Line]:
    count = bench.n(10_000, 200)
    lines: list[Line] = []
    async with looking(bench, name, url) as looker:
        list_ = looker.store.requests
        assert len(await list_(limit=count + 1)) == count
        for limit, times in ((count, bench.n(7, 2)), (_PAGE, bench.n(30, 2))):
            look = await looker.look(partial(list_, limit=limit), times=times)
            what = f'the first {_PAGE} of {count:,}' if limit == _PAGE else f'all {count:,}'
            lines.append(_listing(f'{NAMES[name]}: listing {what} open requests', look, limit))
    return lines


def _listing(what: str, look: Look, limit: int) -> Line:
    assert look.database is not None
    queries = f'{look.queries} {"query" if look.queries == 1 else "queries"}'
    return Line(
        what=what,
        measured=f'{ms(look.whole)} in the client',
        baseline=f'in the database, {queries}',
        figure=look.database * 1e3,
        unit='ms',
        target=at_most(_DATABASE, 'ms'),
        raw={
            'whole': look.whole,
            'database': look.database,
            'queries': look.queries,
            'by_index': float(any(index.endswith('_requests_open') for index in look.indexes)),
            'limit': limit,
        },
    )


async def _listed_in_memory(bench: Bench, store: Store) -> list[Line]:
    count = bench.n(10_000, 200)
    call = one_by_one(lambda: store.requests(limit=count))
    whole = median(await call(bench.n(7, 2)))
    return [
        Line(
            what=f'memory: listing all {count:,} open requests',
            measured=f'{ms(whole)} in the client',
            raw={'whole': whole},
        )
    ]


# --- hearing of answers ---------------------------------------------------------------------------


async def _heard(bench: Bench, name: str, url: str) -> Line:
    """From just before an answer is given to when the step goes on, in another process."""
    count = bench.n(50, 3)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, '-m', 'benchmarks.waiting_child', url, str(count)),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    answered: dict[str, float] = {}
    try:
        await child.stdout.readline()
        async with open_store(url) as store:
            while len(waiting := await store.requests(limit=count + 1)) < count:
                await asyncio.sleep(0.05)
            # Until it listens; and where nobody tells, until it looks as seldom as it ever will.
            await asyncio.sleep(bench.n(3, 1))
            for request in waiting:
                answered[request.run_id] = monotonic()
                await store.answer(request.run_id, request.request_id, APPROVED, by='bench')
                await asyncio.sleep(random.uniform(0.05, 0.15))
            went_on = json.loads(await child.stdout.readline())
    finally:
        if child.returncode is None and len(answered) < count:
            child.kill()
        await child.wait()
    taken = sorted(went_on[run_id] - moment for run_id, moment in answered.items())
    return Line(
        what=f'{NAMES[name]}: from an answer to the step that waits in another process',
        measured=ms(median(taken)),
        baseline=f'worst of {count}:',
        figure=taken[-1] * 1e3,
        unit='ms',
        # SQLite tells nobody: whoever waits looks, once a second.
        target=None if name == 'sqlite' else at_most(_HEARD, 'ms'),
        raw={'median': median(taken), 'worst': taken[-1]},
    )


# --- what is written ------------------------------------------------------------------------------


async def _written(bench: Bench, name: str, url: str) -> list[Line]:
    n = bench.n(100, 20)
    kinds: dict[str, _Kind] = {'builder graph': (_run_builder, _resume_builder)}
    if CLASSIC:
        kinds = {'1.x graph': (_run_classic, _resume_classic), **kinds}
    lines: list[Line] = []
    async with open_store(url) as store:
        with writes_of(bench, name, url) as count:
            for kind, (run, go_on) in kinds.items():
                # What is only done once (loading scripts) is not a part of a run.
                await _pausing_once(store, f'first {kind}', 1, run, go_on, count)
                made = await _pausing_once(store, kind, n, run, go_on, count)
                what = f'{NAMES[name]}, {kind}, {n} nodes of which one pauses'
                lines.append(_transactions(what, n, made))
    return lines


def _transactions(what: str, n: int, made: list[int]) -> Line:
    return Line(
        what=what,
        measured=f'{sum(made)} transactions',
        baseline=f'{n} + 1, and pause, answer, claim',
        figure=sum(made),
        unit='',
        target=exactly(n + 4),
        raw={'until_paused': made[0], 'answer': made[1], 'rest': made[2], 'n': n},
    )


async def _pausing_once(
    store: Store, run_id: str, n: int, run: _Run, go_on: _GoOn, count: Callable[[], int]
) -> list[int]:
    """Transactions until the run has paused, of the answer, and to its end."""
    made = [count()]
    try:
        await run(store, run_id, n)
    except RunPausedError:
        pass
    made.append(count())
    [asked] = await store.requests(run_id=run_id)
    await store.answer(run_id, asked.request_id, APPROVED)
    made.append(count())
    await go_on(store, run_id)
    made.append(count())
    return [after - before for before, after in pairwise(made)]


_Run = Callable[[Store, str, int], Awaitable[None]]
_GoOn = Callable[[Store, str], Awaitable[None]]
_Kind = tuple[_Run, _GoOn]


async def _run_builder(store: Store, run_id: str, n: int) -> None:
    kept = persist(asking())
    await kept.run(state=Ticks(), inputs=n, deps=[], persistence=store.persistence(run_id))


async def _resume_builder(store: Store, run_id: str) -> None:
    await resume(persist(asking()), store.persistence(run_id), deps=[])


async def _run_classic(store: Store, run_id: str, n: int) -> None:
    from benchmarks.classic_graphs import Ask, Counter, askers

    kept = store.persistence(run_id)
    await askers.run(Ask(n), state=Counter(), deps=[], persistence=kept)


async def _resume_classic(store: Store, run_id: str) -> None:
    from benchmarks.classic_graphs import askers

    await resume(askers, store.persistence(run_id), deps=[])


async def _commits(bench: Bench, name: str, url: str) -> Line:
    """A commit that asks and pauses, against one of a step with the same payload."""
    payload = await _payload()
    async with open_store(url) as store:
        committer = await Committer.start(store, 'commits', payload)

        async def pauses(count: int) -> list[float]:
            runs = [f'pauses-{bench.number()}' for _ in range(count)]
            return [await pausing(store, run_id, payload) for run_id in runs]

        found = await in_turns(
            {'step': committer.times, 'pause': pauses}, rounds=bench.n(150, 2), each=5
        )
    what = f'{NAMES[name]}: a commit that asks and pauses'
    return ratio(what, found['pause'], found['step'], of='a commit of a step')


async def _payload() -> bytes:
    async with open_store('memory://') as store:
        kept = persist(ticking())
        await kept.run(state=Ticks(), inputs=5, deps=[], persistence=store.persistence('payload'))
        snapshots = await store.snapshots('payload')
    return snapshots[2].data
