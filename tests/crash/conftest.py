"""Fixtures of the crash tests: the nursery, and the stores that outlive a process."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

from tests.crash.children import Nursery, run_nursery

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


@pytest.fixture(
    params=[
        'sqlite',
        pytest.param('postgres', marks=pytest.mark.postgres),
        pytest.param('redis', marks=pytest.mark.redis),
    ]
)
def url(request: pytest.FixtureRequest) -> str:
    """A store that outlives a process; of Postgres, tests of one module share a database."""
    module = f'graphkeep.stores.{request.param}'
    assert importlib.util.find_spec(module), f'{module} is missing'
    found: str = request.getfixturevalue(f'{request.param}_url')
    return found
