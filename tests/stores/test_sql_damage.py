"""Damage in a database that is spoken to in SQL: named, and no other run is stopped by it."""

from __future__ import annotations

import logging

import pytest

from graphkeep import DamagedRunError
from graphkeep.testing import Worker
from tests.stores.sql_databases import SQLDatabase, in_each, two_runs


@in_each(
    'change',
    sqlite=[
        'SET data = \'{"format":1,\'',
        "SET data = ''",
        'SET data = 7',
        "SET data = x'ff00'",
        "SET kind = 'full'",
        'SET seq = 1000',
    ],
    postgres=[
        "SET data = '[]'",
        "SET data = '7'",
        'SET data = \'{"format":1,"state":[["x",7]]}\'',
        "SET kind = 'full', data = '{}'",
        'SET seq = 1000',
        "SET run_id = 'somewhere else'",
    ],
)
async def test_a_damaged_snapshot_is_named_and_other_runs_go_on(
    sql: SQLDatabase, change: str
) -> None:
    async with sql.store() as store:
        other = await two_runs(store)
        await sql.run(f"UPDATE graphkeep_snapshots {change} WHERE run_id = 'damaged' AND seq = 1")
        with pytest.raises(DamagedRunError) as caught:
            await store.document('damaged')
        assert caught.value.run_id == 'damaged'
        assert caught.value.seq in (1, 2)
        assert (await store.document('damaged', at=0)).to_json()
        await other.step()
        await other.check()
        assert len(await store.runs()) == 2


@in_each(
    'change',
    sqlite=["kind = 'half'", "event = 'x'", "created_at = 'now'", "error = '['", "error = '7'"],
    postgres=["kind = 'half'", "event = 'x'", "error = '7'"],
)
async def test_damage_around_the_data_is_named(sql: SQLDatabase, change: str) -> None:
    async with sql.store() as store:
        other = await two_runs(store)
        await sql.run(
            f"UPDATE graphkeep_snapshots SET {change} WHERE run_id = 'damaged' AND seq = 1"
        )
        with pytest.raises(DamagedRunError, match='Snapshot 1 of run') as caught:
            await store.snapshots('damaged')
        assert (caught.value.run_id, caught.value.seq) == ('damaged', 1)
        await other.step()
        await other.check()


@in_each(
    'change',
    sqlite=[
        "status = 'walking'",
        "labels = '{'",
        "labels = '[1]'",
        "error = 'x'",
        "seq = 'x'",
        "epoch = 'x'",
        "lease_until = 'x'",
        "updated_at = 'x'",
        'updated_at = 9e18',
    ],
    postgres=["status = 'walking'", "labels = '[1]'", "error = '7'"],
)
async def test_a_damaged_header_is_named_and_hides_no_other_run(
    sql: SQLDatabase, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    async with sql.store() as store:
        for number in range(5):
            await Worker(store, f'earlier-{number}').create(labels={'a': 'b'})
        await two_runs(store)
        await sql.run(f"UPDATE graphkeep_runs SET {change} WHERE run_id = 'damaged'")
        for call in (store.run, store.document, store.claim):
            with pytest.raises(DamagedRunError, match='The header of run') as caught:
                await call('damaged')
            assert (caught.value.run_id, caught.value.seq) == ('damaged', None)
        with caplog.at_level(logging.WARNING, 'graphkeep'):
            assert len(await store.runs(limit=6)) == 6
        assert "run 'damaged'" in caplog.text
        assert len(await store.runs(labels={'a': 'b'})) == 5
