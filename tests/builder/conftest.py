"""Stores for the tests of the builder front end: those of the 1.x front end."""

from __future__ import annotations

from tests.classic.conftest import database, make_store, open_again, run_id, store

__all__ = ('database', 'make_store', 'open_again', 'run_id', 'store')
