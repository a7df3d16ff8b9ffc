"""The graph that is crashed: six nodes whose state tells how often each of them was committed.

What was started is told by a log outside of the state, which is on the disk before a node goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

from tests.crash.logbook import Journalist

NODES = ('Pack', 'Drive', 'Sail', 'Climb', 'Camp', 'Return')
"""The nodes, in the order they run. The commit of the k-th is snapshot k."""
OUTPUT = 'home after 21 miles'


@dataclass
class Trip:
    """The state."""

    name: str = 'trip'
    commits: dict[str, int] = field(default_factory=dict)
    """How often each node was committed."""
    diary: list[str] = field(default_factory=list)
    """Written before and after the middle of a node: half a node is never to be seen."""


FINAL = Trip(
    commits=dict.fromkeys(NODES, 1),
    diary=[f'{when} {node}' for node in NODES for when in ('before', 'after')],
)
"""The state of a run that nobody disturbed."""


async def _at_once(name: str, node: str) -> None:
    pass


@dataclass(kw_only=True)
class Outside:
    """The dependencies: what is not stored."""

    log: Journalist | None = None
    """Where the start of each node is written."""
    middle: Callable[[str, str], Awaitable[None]] = _at_once
    """Awaited with the names of trip and node in the middle of each node."""


Context = GraphRunContext[Trip, Outside]


async def _travel(ctx: Context, node: str) -> None:
    if ctx.deps.log is not None:
        ctx.deps.log.write('start', ctx.state.name, node)
    ctx.state.diary.append(f'before {node}')
    await ctx.deps.middle(ctx.state.name, node)
    ctx.state.diary.append(f'after {node}')
    ctx.state.commits[node] = ctx.state.commits.get(node, 0) + 1


@dataclass
class Pack(BaseNode[Trip, Outside, str]):
    async def run(self, ctx: Context) -> Drive:
        await _travel(ctx, 'Pack')
        return Drive(1)


@dataclass
class Drive(BaseNode[Trip, Outside, str]):
    miles: int

    async def run(self, ctx: Context) -> Sail:
        await _travel(ctx, 'Drive')
        return Sail(self.miles + 2)


@dataclass
class Sail(BaseNode[Trip, Outside, str]):
    miles: int

    async def run(self, ctx: Context) -> Climb:
        await _travel(ctx, 'Sail')
        return Climb(self.miles + 3)


@dataclass
class Climb(BaseNode[Trip, Outside, str]):
    miles: int

    async def run(self, ctx: Context) -> Camp:
        await _travel(ctx, 'Climb')
        return Camp(self.miles + 4)


@dataclass
class Camp(BaseNode[Trip, Outside, str]):
    miles: int

    async def run(self, ctx: Context) -> Return:
        await _travel(ctx, 'Camp')
        return Return(self.miles + 5)


@dataclass
class Return(BaseNode[Trip, Outside, str]):
    miles: int

    async def run(self, ctx: Context) -> End[str]:
        await _travel(ctx, 'Return')
        return End(f'home after {self.miles + 6} miles')


trip = Graph[Trip, Outside, str](
    nodes=(Pack, Drive, Sail, Climb, Camp, Return), name='trip', auto_instrument=False
)
