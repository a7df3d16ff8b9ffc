"""What is special to Postgres about requests: the stored form, plans, locks, damage."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from graphkeep import DamagedRunError, GraphkeepError, LeaseLostError
from graphkeep.errors import RequestClosedError
from graphkeep.requests import RequestQuery
from graphkeep.store import Store
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.postgres_find import finding_requests
from graphkeep.stores.statements import load
from graphkeep.testing import Worker, eventually
from graphkeep.testing._worker import asks
from tests.stores.postgres_tool import rows, run_sql, tool

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]

_OK = {'ok': True}


async def started(store: Store, run_id: str = 'run-1') -> Worker:
    worker = Worker(store, run_id)
    await worker.create()
    return worker


async def deadlocks(url: str) -> int:
    sql = 'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'
    return (await rows(url, sql))[0]['deadlocks']


# --- the stored form ------------------------------------------------------------------------------


async def test_a_request_is_stored_as_a_plain_row(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        worker = await started(store)
        new = asks(prompt='Nul \0, lone \ud800', timeout=60.0, payload=b'[1.0, "\\u0000\\ud800"]')
        await worker.pauses(new)
        run = await store.run('run-1')
        asked = {
            'run_id': 'run-1',
            'request_id': '0:manager',
            'name': 'manager',
            'node': 'Node0',
            'task': '0',
            'status': 'open',
            'prompt': '"Nul \\u0000, lone \\ud800"',
            'payload': '[1.0, "\\u0000\\ud800"]',
            'schema': new.schema.decode(),
            'deadline': run.updated_at + timedelta(minutes=1),
            'created_at': run.updated_at,
            'answer': None,
            'answered_by': None,
            'answered_at': None,
            'closed_at': None,
            'error': None,
        }
        assert await rows(fresh_postgres_url, 'SELECT * FROM graphkeep_requests') == [asked]
        request = await store.answer('run-1', '0:manager', {'ok': 'é\0'}, by='ann')
        assert request.answer_json is not None
        assert await rows(fresh_postgres_url, 'SELECT * FROM graphkeep_requests') == [
            {
                **asked,
                'status': 'answered',
                'answer': request.answer_json.decode(),
                'answered_by': 'ann',
                'answered_at': request.answered_at,
            }
        ]
        [header] = await rows(fresh_postgres_url, 'SELECT * FROM graphkeep_runs')
        assert (header['status'], header['answered'], header['wake_at']) == ('ready', 1, None)
        assert header['updated_at'] == request.answered_at


async def test_commits_that_ask_share_a_transaction_with_others(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        workers = [await started(store, f'run-{number}') for number in range(48)]
        zombie = workers[3].commit(status='paused', asks=[asks()])
        await store.cancel('run-3')
        calls: list[Awaitable[object]] = [store.append(zombie)]
        for number, worker in enumerate(workers):
            if number != 3:
                calls.append(worker.pauses(asks()) if number % 2 else worker.step())
        refused, *_ = await asyncio.gather(*calls)
        assert isinstance(getattr(refused, 'error', None), LeaseLostError)
        assert len(await store.requests(limit=100)) == 23
        assert await store.requests(run_id='run-3', status=()) == []
        for worker in workers[:3]:
            await worker.check()
    sql = (
        'SELECT DISTINCT xmin::text FROM graphkeep_snapshots WHERE seq = 1 '
        'UNION SELECT DISTINCT xmin::text FROM graphkeep_requests'
    )
    # The first goes alone: the others gather while it is written.
    assert len(await rows(fresh_postgres_url, sql)) <= 2


async def test_a_commit_that_asks_drops_older_snapshots_too(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url, history='latest') as store:
        worker = await started(store)
        await worker.step()
        await worker.pauses(asks(), kind='full', history='latest')
        assert [s.seq for s in await store.snapshots('run-1')] == [2]


async def test_what_is_asked_and_closed_at_once_is_closed(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        worker = await started(store)
        await worker.step(asks=[asks('there')])
        both = ['0:new', '0:there', '0:nowhere']
        await worker.step(asks=[asks('new'), asks('there'), asks('open')], closes=both)
        found = {r.name: (r.status, r.closed_at) for r in await store.requests(status=())}
        now = (await store.run('run-1')).updated_at
        assert found == {'new': ('closed', now), 'there': ('closed', now), 'open': ('open', None)}


# --- plans ----------------------------------------------------------------------------------------

_FILLED = """
    INSERT INTO graphkeep_runs (
      run_id, graph, status, seq, full_seq, epoch, nonce, labels, created_at, updated_at, wake_at
    )
    SELECT
      'run-' || n, 'g',
      CASE WHEN n > 20000 THEN 'ready' WHEN n > 10000 THEN 'done' ELSE 'paused' END, 1, 1, 1,
      'x', '{}', now(), now(), CASE WHEN n <= 10000 THEN now() + n * interval '1h' END
    FROM generate_series(1, 20010) AS n;
    INSERT INTO graphkeep_requests (
      run_id, request_id, name, node, task, status, prompt, payload, schema, created_at
    )
    SELECT
      'run-' || n, '0:manager', 'manager', 'Node0', '0',
      CASE WHEN n > 10000 THEN 'answered' ELSE 'open' END, '"May I?"', '{"amount":12}',
      '{"type":"boolean"}', now() + n * interval '1ms'
    FROM generate_series(1, 20000) AS n;
"""


@pytest.fixture
async def filled(fresh_postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database with 10,000 open requests, and as many answered ones."""
    async with PostgresStore(fresh_postgres_url):
        pass
    async with tool(fresh_postgres_url) as connection:
        await connection.execute(_FILLED)
        yield connection


async def plan(connection: asyncpg.Connection, query: RequestQuery) -> str:
    sql, values = finding_requests(load('postgres_runs.sql', prefix='graphkeep'), query)
    # The store prepares its statements: after a few calls one plan does for all values.
    await connection.execute('SET plan_cache_mode = force_generic_plan')
    lines = await connection.fetch(f'EXPLAIN {sql}', *values)
    return '\n'.join(line[0] for line in lines)


async def test_open_requests_are_listed_from_their_index(filled: asyncpg.Connection) -> None:
    await filled.execute('ANALYZE')
    everything = RequestQuery(status=('open',))
    last = await filled.fetchrow(
        'SELECT created_at, run_id, request_id FROM graphkeep_requests OFFSET 50 LIMIT 1'
    )
    assert last is not None
    for query in (
        everything,
        RequestQuery(status=('open',), graph='g', name='manager'),
        RequestQuery(status=('open',), after=tuple(last), unused=True),
    ):
        found = await plan(filled, query)
        assert 'using graphkeep_requests_open' in found, found
        assert 'Seq Scan' not in found
    assert 'Sort' not in await plan(filled, everything)


@pytest.mark.parametrize('analyzed', [False, True])
async def test_the_requests_of_a_run_are_found_by_its_id(
    filled: asyncpg.Connection, analyzed: bool
) -> None:
    if analyzed:
        await filled.execute('ANALYZE')
    query = RequestQuery(run_id='run-5', status=('open', 'answered'), limit=None)
    assert 'graphkeep_requests_pkey' in await plan(filled, query)


@pytest.mark.parametrize('analyzed', [False, True])
async def test_candidates_are_found_without_the_runs_that_wait(
    filled: asyncpg.Connection, analyzed: bool
) -> None:
    if analyzed:
        await filled.execute('ANALYZE')
    await filled.execute("UPDATE graphkeep_runs SET wake_at = now() WHERE run_id = 'run-7'")
    sql = load('postgres_runs.sql', prefix='graphkeep')['find_candidates']
    [[text]] = await filled.fetch(f'EXPLAIN (ANALYZE, FORMAT JSON) {sql}', ['g', 'h'], 100)
    scans: list[dict[str, object]] = []

    def look(node: dict[str, object]) -> None:
        if 'Scan' in str(node['Node Type']) and node['Node Type'] != 'Subquery Scan':
            scans.append(node)
        for child in node.get('Plans', ()):  # type: ignore[union-attr]
            look(child)

    look(json.loads(text)[0]['Plan'])
    assert {scan.get('Index Name') for scan in scans} - {None} == {
        'graphkeep_runs_status',
        'graphkeep_runs_wake',
    }
    assert all(scan['Node Type'] != 'Seq Scan' for scan in scans)
    read = [int(str(s['Actual Rows']).partition('.')[0]) for s in scans]
    assert max(read) == 10
    assert all(int(str(s.get('Rows Removed by Filter', 0)).partition('.')[0]) == 0 for s in scans)


async def test_ten_thousand_open_requests_are_listed_in_50_ms(filled: asyncpg.Connection) -> None:
    query = RequestQuery(status=('open',), limit=10_000)
    sql, values = finding_requests(load('postgres_runs.sql', prefix='graphkeep'), query)
    times: list[float] = []
    for _ in range(5):
        [[text]] = await filled.fetch(f'EXPLAIN (ANALYZE, FORMAT JSON) {sql}', *values)
        found = json.loads(text)[0]
        assert int(found['Plan']['Actual Rows']) == 10_000
        times.append(found['Execution Time'])
    # Of the fastest: others may be using the machine.
    assert min(times) < 50


# --- locks ----------------------------------------------------------------------------------------


async def waiting(url: str, count: int = 1) -> Callable[[], Awaitable[bool]]:
    async def blocked() -> bool:
        sql = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return len(await rows(url, f'{sql} AND datname = current_database()')) >= count

    return blocked


_ASK = (
    'INSERT INTO graphkeep_requests '
    '(run_id, request_id, name, node, task, status, payload, schema, created_at) '
    "SELECT run_id, '0:late', 'late', 'Node0', '0', 'open', '1', 'true', now() "
    'FROM graphkeep_runs'
)


@pytest.mark.parametrize('call', ['cancel', 'delete'])
async def test_an_end_that_waited_for_a_commit_ends_what_that_asked(
    fresh_postgres_url: str, call: str
) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, tool(url) as other:
        await started(store)
        async with other.transaction():
            await other.execute('UPDATE graphkeep_runs SET seq = 1')
            await other.execute(_ASK)
            coroutine = (
                store.cancel('run-1') if call == 'cancel' else store.delete('run-1', force=True)
            )
            ending = asyncio.ensure_future(coroutine)
            await eventually(await waiting(url), what='it waits')
        await ending
        left = await rows(url, 'SELECT status FROM graphkeep_requests')
        assert left == ([{'status': 'closed'}] if call == 'cancel' else [])


async def test_an_answer_that_waited_for_the_end_of_its_request_is_refused(
    fresh_postgres_url: str,
) -> None:
    url = fresh_postgres_url
    for status in ('closed', 'expired', 'answered'):
        async with PostgresStore(url) as store, tool(url) as other:
            await (await started(store, status)).pauses(asks())
            async with other.transaction():
                await other.execute('SELECT FROM graphkeep_runs FOR UPDATE')
                await other.execute(
                    'UPDATE graphkeep_requests SET status = $1, answer = $2 WHERE run_id = $1',
                    *(status, '{"ok":2}'),
                )
                answer = asyncio.ensure_future(store.answer(status, '0:manager', _OK))
                await eventually(await waiting(url), what='the answer waits')
            with pytest.raises(RequestClosedError):
                await answer
            run = await store.run(status)
            assert (run.answered, run.status) == (0, 'paused')


async def test_a_commit_that_waited_for_an_answer_sees_it(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, tool(url) as other:
        worker = await started(store)
        await worker.step(asks=[asks(), asks('other')])
        async with other.transaction():
            await other.execute('UPDATE graphkeep_runs SET answered = answered + 1')
            await other.execute(
                "UPDATE graphkeep_requests SET status = 'answered', answer = 'true' "
                "WHERE request_id = '0:manager'"
            )
            commit = asyncio.ensure_future(
                worker.pauses(asks('new', timeout=60.0), closes=['0:manager', '0:other'])
            )
            await eventually(await waiting(url), what='the commit waits')
        await commit
        run = await store.run('run-1')
        assert (run.status, run.answered, run.wake_at) == ('ready', 1, None)
        found = {r.name: (r.status, r.answer) for r in await store.requests(status=())}
        assert found == {
            'manager': ('answered', True),
            'other': ('closed', None),
            'new': ('open', None),
        }


async def test_all_that_writes_requests_at_once_locks_nobody_out(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with (
        PostgresStore(url, retry=30) as store,
        PostgresStore(url, retry=30) as other,
    ):
        stores = [store, other]
        workers = [await started(stores[n % 2], f'run-{n}') for n in range(12)]
        names = [f'r{n}' for n in range(6)]
        working = True

        async def works(worker: Worker) -> None:
            number = int(worker.run_id[4:])
            for turn in range(8):
                new = [
                    asks(f'{name}-{turn}', timeout=0.02 if n == number % 6 else None)
                    for n, name in enumerate(names)
                ]
                closes = [f'0:{name}-{turn - 1}' for name in names]
                try:
                    run = await worker.store.run(worker.run_id)
                    await worker.pauses(*new, closes=closes, answered=run.answered)
                    await asyncio.sleep(0.04)
                    if turn == 5 and number % 4 == 0:
                        await stores[turn % 2].cancel(worker.run_id)
                    await worker.take(allow=('ready', 'paused'))
                except GraphkeepError:
                    assert (await worker.store.run(worker.run_id)).status == 'cancelled'
                    return

        async def answers(n: int) -> int:
            given = 0
            while working:
                for request in (await stores[n % 2].requests())[n::3]:
                    with suppress(RequestClosedError):
                        by = f'{n}'
                        mine = await stores[n % 2].answer(
                            request.run_id, request.request_id, {'ok': n}, by=by
                        )
                        given += mine.answered_by == by
                await asyncio.sleep(0)
            return given

        async def expires() -> None:
            while working:
                for n in range(12):
                    await asyncio.gather(*(s.expire(f'run-{n}') for s in stores))
                await asyncio.sleep(0.005)

        others = [asyncio.ensure_future(answers(n)) for n in range(4)]
        others.append(asyncio.ensure_future(expires()))  # type: ignore[arg-type]
        await asyncio.gather(*map(works, workers))
        working = False
        *given, _ = await asyncio.gather(*others)
        found = await store.requests(status=(), limit=10_000)
        answered = [r for r in found if r.answer_json is not None]
        assert {r.status for r in answered} == {'answered'}
        assert all(r.answer_json is None for r in found if r.status != 'answered')
        runs = await store.runs()
        assert sum(run.answered for run in runs) == len(answered) > 20
        assert len(answered) <= sum(given)
        for run in runs:
            if run.status == 'cancelled':
                mine = [r for r in found if r.run_id == run.run_id]
                assert all(r.closed_at is not None and r.status != 'open' for r in mine)
        assert {r.status for r in found} == {'answered', 'expired', 'closed'} | (
            {'open'} & {r.status for r in found}
        )
    assert await deadlocks(url) == 0


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('change', ["status = 'x'", "prompt = '7'", "error = '{}'"])
async def test_a_damaged_request_is_named_and_hides_no_other(
    fresh_postgres_url: str, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        for number in range(5):
            await (await started(store, f'run-{number}')).pauses(asks())
        sql = f'UPDATE graphkeep_requests SET {change} WHERE run_id '
        await run_sql(fresh_postgres_url, f"{sql} IN ('run-1', 'run-3')")
        statuses: Any = ('open', 'x')
        with caplog.at_level(logging.WARNING, 'graphkeep'):
            found = await store.find_requests(RequestQuery(status=statuses, limit=3))
        assert [request.run_id for request in found] == ['run-0', 'run-2', 'run-4']
        assert "run 'run-1'" in caplog.text
        calls = [store.request('run-1', '0:manager'), store.answer('run-1', '0:manager', _OK)]
        for call in calls:
            with pytest.raises(DamagedRunError, match="request '0:manager'") as caught:
                await call
            assert caught.value.run_id == 'run-1'
        assert (await store.run('run-1')).answered == 0


async def test_a_damaged_header_hides_no_candidate(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        for number in range(6):
            await Worker(store, f'run-{number}').create(claimed=False, graph='g')
        sql = "UPDATE graphkeep_runs SET labels = '[1]' WHERE run_id < 'run-3'"
        await run_sql(fresh_postgres_url, sql)
        found = await store.candidates(['g'], limit=2)
        assert [run.run_id for run in found] == ['run-3', 'run-4']
