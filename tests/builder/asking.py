"""Graphs whose steps wait for people, the people, and a rig that lets either of them die."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic_graph import GraphBuilder, ReduceFirstValue, StepContext, reduce_list_append
from pydantic_graph.graph_builder import Graph

import graphkeep
from graphkeep import (
    Request,
    RequestClosedError,
    RunPausedError,
    Store,
    current_task,
    merge,
    once,
    wait_for,
)

from .dying import Dead, Death, dies_at


@dataclass
class Book:
    """The state: what each task was given, once."""

    given: dict[str, Annotated[str, merge.last]] = field(default_factory=dict)
    ends: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)

    def end(self, **given: object) -> None:
        task = current_task().key.rpartition('/')[2]
        self.ends[task] = self.ends.get(task, 0) + 1
        for name, value in given.items():
            self.given[f'{task}:{name}'] = str(value)


@dataclass
class Outside:
    """The dependencies: what a crash takes nothing back of."""

    starts: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)

    def note(self) -> str:
        task = current_task().key.rpartition('/')[2]
        self.starts[task] += 1
        return task


Ctx = StepContext[Book, Outside, Any]
Build = Callable[[], Graph[Book, Outside, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    build: Build
    requests: int
    """How many requests there are in all."""
    expires: bool = False
    """Whether nobody answers."""


CASES: dict[str, Case] = {}


def case(requests: int, *, expires: bool = False) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        CASES[build.__name__] = Case(build=build, requests=requests, expires=expires)
        return build

    return add


def _builder(output_type: Any = Any) -> Any:
    return GraphBuilder(
        state_type=Book,
        deps_type=Outside,
        input_type=int,
        output_type=output_type,
        auto_instrument=False,
    )


async def _ask_one(ctx: Ctx) -> str:
    ctx.deps.note()
    ctx.state.ends['half'] = 99  # thrown away when the step pauses
    answer = await wait_for(str, 'ok', payload={'inputs': ctx.inputs})
    del ctx.state.ends['half']
    ctx.state.end(ok=answer)
    return answer


@case(1)
def one() -> Any:
    g = _builder(str)
    ask = g.step(_ask_one, node_id='ask')
    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return g.build()


@case(3)
def in_turn() -> Any:
    """Three requests in a step, with a side effect between them that must not be repeated."""
    g = _builder(str)

    @g.step
    async def ask(ctx: Ctx) -> str:
        task = ctx.deps.note()

        def charge() -> int:
            ctx.deps.charged[task] += 1
            return ctx.deps.charged[task]

        first = await wait_for(str)
        charged = await once('charge', charge)
        second = await wait_for(str, 'second', prompt=f'{first}, {charged}?')
        third = await wait_for(str)
        ctx.state.end(**{'request-1': first, 'second': second, 'request-2': third})
        return first + second + third

    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return g.build()


@case(2)
def at_once() -> Any:
    g = _builder(str)

    @g.step
    async def ask(ctx: Ctx) -> str:
        ctx.deps.note()
        async with asyncio.TaskGroup() as group:
            a = group.create_task(wait_for(str, 'a'))
            b = group.create_task(wait_for(str, 'b'))
        ctx.state.end(a=a.result(), b=b.result())
        return f'{a.result()}{b.result()}'

    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return g.build()


@case(3)
def mapped() -> Any:
    g = _builder(list[str])

    @g.step
    async def split(ctx: Ctx) -> list[int]:
        ctx.deps.note()
        ctx.state.end()
        return [1, 2, 3]

    ask = g.step(_ask_one, node_id='ask')
    collect = g.join(reduce_list_append, initial_factory=list[str], node_id='collect')
    g.add(
        g.edge_from(g.start_node).to(split),
        g.edge_from(split).map().to(ask),
        g.edge_from(ask).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()


@case(1)
def beside() -> Any:
    """One branch waits, the other goes on."""
    g = _builder(list[str])
    ask = g.step(_ask_one, node_id='ask')

    async def work(ctx: Ctx) -> int:
        ctx.deps.note()
        await asyncio.sleep(0)
        ctx.state.end()
        return 1

    work_1 = g.step(work, node_id='work_1')
    work_2 = g.step(work, node_id='work_2')

    @g.step
    async def work_3(ctx: Ctx) -> str:
        await work(ctx)
        return 'worked'

    collect = g.join(reduce_list_append, initial_factory=list[str], node_id='collect')
    g.add(
        g.edge_from(g.start_node).to(ask, work_1),
        g.edge_from(work_1).to(work_2),
        g.edge_from(work_2).to(work_3),
        g.edge_from(ask, work_3).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()


@case(3)
def loop() -> Any:
    g = _builder(str)

    @g.step
    async def ask(ctx: Ctx) -> int | str:
        ctx.deps.note()
        answer = await wait_for(str)
        ctx.state.end(**{'request-1': answer})
        return ctx.inputs + 1 if ctx.inputs < 2 else answer

    g.add(
        g.edge_from(g.start_node).to(ask),
        g.edge_from(ask).to(
            g.decision().branch(g.match(int).to(ask)).branch(g.match(str).to(g.end_node))
        ),
    )
    return g.build()


@case(2)
def first_of_two() -> Any:
    """Whoever is answered first ends it; the request of the other is closed."""
    g = _builder(str)
    ask_a = g.step(_ask_one, node_id='ask_a')
    ask_b = g.step(_ask_one, node_id='ask_b')
    first = g.join(ReduceFirstValue[str](), initial='', node_id='first')

    @g.step
    async def after(ctx: Ctx) -> str:
        ctx.deps.note()
        ctx.state.end()
        return ctx.inputs

    g.add(
        g.edge_from(g.start_node).to(ask_a, ask_b),
        g.edge_from(ask_a, ask_b).to(first),
        g.edge_from(first).to(after),
        g.edge_from(after).to(g.end_node),
    )
    return g.build()


@case(2, expires=True)
def expiring() -> Any:
    g = _builder(str)

    @g.step
    async def ask(ctx: Ctx) -> str:
        ctx.deps.note()
        first = await wait_for(str, 'first', timeout=0.004, default='none')
        try:
            second = await wait_for(str, 'second', timeout=0.004)
        except graphkeep.RequestTimeoutError:
            second = 'too late'
        ctx.state.end(first=first, second=second)
        return f'{first}, {second}'

    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return g.build()


People = Callable[[Store, Store, Sequence[Request]], Awaitable[None]]
"""Answer requests: through a store that may die, or one that lives on."""


async def one_person(mortal: Store, _: Store, requests: Sequence[Request]) -> None:
    """Answers the first request."""
    for request in requests[:1]:
        await mortal.answer(request.run_id, request.request_id, _answer(request), by='ann')


async def everybody(mortal: Store, _: Store, requests: Sequence[Request]) -> None:
    """Answers them all."""
    for request in requests:
        with contextlib.suppress(RequestClosedError):
            await mortal.answer(request.run_id, request.request_id, _answer(request), by='ann')


async def two_at_once(mortal: Store, other: Store, requests: Sequence[Request]) -> None:
    """Two people answer each, differently."""
    for request in requests:
        where = request.run_id, request.request_id
        await asyncio.gather(
            _tries(mortal.answer(*where, _answer(request), by='ann')),
            _tries(other.answer(*where, 'otherwise', by='bob')),
        )


def _answer(request: Request) -> str:
    return f'yes to {request.request_id}'


async def _tries(answer: Awaitable[Request]) -> None:
    with contextlib.suppress(RequestClosedError):
        await answer


@dataclass(kw_only=True)
class AskingRig:
    """One run that asks, and people who answer."""

    case: Case
    keeper: Store
    make_store: Callable[..., Store]
    people: People
    at_once: bool = False
    """Somebody answers as soon as a request is there, whatever the run does."""
    deps: Outside = field(default_factory=Outside)
    run_id: str = field(default_factory=lambda: f'run-{uuid.uuid4().hex}')
    deaths: int = 0
    pauses: int = 0
    _late: list[asyncio.Future[Any]] = field(default_factory=list)
    _dead: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = graphkeep.persist(self.case.build())

    async def live_and_die(self, deaths: Sequence[Death]) -> Any:
        try:
            for death in deaths:
                with contextlib.suppress(Dead):
                    return await self._live(death)
                self.deaths += 1
            return await self._live(None)
        finally:
            await self._bury()

    async def _live(self, death: Death | None) -> Any:
        store = self.make_store(retry=0.0)
        late: list[asyncio.Future[Any]] = []
        if death is not None:
            dies_at(store, death, late)
        try:
            async with self._somebody():
                output = await self._run(store)
            await store.close()
        finally:
            await self._bury()
            self._dead, self._late = [store], late
        return output

    @contextlib.asynccontextmanager
    async def _somebody(self) -> AsyncIterator[None]:
        async def answers() -> None:
            while True:
                requests = await self.keeper.requests(run_id=self.run_id)
                await everybody(self.keeper, self.keeper, requests)
                await asyncio.sleep(0)

        if not self.at_once:
            yield
            return
        task = asyncio.create_task(answers())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _bury(self) -> None:
        for store in self._dead:
            with contextlib.suppress(Dead):
                await store.close()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _run(self, store: Store) -> Any:
        while True:
            state = Book()
            try:
                return await self.kept.run(
                    state=state,
                    inputs=0,
                    deps=self.deps,
                    persistence=store.persistence(self.run_id, if_exists='resume'),
                )
            except RunPausedError as error:
                paused = error
            self._check_pause(paused, state)
            if self.case.expires:
                await asyncio.sleep(0.002)
            else:
                await self.people(store, self.keeper, paused.requests)

    def _check_pause(self, paused: RunPausedError, state: Book) -> None:
        assert paused.run_id == self.run_id
        assert 'half' not in state.ends
        self.pauses += 1

    async def check(self, output: Any) -> None:
        """Every request was made once, and its answer used once; no committed step ran again."""
        run = await self.keeper.run(self.run_id)
        assert (run.status, run.owner, run.wake_at) == ('done', None, None)
        snapshots = await self.keeper.snapshots(self.run_id)
        assert [s.seq for s in snapshots] == list(range(run.seq + 1))
        document = await self.keeper.document(self.run_id)
        assert not document.tasks
        state = self.kept._plan.state.decode(document.state)
        assert all(times == 1 for times in state.ends.values())
        requests = await self.keeper.requests(run_id=self.run_id, status=())
        assert len(requests) == self.case.requests
        assert all(r.closed_at is not None for r in requests)
        assert all(times == 1 for times in self.deps.charged.values()) or self.deaths
        if self.case.expires:
            # Each was answered in time or not, and what the step got says the same.
            first, second = sorted(requests, key=lambda r: r.name)
            one = first.answer if first.status == 'answered' else 'none'
            two = second.answer if second.status == 'answered' else 'too late'
            assert output == f'{one}, {two}'
            assert {first.status, second.status} <= {'answered', 'expired'}
            assert run.answered == [first.status, second.status].count('answered')
            return
        answers = {r.request_id: r.answer for r in requests if r.status == 'answered'}
        assert state.given.items() <= answers.items()
        closed = [r for r in requests if r.status == 'closed']
        assert len(answers) + len(closed) == len(requests)
        assert run.answered == len(answers)
        if self.case.build.__name__ != 'first_of_two':
            assert state.given == answers
            assert not closed
        # A step runs once for each pause, each death, and each request that was answered meanwhile.
        most = 1 + self.deaths + self.pauses + len(requests)
        assert max(self.deps.starts.values()) <= most
