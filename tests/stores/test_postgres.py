"""What is special to Postgres: the stored form, commits in flight, damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from graphkeep import DamagedRunError, LeaseLostError, StoreError, StoreWriteError
from graphkeep.stores.postgres import PostgresStore
from graphkeep.testing import Worker, eventually
from tests.servers import PostgresServer
from tests.stores.postgres_tool import rows, run_sql, tool
from tests.stores.sql_databases import two_runs

pytestmark = pytest.mark.postgres


# --- the stored form ------------------------------------------------------------------------------


async def test_a_run_is_stored_as_plain_rows(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    started = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
    async with PostgresStore(url, lease=60) as store:
        worker = Worker(store, 'order-42', owner='host/1', ttl=60)
        created = await worker.create(graph='orders', labels={'städt': '"1"'})
        await worker.step(node='Price', task='0', started_at=started, duration=0.25)
        run = await store.run('order-42')
        snapshots = await store.snapshots('order-42')
    since = (created.created_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    [header] = await rows(url, 'SELECT * FROM graphkeep_runs')
    assert len(header.pop('nonce')) == 16
    assert abs(header.pop('lease_until') - run.updated_at - timedelta(minutes=1)) < timedelta(
        seconds=1
    )
    assert header == {
        'run_id': 'order-42',
        'graph': 'orders',
        'status': 'running',
        'seq': 1,
        'full_seq': 0,
        'epoch': since,
        'owner': 'host/1',
        'labels': '{"städt": "\\"1\\""}',
        'error': None,
        'parent_run_id': None,
        'parent_seq': None,
        'created_at': created.created_at,
        'updated_at': run.updated_at,
        'answered': 0,
        'wake_at': None,
    }
    assert await rows(url, 'SELECT * FROM graphkeep_snapshots ORDER BY seq') == [
        {
            'run_id': 'order-42',
            'seq': 0,
            'kind': 'full',
            'event': 'start',
            'data': worker.texts[0].decode(),
            'node': None,
            'task': None,
            'started_at': None,
            'duration': None,
            'error': None,
            'created_at': created.created_at,
        },
        {
            'run_id': 'order-42',
            'seq': 1,
            'kind': 'delta',
            'event': 'step',
            'data': snapshots[1].data.decode(),
            'node': 'Price',
            'task': '0',
            'started_at': started,
            'duration': 0.25,
            'error': None,
            'created_at': run.updated_at,
        },
    ]
    assert await rows(url, 'SELECT * FROM graphkeep_meta') == [
        {'name': 'schema_version', 'value': '3'}
    ]


async def test_a_run_that_failed_has_its_error_in_the_header(fresh_postgres_url: str) -> None:
    error = {'type': 'ValueError', 'message': 'not \ud800 UTF-8, nor \0'}
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step(status='failed', event='error', error=error)
        assert (await store.run('run-1')).error == error
        assert (await store.snapshots('run-1'))[1].error == error
    stored = '{"type": "ValueError", "message": "not \\ud800 UTF-8, nor \\u0000"}'
    sql = 'SELECT status, owner, lease_until, error FROM graphkeep_runs'
    assert await rows(fresh_postgres_url, sql) == [
        {'status': 'failed', 'owner': None, 'lease_until': None, 'error': stored}
    ]


@pytest.mark.parametrize(
    'value',
    [
        r'"\u0000 and \ud800 and \udc00\ud800"',
        '[1.0,1,1e2,1E+2,-0.0,0.10000000000000000055511151231257827,123456789012345678901234567890]',
        '"Größe 🙂 \u2028"',
        r'"\/ \u002f \""',
        '{"b":1,"a":2,"b":3}',
        '{ "spaces" :\t[ 1 , 2 ]\n}',
    ],
)
async def test_payloads_are_stored_byte_for_byte(fresh_postgres_url: str, value: str) -> None:
    state = value.encode()
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create(state={'value': state})
        assert state in worker.texts[0]
        assert (await store.snapshots('run-1'))[0].data == worker.texts[0]
    [stored] = await rows(fresh_postgres_url, 'SELECT data FROM graphkeep_snapshots')
    assert stored['data'].encode() == worker.texts[0]


async def test_the_tables_are_as_they_should_be(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url):
        pass
    columns = await rows(
        fresh_postgres_url,
        """
        SELECT relname || '.' || attname AS name, format_type(atttypid, atttypmod) AS type,
               attcompression::text AS compression
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relname LIKE 'graphkeep%' AND relkind = 'r' AND attnum > 0
        """,
    )
    types = {column['name']: column['type'] for column in columns}
    assert types['graphkeep_snapshots.data'] == 'json'
    assert types['graphkeep_snapshots.error'] == types['graphkeep_runs.error'] == 'json'
    for column in ('prompt', 'payload', 'schema', 'answer', 'error'):
        assert types[f'graphkeep_requests.{column}'] == 'json'
    assert types['graphkeep_runs.labels'] == 'jsonb'
    assert {
        kind for name, kind in types.items() if name.endswith(('_at', 'until', 'deadline'))
    } == {'timestamp with time zone'}
    [server] = await rows(
        fresh_postgres_url,
        "SELECT 'lz4' = ANY (enumvals) AS lz4 FROM pg_settings "
        "WHERE name = 'default_toast_compression'",
    )
    compression = {column['name']: column['compression'] for column in columns}
    for column in ('snapshots.data', 'requests.payload', 'requests.schema', 'requests.answer'):
        assert compression[f'graphkeep_{column}'] == ('l' if server['lz4'] else '')
    [table] = await rows(
        fresh_postgres_url, "SELECT reloptions FROM pg_class WHERE relname = 'graphkeep_runs'"
    )
    assert table['reloptions'] == ['fillfactor=70']


async def test_steps_touch_no_index_of_the_header(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(5)]
        for worker in workers:
            await worker.create(graph='g', labels={'customer': 'x' * 50})
        for _ in range(60):
            await asyncio.gather(*(worker.step(node='Node') for worker in workers))
        await store.renew([worker.claim for worker in workers])

    async def written() -> tuple[int, int]:
        [row] = await rows(
            fresh_postgres_url,
            'SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables '
            "WHERE relname = 'graphkeep_runs'",
        )
        return row['all'], row['hot']

    async def counted() -> bool:
        return (await written())[0] >= 305

    await eventually(counted, what='the server counts its updates', timeout=30)
    updates, hot = await written()
    # A page that has just filled up is left once.
    assert updates - 10 <= hot <= updates


async def transactions(connection: asyncpg.Connection) -> int:
    """The number of a write transaction of our own, which is one more each time."""
    row = await connection.fetchrow('SELECT pg_current_xact_id()::text')
    assert row is not None
    return int(row[0])


async def test_an_undisturbed_run_is_one_transaction_a_commit(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        async with tool(fresh_postgres_url) as connection:
            before = await transactions(connection)
            for _ in range(20):
                await worker.step()
            after = await transactions(connection)
    assert after - before - 1 == 20
    sql = 'SELECT xmin::text FROM graphkeep_runs UNION ALL SELECT xmin::text FROM '
    newest = await rows(fresh_postgres_url, sql + 'graphkeep_snapshots WHERE seq = 20')
    assert newest[0] == newest[1]


async def test_commits_of_many_runs_share_a_transaction(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(64)]
        for worker in workers:
            await worker.create()
        await asyncio.gather(*(worker.step() for worker in workers))
        for worker in workers[:3]:
            await worker.check()
    sql = 'SELECT DISTINCT xmin::text FROM graphkeep_snapshots WHERE seq = 1'
    assert len(await rows(fresh_postgres_url, sql)) == 1


async def test_a_full_snapshot_drops_older_ones_in_its_own_transaction(
    fresh_postgres_url: str,
) -> None:
    async with PostgresStore(fresh_postgres_url, history='latest') as store:
        one, other = Worker(store, 'one'), Worker(store, 'other')
        for worker in (one, other):
            await worker.create()
            await worker.step()
        commits = [one.commit(kind='full', history='latest'), other.commit(history='latest')]
        endings = await asyncio.gather(*map(store.append, commits))
        assert [ending.error for ending in endings] == [None, None]
    left = await rows(fresh_postgres_url, 'SELECT run_id, seq FROM graphkeep_snapshots')
    assert sorted((row['run_id'], row['seq']) for row in left) == [
        ('one', 2),
        ('other', 0),
        ('other', 1),
        ('other', 2),
    ]


async def test_a_full_snapshot_that_is_refused_drops_nothing(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url, history='latest') as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        await store.cancel('run-1')
        ending = await store.append(worker.commit(kind='full', history='latest'))
        assert isinstance(ending.error, LeaseLostError)
        assert [s.seq for s in await store.snapshots('run-1')] == [0, 1]


@pytest.mark.parametrize(
    ('wanted', 'index'),
    [
        ('labels @> \'{"a":"b"}\'::text::jsonb', 'graphkeep_runs_labels'),
        ("status = 'running'", 'graphkeep_runs_status'),
        ("parent_run_id = 'x'", 'graphkeep_runs_parent'),
        ("(created_at, run_id) < (now(), 'x')", 'graphkeep_runs_newest'),
        ('wake_at <= now()', 'graphkeep_runs_wake'),
    ],
)
async def test_what_is_looked_for_has_an_index(
    fresh_postgres_url: str, wanted: str, index: str
) -> None:
    async with PostgresStore(fresh_postgres_url):
        pass
    async with tool(fresh_postgres_url) as connection:
        await connection.execute('SET enable_seqscan = off; SET enable_sort = off')
        plan = await connection.fetch(f'EXPLAIN SELECT 1 FROM graphkeep_runs WHERE {wanted}')
    assert index in str(plan)


# --- commits that are refused, and that are in flight ---------------------------------------------


async def test_a_payload_that_the_server_refuses_fails_alone(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(5)]
        for worker in workers:
            await worker.create()
        commits = [worker.commit() for worker in workers]
        for number, data in ((1, b'{"secret": NaN}'), (3, b'"\xff"')):
            draft = commits[number].draft._replace(data=data)
            commits[number] = commits[number]._replace(draft=draft)
        endings = await asyncio.gather(*map(store.append, commits))
        refused = [type(ending.error) for ending in endings]
        assert refused == [type(None), StoreWriteError, type(None), StoreWriteError, type(None)]
        assert 'secret' not in str(endings[1].error)
        for number in (0, 2, 4):
            workers[number].written(commits[number])
        for worker in workers:
            await worker.check()
            await worker.step()


async def test_a_value_that_the_driver_refuses_fails_alone(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        workers = [Worker(store, f'run-{number}') for number in range(3)]
        for worker in workers:
            await worker.create()
        commits = [worker.commit() for worker in workers]
        draft = commits[1].draft._replace(started_at='yesterday')
        commits[1] = commits[1]._replace(draft=draft)
        endings = await asyncio.gather(*map(store.append, commits))
        assert [ending.error is None for ending in endings] == [True, False, True]
        assert isinstance(endings[1].error, StoreError)
        assert (await store.run('run-1')).seq == 0
        await workers[1].step()


async def blocked(url: str) -> bool:
    """Whether somebody waits for a lock."""
    return bool(await rows(url, 'SELECT 1 FROM pg_locks WHERE NOT granted'))


async def test_a_claim_that_waited_for_a_commit_has_its_snapshot(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, tool(url) as other:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        commit = worker.commit(status='failed', event='error', error={'type': 'ValueError'})
        # The lease has passed, and just now the owner commits after all.
        await other.execute('UPDATE graphkeep_runs SET lease_until = NULL')
        async with other.transaction():
            await other.execute("UPDATE graphkeep_runs SET seq = 2, status = 'failed'")
            await other.execute(
                "INSERT INTO graphkeep_snapshots SELECT run_id, 2, 'delta', 'error', "
                '$1::text::json, NULL, NULL, NULL, NULL, NULL, now() FROM graphkeep_runs',
                commit.draft.data.decode(),
            )
            claim = asyncio.ensure_future(worker.successor().take(allow=('ready', 'failed')))
            await eventually(lambda: blocked(url), what='the claim waits')
        claimed = await claim
        assert claimed.run.seq == 2
        assert [snapshot.seq for snapshot in claimed.snapshots] == [0, 1, 2]


async def test_a_delete_that_waited_for_a_commit_leaves_nothing(fresh_postgres_url: str) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, tool(url) as other:
        await Worker(store).create()
        async with other.transaction():
            await other.execute('UPDATE graphkeep_runs SET seq = 1')
            await other.execute(
                "INSERT INTO graphkeep_snapshots SELECT run_id, 1, 'delta', 'step', '{}', NULL, "
                'NULL, NULL, NULL, NULL, now() FROM graphkeep_runs'
            )
            deleting = asyncio.ensure_future(store.delete('run-1', force=True))
            await eventually(lambda: blocked(url), what='the delete waits')
        await deleting
        assert await rows(url, 'SELECT * FROM graphkeep_snapshots') == []
        await Worker(store).create()


async def test_writers_of_the_same_runs_do_not_lock_each_other_out(
    fresh_postgres_url: str,
) -> None:
    url = fresh_postgres_url
    async with PostgresStore(url) as store, PostgresStore(url) as other:
        workers = [Worker(store, f'run-{number}') for number in range(40)]
        for worker in workers:
            await worker.create()
        claims = [worker.claim for worker in workers]
        for _ in range(15):
            # Both have the same claims, as a process and its zombie would, and hand their commits
            # in from opposite ends.
            ours = [worker.commit() for worker in workers]
            theirs = [worker.commit() for worker in reversed(workers)]
            writes = [store.append(commit) for commit in ours]
            writes += [other.append(commit) for commit in theirs]
            endings, *_ = await asyncio.gather(
                asyncio.gather(*writes), store.renew(claims), other.renew(claims[::-1])
            )
            errors = [ending.error for ending in endings]
            for worker, commit, error, zombie in zip(
                workers, ours, errors[:40], reversed(errors[40:]), strict=True
            ):
                assert {type(error), type(zombie)} == {type(None), LeaseLostError}
                worker.written(commit)
        for worker in workers[:3]:
            await worker.check()
    [row] = await rows(
        url, 'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'
    )
    assert row['deadlocks'] == 0


# --- damage ---------------------------------------------------------------------------------------


async def test_a_snapshot_in_the_place_of_the_next_is_damage(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        other = await two_runs(store)
        worker = Worker(store, 'next')
        await worker.create()
        await run_sql(
            fresh_postgres_url,
            "UPDATE graphkeep_snapshots SET run_id = 'next', seq = 1 WHERE seq = 2; "
            "UPDATE graphkeep_snapshots SET run_id = 'third', seq = 0 WHERE seq = 1 "
            "AND run_id = 'damaged'",
        )
        commits = [worker.commit(), other.commit()]
        endings = await asyncio.gather(*map(store.append, commits))
        assert isinstance(endings[0].error, DamagedRunError)
        assert (endings[0].error.run_id, endings[0].error.seq) == ('next', 1)
        assert endings[1].error is None
        assert (await store.run('next')).seq == 0
        with pytest.raises(DamagedRunError, match="Snapshot 0 of run 'third'"):
            await Worker(store, 'third').create()


async def test_a_payload_lost_on_the_disk_is_named_and_other_runs_go_on(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    server = make_postgres()
    url = server.create_database()
    async with PostgresStore(url) as store:
        worker, other = Worker(store, 'damaged'), Worker(store, 'other')
        await worker.create()
        await other.create()
        await worker.step()
        # Too large for its row, and not to be compressed: it goes to the table's own side table.
        noise = ''.join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(4_000))
        await worker.step(state={'noise': noise})
        await worker.step()
    [place] = await rows(
        url,
        "SELECT current_setting('data_directory') AS folder, pg_relation_filepath(reltoastrelid) "
        "AS file FROM pg_class WHERE relname = 'graphkeep_snapshots'",
    )
    server.stop()
    file = Path(place['folder']) / place['file']
    size = file.stat().st_size
    assert size > 0
    file.write_bytes(b'\0' * size)
    server.start()
    async with PostgresStore(url) as store:
        for call in (store.document, store.snapshots, store.claim):
            await store.release(worker.claim)
            with pytest.raises(DamagedRunError) as caught:
                await call('damaged')
            assert (caught.value.run_id, caught.value.seq) == ('damaged', 2)
        assert (await store.document('damaged', at=1)).to_json() == worker.texts[1]
        # The claim was refused as a whole.
        assert (await store.run('damaged')).status == 'ready'
        other = other.successor(store)
        assert len(await store.runs()) == 2
        await other.store.cancel('other')
