"""How many writes a run costs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import Store
from tests.classic.conftest import every_store
from tests.classic.graphs import (
    count_calls,
    writes,
)


@dataclass
class Tick(BaseNode[None, None, int]):
    left: int

    async def run(self, ctx: GraphRunContext[None]) -> Tick | End[int]:
        return Tick(self.left - 1) if self.left else End(0)


ticks = Graph[None, None, int](nodes=(Tick,), name='ticks')


@every_store
@pytest.mark.parametrize('steps', [1, 20])
async def test_n_nodes_are_n_plus_one_writes(store: Store, run_id: str, steps: int) -> None:
    await store.open()
    calls = count_calls(store)

    await ticks.run(Tick(steps - 1), persistence=store.persistence(run_id))

    assert writes(calls) == {'create': 1, 'append': steps}
    assert calls.keys() == {'create', 'append'}


@every_store
async def test_a_resume_claims_once_and_reads_once(store: Store, run_id: str) -> None:
    await ticks.initialize(Tick(5), store.persistence(run_id))
    calls = count_calls(store)

    await graphkeep.resume(ticks, store.persistence(run_id))

    assert writes(calls) == {'claim': 1, 'append': 6}
    assert calls['read'] == 1


async def test_resuming_what_has_ended_writes_nothing(store: Store, run_id: str) -> None:
    await ticks.run(Tick(2), persistence=store.persistence(run_id))
    calls = count_calls(store)

    await graphkeep.resume(ticks, store.persistence(run_id))

    assert writes(calls) == {}


@dataclass
class Letter:
    text: str
    read: int = 0


@dataclass
class Read(BaseNode[Letter, None, int]):
    left: int

    async def run(self, ctx: GraphRunContext[Letter]) -> Read | End[int]:
        ctx.state.read += 1
        return Read(self.left - 1) if self.left else End(0)


letters = Graph[Letter, None, int](nodes=(Read,), name='letters')


@every_store
@pytest.mark.parametrize(
    ('size', 'kinds'),
    [
        (100, ['full', 'full', 'full', 'full']),
        (1_000, ['full', 'delta', 'delta', 'delta']),
    ],
)
async def test_a_small_document_is_written_whole(
    store: Store, run_id: str, size: int, kinds: list[str]
) -> None:
    await letters.run(Read(2), state=Letter('x' * size), persistence=store.persistence(run_id))

    assert [snapshot.kind for snapshot in await store.snapshots(run_id)] == kinds
