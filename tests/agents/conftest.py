"""Stores and stages for the tests of agents; nothing to collect where there is no pydantic-ai."""

from __future__ import annotations

import importlib.util

import pytest

from graphkeep import Store
from tests.classic.conftest import database, make_store, open_again, run_id, store

__all__ = ('database', 'make_store', 'open_again', 'run_id', 'stage', 'store')

if importlib.util.find_spec('pydantic_ai') is None:
    collect_ignore_glob = ['*.py']
else:
    from .staging import FRONT_ENDS, Stage

    @pytest.fixture(params=FRONT_ENDS)
    def stage(request: pytest.FixtureRequest, store: Store, run_id: str) -> Stage:
        """Runs a body as the one step or node of a kept graph."""
        return Stage(store, run_id, front_end=request.param)
