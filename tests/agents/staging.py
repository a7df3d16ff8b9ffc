"""Graphs of one step whose body is the test's, and models that follow a script."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext

import graphkeep
from graphkeep import Request, RunPausedError, Store

Body = Callable[[], Awaitable[Any]]

FRONT_ENDS = ['builder']
if importlib.util.find_spec('pydantic_graph.persistence') is not None:
    FRONT_ENDS.append('1.x node')


@dataclass
class Deps:
    body: Body


@dataclass
class Act(BaseNode[None, Deps, int]):
    async def run(self, ctx: GraphRunContext[None, Deps]) -> End[int]:
        await ctx.deps.body()
        return End(0)


def _kept() -> Any:
    g: Any = GraphBuilder(deps_type=Deps, input_type=int, output_type=int, auto_instrument=False)

    @g.step(node_id='Act')
    async def act(ctx: StepContext[None, Deps, int]) -> int:
        await ctx.deps.body()
        return 0

    g.add(g.edge_from(g.start_node).to(act), g.edge_from(act).to(g.end_node))
    return graphkeep.persist(g.build())


@dataclass
class Stage:
    """One run of one step."""

    store: Store
    run_id: str
    front_end: str = 'builder'
    begun: bool = False

    async def play(self, body: Body) -> Any:
        """Start the run, or resume it; gives what the body gave."""
        given: list[Any] = []

        async def noted() -> None:
            given.append(await body())

        deps, persistence = Deps(noted), self.store.persistence(self.run_id)
        resume, self.begun = self.begun, True
        if self.front_end == 'builder':
            kept = _kept()
            if resume:
                await kept.resume(persistence, deps=deps)
            else:
                await kept.run(inputs=0, deps=deps, persistence=persistence)
            return given[-1] if given else None
        from pydantic_graph.graph import Graph

        graph = Graph[None, Deps, int](nodes=(Act,), auto_instrument=False)
        if resume:
            await graphkeep.resume(graph, persistence, deps=deps)
        else:
            await graph.run(Act(), deps=deps, persistence=persistence)
        return given[-1] if given else None

    async def pause(self, body: Body) -> tuple[Request, ...]:
        """Play until the run pauses; gives what it waits for."""
        with pytest.raises(RunPausedError) as caught:
            await self.play(body)
        return caught.value.requests

    async def answer(self, request: Request, value: object) -> None:
        await self.store.answer(self.run_id, request.request_id, value)

    async def kept(self) -> bytes:
        """The stored run as JSON."""
        return bytes((await self.store.document(self.run_id)).to_json())


Parts = Sequence[TextPart | ToolCallPart]


@dataclass
class Script:
    """A model that says the same at the same place of a conversation; notes when it is asked."""

    said: Sequence[Parts]
    asked: list[int] = field(default_factory=list)
    seen: list[list[ModelMessage]] = field(default_factory=list)

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(each, ModelResponse) for each in messages)
        self.asked.append(number)
        self.seen.append(list(messages))
        return ModelResponse(parts=list(self.said[number]))

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.__call__)  # 1.x wants a name


def script(*said: Parts) -> Script:
    return Script(said)


def call(tool: str, call_id: str, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool, args, tool_call_id=call_id)


def text(content: str) -> TextPart:
    return TextPart(content)


def plain(messages: Sequence[ModelMessage]) -> list[tuple[Any, ...]]:
    """What was said, without times and ids of runs."""
    return [
        (
            part.part_kind,
            getattr(part, 'tool_name', None),
            getattr(part, 'tool_call_id', None),
            getattr(part, 'args', None),
            getattr(part, 'content', None),
        )
        for message in messages
        for part in message.parts
    ]
