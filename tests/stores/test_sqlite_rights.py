"""A SQLite store in a process that may not do everything with its file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graphkeep import SchemaError
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing import Worker
from tests.stores.sqlite_children import child, output


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can get to, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix='graphkeep-'))
    directory.chmod(0o777)
    yield directory
    directory.chmod(0o777)
    shutil.rmtree(directory)


@pytest.fixture
def unprivileged(public: Path, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """`unprivileged()`: tries a store in a process that has no rights but those of everybody."""
    code = """
        import json
        def told(e):
            return [type(e).__name__, str(e)]
        async def use(path):
            found = {}
            try:
                async with SQLiteStore(path, retry=0) as store:
                    found['runs'] = [run.run_id for run in await store.runs()]
                    found['document'] = bool((await store.document('run-1')).to_json())
                    for name, call in (
                        ('create', start(store, 'run-2')), ('claim', store.claim('run-1'))
                    ):
                        try:
                            await call
                        except StoreError as e:
                            found[name] = told(e)
            except StoreError as e:
                found['open'] = told(e)
            return found
        if os.geteuid() == 0:
            # Once with all rights: everybody may not be able to import what is imported late.
            asyncio.run(use(sys.argv[2]))
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        print(json.dumps(asyncio.run(use(path))))
        """
    rehearsal = tmp_path / 'rehearsal.db'
    asyncio.run(ready_run(rehearsal))

    def run() -> dict[str, Any]:
        [line] = output(child(code, public / 'runs.db', rehearsal, cwd='/'))
        return json.loads(line)

    return run


async def ready_run(path: Path) -> None:
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create(claimed=False)


Try = Callable[[], dict[str, Any]]
posix = pytest.mark.skipif(os.name != 'posix', reason='needs rights as POSIX has them')


@posix
async def test_a_file_that_may_only_be_read_can_be_read(public: Path, unprivileged: Try) -> None:
    await ready_run(public / 'runs.db')
    (public / 'runs.db').chmod(0o444)
    found = unprivileged()
    assert found['runs'] == ['run-1']
    assert found['document'] is True
    for call in ('create', 'claim'):
        name, message = found[call]
        assert name == 'StoreWriteError'
        assert 'the right to write the file and its directory' in message
        assert str(public / 'runs.db') in message


@posix
async def test_a_copy_that_is_no_wal_file_can_be_read_in_a_read_only_directory(
    public: Path, unprivileged: Try
) -> None:
    path = public / 'runs.db'
    await ready_run(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute('PRAGMA journal_mode = DELETE').fetchone() == ('delete',)
    path.chmod(0o444)
    public.chmod(0o555)
    found = unprivileged()
    assert found['runs'] == ['run-1']
    assert found['create'][0] == 'StoreWriteError'


@posix
@pytest.mark.parametrize(
    ('file', 'directory', 'reason'),
    [
        (0o444, 0o555, 'and its directory, where SQLite keeps a -wal and a -shm file'),
        (0o666, 0o555, 'and its directory, where SQLite keeps a -wal and a -shm file'),
        (0o000, 0o777, 'no right to read it'),
    ],
)
async def test_rights_that_are_missing_are_named(
    public: Path, unprivileged: Try, file: int, directory: int, reason: str
) -> None:
    await ready_run(public / 'runs.db')
    (public / 'runs.db').chmod(file)
    public.chmod(directory)
    name, message = unprivileged()['open']
    assert name == 'StoreWriteError'
    assert reason in message


@posix
def test_a_file_that_may_not_be_made_is_named(public: Path, unprivileged: Try) -> None:
    public.chmod(0o555)
    name, message = unprivileged()['open']
    assert name == 'StoreWriteError'
    assert 'no right to create it' in message


@posix
def test_a_schema_that_may_not_be_made_is_a_schema_error(public: Path, unprivileged: Try) -> None:
    with closing(sqlite3.connect(public / 'runs.db')) as connection:
        connection.execute('CREATE TABLE orders (id INTEGER)')
    (public / 'runs.db').chmod(0o444)
    name, message = unprivileged()['open']
    assert name == SchemaError.__name__
    assert 'no tables of graphkeep' in message
