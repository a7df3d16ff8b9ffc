"""The pydantic-graph 1.x graphs that are run. Imported only where there is pydantic-graph 1.x."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Annotated

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from benchmarks.builder_graphs import approval

__all__ = (
    'Ask',
    'Chat',
    'Counter',
    'Kept',
    'Moments',
    'Page',
    'Plain',
    'PlainTalk',
    'Say',
    'Talk',
    'Tick',
    'Write',
    'askers',
    'chats',
    'conversation',
    'counters',
    'kept_talks',
    'pages',
    'plain_talks',
    'text',
)

Moments = list[float]
"""When each node began: a graph's deps."""


@cache
def text(number: int) -> str:
    """400 characters, other ones for each number."""
    words = random.Random(number)
    out = f'{number}'
    while len(out) < 400:
        out += ' ' + words.choice(_WORDS)
    return out[:400]


_WORDS = (
    'order',
    'refund',
    'please',
    'arrived',
    'customers',
    'waiting',
    'when',
    'not',
    'the',
    'we',
)


def conversation(count: int) -> list[ModelMessage]:
    """So many messages as an agent leaves them: prompts, tool calls, answers."""
    messages: list[ModelMessage] = []
    for number in range(count):
        if number % 2 == 0:
            messages.append(ModelRequest(parts=[UserPromptPart(content=text(number)[:120])]))
        else:
            call = ToolCallPart(tool_name='find_order', args={'number': number})
            messages.append(ModelResponse(parts=[TextPart(content=text(number)[:120]), call]))
    return messages


# --- a small state --------------------------------------------------------------------------------


@dataclass
class Counter:
    customer: str = 'ACME Ltd.'
    count: int = 0
    notes: list[str] = field(default_factory=list[str])


@dataclass
class Tick(BaseNode[Counter, Moments, int]):
    """Counts, and keeps its last ten notes."""

    left: int

    async def run(self, ctx: GraphRunContext[Counter, Moments]) -> Tick | End[int]:
        ctx.deps.append(perf_counter())
        ctx.state.count += 1
        ctx.state.notes = [*ctx.state.notes[-9:], f'step {ctx.state.count}']
        return Tick(self.left - 1) if self.left > 1 else End(ctx.state.count)


counters = Graph[Counter, Moments, int](nodes=(Tick,), name='counters')


@dataclass
class Ask(BaseNode[Counter, Moments, int]):
    """Counts; the last one asks a person before."""

    left: int

    async def run(self, ctx: GraphRunContext[Counter, Moments]) -> Ask | End[int]:
        if self.left == 1:
            await approval(ctx.state.count)
        ctx.state.count += 1
        return Ask(self.left - 1) if self.left > 1 else End(ctx.state.count)


askers = Graph[Counter, Moments, int](nodes=(Ask,), name='askers')


# --- a growing state ------------------------------------------------------------------------------


@dataclass
class Chat:
    messages: list[str] = field(default_factory=list[str])


@dataclass
class Say(BaseNode[Chat, None, int]):
    """Appends a message of 400 bytes."""

    left: int

    async def run(self, ctx: GraphRunContext[Chat]) -> Say | End[int]:
        ctx.state.messages.append(text(len(ctx.state.messages)))
        return Say(self.left - 1) if self.left > 1 else End(len(ctx.state.messages))


chats = Graph[Chat, None, int](nodes=(Say,), name='chats')


@dataclass
class Page:
    lines: Annotated[list[str], graphkeep.AppendOnly] = field(default_factory=list[str])


@dataclass
class Write(BaseNode[Page, None, int]):
    """Appends a line of 200 bytes."""

    left: int

    async def run(self, ctx: GraphRunContext[Page]) -> Write | End[int]:
        ctx.state.lines.append(text(len(ctx.state.lines))[:200])
        return Write(self.left - 1) if self.left > 1 else End(len(ctx.state.lines))


pages = Graph[Page, None, int](nodes=(Write,), name='pages')


# --- messages of agents ---------------------------------------------------------------------------


@dataclass
class Kept:
    messages: Annotated[list[ModelMessage], graphkeep.AppendOnly]


@dataclass
class Plain:
    messages: list[ModelMessage]


@dataclass
class Talk(BaseNode[Kept, Moments, int]):
    """Appends a question and an answer."""

    left: int

    async def run(self, ctx: GraphRunContext[Kept, Moments]) -> Talk | End[int]:
        ctx.deps.append(perf_counter())
        ctx.state.messages += conversation(2)
        return Talk(self.left - 1) if self.left > 1 else End(len(ctx.state.messages))


@dataclass
class PlainTalk(BaseNode[Plain, Moments, int]):
    """The same, with a list that may be changed anywhere."""

    left: int

    async def run(self, ctx: GraphRunContext[Plain, Moments]) -> PlainTalk | End[int]:
        ctx.deps.append(perf_counter())
        ctx.state.messages += conversation(2)
        return PlainTalk(self.left - 1) if self.left > 1 else End(len(ctx.state.messages))


kept_talks = Graph[Kept, Moments, int](nodes=(Talk,), name='kept')
plain_talks = Graph[Plain, Moments, int](nodes=(PlainTalk,), name='plain')
