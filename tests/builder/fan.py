"""A map of steps that wait for one another's fate, one join, and a last step.

Steps wait where they are told to, so that a test knows which of them are in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import Store, merge, once

ITEMS = 4


def output(items: int = ITEMS) -> list[int]:
    """What an undisturbed run gives."""
    return [n * 10 for n in range(items)]


def ends(items: int = ITEMS) -> dict[str, int]:
    """How often each step of it ends."""
    return {'count': 1, 'last': 1, **{f'work-{n}': 1 for n in range(items)}}


@dataclass
class Tally:
    """The state."""

    ends: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """The steps that have ended; those that are half done are not to be seen."""

    def end(self, name: str) -> None:
        self.ends[name] = self.ends.get(name, 0) + 1
        self.order.append(name)


@dataclass
class Worker:
    """The dependencies: one process that runs the graph."""

    held: set[str] = field(default_factory=set)
    """Steps that wait until they are let go."""
    fails: set[str] = field(default_factory=set)
    ran: Counter[str] = field(default_factory=Counter)
    stopped: list[str] = field(default_factory=list)
    """Steps that were cancelled."""
    asks: bool = False
    """Each step keeps a value with `once` when it has waited, whatever that raises."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def begins(self, name: str) -> None:
        """A step starts."""
        self.ran[name] += 1
        await self._tell()

    async def work(self, name: str) -> None:
        """What each step does."""
        await self.begins(name)
        try:
            async with self.changed:
                await self.changed.wait_for(lambda: name not in self.held)
        except asyncio.CancelledError:
            self.stopped.append(name)
            raise
        if self.asks:
            with contextlib.suppress(graphkeep.GraphkeepError):
                await once('asked', _answer)
        if name in self.fails:
            raise ValueError(f'{name} fails')

    async def let_go(self, *names: str) -> None:
        self.held.difference_update(names)
        await self._tell()

    async def runs(self, *names: str) -> None:
        """Wait until these have started."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.ran.keys() >= {*names})

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


async def _answer() -> int:
    return 1


def fan() -> Any:
    """A map of `work`, one join, and `last`."""
    g: Any = GraphBuilder(
        name='fan',
        state_type=Tally,
        deps_type=Worker,
        input_type=int,
        output_type=list[int],
        auto_instrument=False,
    )

    @g.step
    async def count(ctx: StepContext[Tally, Worker, int]) -> list[int]:
        await ctx.deps.work('count')
        ctx.state.end('count')
        return list(range(ctx.inputs))

    @g.step
    async def work(ctx: StepContext[Tally, Worker, int]) -> int:
        name = f'work-{ctx.inputs}'
        ctx.state.order.append(f'{name} begins')
        await ctx.deps.work(name)
        ctx.state.order.remove(f'{name} begins')
        ctx.state.end(name)
        return ctx.inputs * 10

    @g.step
    async def last(ctx: StepContext[Tally, Worker, list[int]]) -> list[int]:
        await ctx.deps.work('last')
        ctx.state.end('last')
        return sorted(ctx.inputs)

    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(count),
        g.edge_from(count).map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(last),
        g.edge_from(last).to(g.end_node),
    )
    return g.build()


async def stored(store: Store, run_id: str) -> Tally:
    """The state of a run as it is committed."""
    return _plan.state.decode((await store.document(run_id)).state)


async def until_committed(store: Store, run_id: str, *names: str) -> None:
    """Wait until these steps are committed."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(graphkeep.RunNotFoundError):
                if (await stored(store, run_id)).ends.keys() >= {*names}:
                    return
            await asyncio.sleep(0.005)


async def check_undisturbed(store: Store, run_id: str, items: int = ITEMS) -> None:
    """A run has ended as if nothing had happened."""
    run = await store.run(run_id)
    assert (run.status, run.owner) == ('done', None)
    state = await stored(store, run_id)
    assert state.ends == ends(items)
    assert sorted(state.order) == sorted(ends(items))
    seqs = [snapshot.seq for snapshot in await store.snapshots(run_id)]
    assert seqs == list(range(run.seq + 1))


kept: Any = graphkeep.persist(fan())
"""The graph, kept."""
_plan = kept._plan
