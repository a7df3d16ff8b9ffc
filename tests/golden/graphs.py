"""The graphs whose runs the golden files hold. They must not change: the files would not fit any
more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic_graph import (
    BaseNode,
    End,
    GraphBuilder,
    GraphRunContext,
    StepContext,
    reduce_list_append,
)

from graphkeep import AppendOnly, merge, wait_for

WORDS = ['plain', 'zwölf € 🐝', 'nul \0 inside', 'lone \ud83d surrogate', '"quoted" \\ back']


@dataclass
class Memory:
    count: int = 0
    big: int = 2**80
    price: Decimal = Decimal('1.10')
    ratio: float = float('nan')
    when: datetime = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    tags: set[str] = field(default_factory=set)
    log: Annotated[list[str], AppendOnly] = field(default_factory=list)
    raw: bytes = b'\xff\x00'


@dataclass
class Speak(BaseNode[Memory, None, str]):
    word: int = 0
    fail_at: int | None = None

    async def run(self, ctx: GraphRunContext[Memory]) -> Speak | Stop:
        if self.word == self.fail_at:
            raise ValueError(WORDS[self.word])
        ctx.state.count += 1
        ctx.state.log.append(WORDS[self.word])
        ctx.state.tags |= {WORDS[self.word], str(self.word)}
        return Speak(self.word + 1, self.fail_at) if self.word + 1 < len(WORDS) else Stop()


@dataclass
class Stop(BaseNode[Memory, None, str]):
    async def run(self, ctx: GraphRunContext[Memory]) -> End[str]:
        return End(' | '.join(ctx.state.log))


@dataclass
class Totals:
    sum: Annotated[int, merge.add] = 0


class Deps:
    """Which items fail, so that a run stops in the middle of its map."""

    def __init__(self, *fail: int) -> None:
        self.fail = fail


_g = GraphBuilder(
    state_type=Totals, deps_type=Deps, input_type=list[int], output_type=list[int], name='squares'
)


@_g.step
async def square(ctx: StepContext[Totals, Deps, int]) -> int:
    if ctx.inputs in ctx.deps.fail:
        raise ValueError(f'{ctx.inputs} fails')
    ctx.state.sum += ctx.inputs
    return ctx.inputs**2


@_g.step
async def ordered(ctx: StepContext[Totals, Deps, list[int]]) -> list[int]:
    return sorted(ctx.inputs)


_collect = _g.join(reduce_list_append, initial_factory=list[int], node_id='collect')
_g.add(
    _g.edge_from(_g.start_node).map(fork_id='numbers').to(square),
    _g.edge_from(square).to(_collect),
    _g.edge_from(_collect).to(ordered),
    _g.edge_from(ordered).to(_g.end_node),
)
squares = _g.build()


# --- since schema 2 -------------------------------------------------------------------------------

_a = GraphBuilder(state_type=Totals, deps_type=Deps, input_type=int, output_type=str, name='asking')


@_a.step
async def ask(ctx: StepContext[Totals, Deps, int]) -> str:
    payload = {'words': WORDS[:3], 'amount': ctx.inputs}
    first = await wait_for(Decimal, 'first', prompt=WORDS[3], payload=payload)
    second = await wait_for(str, timeout=3_000_000, default='none')
    third = await wait_for(int)
    return f'{first} {second} {third}'


_a.add(_a.edge_from(_a.start_node).to(ask), _a.edge_from(ask).to(_a.end_node))
asking = _a.build()
