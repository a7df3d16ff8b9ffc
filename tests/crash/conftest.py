"""Fixtures of the crash tests: the nursery, and the stores that outlive a process.

Where pydantic-graph is 2.x there is only the parallel graph to run.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

import graphkeep
from graphkeep import Store
from tests.crash.children import Nursery, run_nursery
from tests.servers import RedisCluster

if importlib.util.find_spec('pydantic_graph.persistence') is None:
    collect_ignore_glob = ['test_[!pw]*.py']

_nursery: Nursery | None = None
_stack = contextlib.ExitStack()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the nursery before any test, or the first one would be accused of leaving it open."""
    global _nursery
    wanted = any('nursery' in getattr(item, 'fixturenames', ()) for item in session.items)
    if wanted and _nursery is None and not session.config.option.collectonly:
        _nursery = _stack.enter_context(run_nursery())


def pytest_sessionfinish() -> None:
    """Ends the nursery."""
    global _nursery
    _nursery = None
    _stack.close()


@pytest.fixture
def nursery() -> Nursery:
    """Where worker processes come from."""
    assert _nursery is not None
    return _nursery


_STORES = (
    'sqlite',
    pytest.param('postgres', marks=pytest.mark.postgres),
    pytest.param('redis', marks=pytest.mark.redis),
    pytest.param('cluster', marks=pytest.mark.redis),
)

without_cluster = pytest.mark.parametrize('url', _STORES[:3], indirect=True)
"""For tests of hundreds of processes: a cluster differs in its client, which others try."""


@pytest.fixture(params=_STORES)
def url(request: pytest.FixtureRequest) -> str:
    """A store that outlives a process. The tests of one module share a Postgres database."""
    if request.param == 'cluster':
        cluster: RedisCluster = request.getfixturevalue('redis_cluster')
        return cluster.url.replace('redis://', 'redis+cluster://')
    found: str = request.getfixturevalue(f'{request.param}_url')
    return found


@pytest.fixture
def run_id() -> str:
    """The name of a run that no other test has."""
    return uuid4().hex


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store object of the test process."""
    async with graphkeep.open_store(url) as store:
        yield store
