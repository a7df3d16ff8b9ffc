"""Stores for the tests of the 1.x front end, and nothing to collect where pydantic-graph is 2.x."""

from __future__ import annotations

import contextlib
import importlib.util
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphkeep
from tests.builder.dying import opener

if importlib.util.find_spec('pydantic_graph.persistence') is None:
    collect_ignore_glob = ['*.py']

MakeStore = Callable[..., graphkeep.Store]

every_store = pytest.mark.parametrize(
    'database',
    [
        'memory',
        'sqlite',
        pytest.param('postgres', marks=pytest.mark.postgres),
        pytest.param('redis', marks=pytest.mark.redis),
    ],
    indirect=True,
)
"""Runs a test on all four stores; without it a test runs on memory and on SQLite."""


on_sqlite = pytest.mark.parametrize('database', ['sqlite'], indirect=True)
"""Runs a test that takes a second or more on SQLite alone."""


in_memory = pytest.mark.parametrize('database', ['memory'], indirect=True)
"""Runs a test in memory alone: one of many whose values never reach a store."""


@pytest.fixture(params=['memory', 'sqlite'])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that no other test writes to; on Postgres, only under other run ids."""
    if request.param == 'memory':
        url = f'memory://{uuid.uuid4().hex}'
        kept = graphkeep.open_store(url)  # stores of one name share runs while one of them exists
        yield url
        del kept
    elif request.param == 'sqlite':
        # Tests of the front end do not ask what a power loss takes.
        yield f'sqlite:///{tmp_path}/runs.db?synchronous=NORMAL'
    else:
        yield request.getfixturevalue(f'{request.param}_url')


@pytest.fixture
async def make_store(database: str) -> AsyncIterator[MakeStore]:
    """`make_store(**options)`: store objects over the test's database, closed at its end."""
    async with contextlib.AsyncExitStack() as stack:

        def make(**options: Any) -> graphkeep.Store:
            store = graphkeep.open_store(database, **options)
            stack.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture
async def open_again(database: str) -> AsyncIterator[MakeStore]:
    """As `make_store`, for stores that live for some milliseconds: they share connections."""
    async with opener(database) as make:
        yield make


@pytest.fixture
def store(make_store: MakeStore) -> graphkeep.Store:
    """A store over the test's database. It opens at its first use and is closed at the end."""
    return make_store()


@pytest.fixture
def run_id() -> str:
    """The id of a run that exists in no database yet."""
    return f'run-{uuid.uuid4().hex}'
