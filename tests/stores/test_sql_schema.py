"""The tables of a database that is spoken to in SQL: never half made, never somebody else's."""

from __future__ import annotations

import pytest

from graphkeep import SchemaError
from graphkeep.testing import Worker
from tests.stores.sql_databases import SQLDatabase, in_both, with_a_step


@in_both
async def test_a_migration_that_fails_changes_nothing(
    sql: SQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sql.store() as store:
        worker = Worker(store)
        await worker.create()
    before = await sql.schema()
    with monkeypatch.context() as patch:
        works = 'ALTER TABLE graphkeep_runs ADD COLUMN note TEXT'
        with_a_step(patch, sql.sets_up, works, 'ALTER TABLE x')
        with pytest.raises(SchemaError, match='cannot be made'):
            await sql.store().open()
    assert await sql.schema() == before
    async with sql.store() as store:
        await worker.check(store=store)


@in_both
async def test_a_newer_schema_is_refused_and_left_as_it_is(
    sql: SQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        with_a_step(patch, sql.sets_up, 'CREATE TABLE graphkeep_notes (run_id TEXT)')
        async with sql.store():
            pass
    before = await sql.content()
    with pytest.raises(SchemaError, match=r'version 4; .* up to 3\. Upgrade'):
        await sql.store().open()
    assert await sql.content() == before


@in_both
@pytest.mark.parametrize(
    'table',
    [
        'graphkeep_meta (id INTEGER)',
        "graphkeep_meta (name TEXT, value TEXT DEFAULT 'x')",
        'graphkeep_runs (id INTEGER)',
    ],
)
async def test_tables_of_another_program_are_not_touched(sql: SQLDatabase, table: str) -> None:
    await sql.run(f'CREATE TABLE {table}')
    before = await sql.schema()
    with pytest.raises(SchemaError, match='table_prefix'):
        await sql.store().open()
    assert await sql.schema() == before
