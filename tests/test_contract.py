"""The contract suite over every store that graphkeep has, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graphkeep.store import Store
from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import StoreContract


class OneByOneMemoryStore(MemoryStore):
    max_batch_commits = 1


class Memory(StoreContract):
    outlives_process = False

    @pytest.fixture(autouse=True)
    def keeper(self, request: pytest.FixtureRequest) -> Iterator[None]:
        # Stores of one name share their runs for as long as one of them exists.
        self.name = request.node.nodeid
        self.kept = MemoryStore(self.name)
        yield
        del self.kept

    def make_store(self, **options: Any) -> Store:
        return MemoryStore(self.name, **options)


class TestMemory(Memory):
    pass


class TestMemoryWithPassedLeases(Memory):
    ttl = 0.0


class TestMemoryWithFullSnapshots(Memory):
    always_full = True


class TestMemoryWithClaimsAtEveryStep(Memory):
    reclaims = True


class TestMemoryOneByOne(Memory):
    def make_store(self, **options: Any) -> Store:
        return OneByOneMemoryStore(self.name, **options)
