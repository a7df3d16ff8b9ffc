"""Jobs of `Worker` processes, and the graph that they share the runs of: its steps ask people."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import Worker, current_task, merge, wait_for
from tests.crash.hooked import log_acknowledged
from tests.crash.jobs import Line, job
from tests.crash.logbook import Journalist

STEPS = ('begin', 'weigh', 'pack', 'ask', 'sign', 'close')
"""The steps, each of which a run ends once."""


@dataclass
class Desk:
    """The state."""

    number: int = 0
    ends: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    """How often each step was committed."""
    used: dict[str, Annotated[int, merge.add]] = field(default_factory=dict)
    """How often each answer was."""


async def _at_once(step: str) -> None:
    pass


@dataclass(kw_only=True)
class Outside:
    """The dependencies: what is not stored."""

    log: Journalist | None = None
    middle: Callable[[str], Awaitable[None]] = _at_once
    """Awaited in the middle of each step, with its name."""

    def write(self, what: str) -> None:
        if self.log is not None:
            task = current_task()
            number = task.key.rpartition('/')[2]
            self.log.write(what, task.run_id, number, task.node_id, repr(time.time()))

    async def begins(self) -> None:
        self.write('start')
        await self.middle(current_task().node_id)

    def ends(self, state: Desk, *answers: str) -> None:
        node = current_task().node_id
        state.ends[node] = state.ends.get(node, 0) + 1
        for answer in answers:
            state.used[answer] = state.used.get(answer, 0) + 1
        self.write('end')


Ctx = StepContext[Desk, Outside, Any]

DEFAULT = 'nobody'
"""What a request gives that was not answered in time."""


def _desk() -> Any:
    g: Any = GraphBuilder(
        name='desk',
        state_type=Desk,
        deps_type=Outside,
        input_type=int,
        output_type=str,
        auto_instrument=False,
    )

    @g.step
    async def begin(ctx: Ctx) -> int:
        await ctx.deps.begins()
        ctx.deps.ends(ctx.state)
        return ctx.inputs

    @g.step
    async def weigh(ctx: Ctx) -> int:
        await ctx.deps.begins()
        ctx.deps.ends(ctx.state)
        return ctx.inputs + 1

    @g.step
    async def pack(ctx: Ctx) -> str:
        await ctx.deps.begins()
        ctx.deps.ends(ctx.state)
        return f'{ctx.inputs} g'

    @g.step
    async def ask(ctx: Ctx) -> str:
        await ctx.deps.begins()
        answers = [await wait_for(str, 'approve', payload={'number': ctx.inputs})]
        if ctx.inputs % 3 == 0:
            answers.append(await wait_for(str, prompt='Why?'))
        ctx.deps.ends(ctx.state, *answers)
        return answers[0]

    @g.step
    async def sign(ctx: Ctx) -> str:
        await ctx.deps.begins()
        answers: list[str] = []
        if ctx.state.number % 2:
            answers.append(await wait_for(str, 'sign', timeout=0.3, default=DEFAULT))
        ctx.deps.ends(ctx.state, *answers)
        return ' '.join(sorted(ctx.inputs) + answers)

    @g.step
    async def close(ctx: Ctx) -> str:
        await ctx.deps.begins()
        ctx.deps.ends(ctx.state)
        return ctx.inputs

    both = g.join(reduce_list_append, initial_factory=list[str], node_id='both')
    g.add(
        g.edge_from(g.start_node).to(begin),
        g.edge_from(begin).to(weigh, ask),
        g.edge_from(weigh).to(pack),
        g.edge_from(pack, ask).to(both),
        g.edge_from(both).to(sign),
        g.edge_from(sign).to(close),
        g.edge_from(close).to(g.end_node),
    )
    return g.build()


desk: Any = graphkeep.persist(_desk())
"""`begin`, then `weigh` and `pack` beside `ask`, then `sign` and `close`."""


async def once() -> None:
    """Run the graph as far as it goes."""
    async with graphkeep.open_store('memory://') as store:
        await desk.start(
            state=Desk(), inputs=0, persistence=store.persistence('-'), infer_name=False
        )
        await graphkeep.recover(store, {'desk': desk}, deps=Outside(), ready=True)


@job
async def work(
    line: Line,
    *,
    url: str,
    graph: str,
    log: str | None = None,
    halts: Sequence[str] = (),
    hurry: float | None = None,
    grace: float = 10.0,
    poll: float = 1.0,
    concurrency: int = 8,
    **options: Any,
) -> float:
    """Be a `Worker` until a signal comes; gives for how many seconds it has worked since.

    Args:
        line: The way to the test.
        url: The store.
        graph: The name that the graph of the runs is recorded under.
        log: Where starts, ends and acknowledged snapshots are written.
        halts: In the middle of these steps say `halt`, and go on when told to. If cancelled
            meanwhile, say `stopped`.
        hurry: Most seconds that a step takes; none if omitted.
        grace: Of the worker.
        poll: Of the worker.
        concurrency: Of the worker.
        **options: Of the store.
    """
    chance = random.Random()
    journalist = None if log is None else Journalist(log)
    told: dict[str, asyncio.Event] = {}
    stopped_at = 0.0

    async def middle(step: str) -> None:
        if hurry is not None:
            await asyncio.sleep(0.002 + chance.random() * hurry)
        if step in halts:
            told[step] = asyncio.Event()
            line.say(halt=step)
            try:
                await told[step].wait()
            except asyncio.CancelledError:
                line.say(stopped=step)
                raise

    async def listen() -> None:
        while True:
            told[await line.told()].set()

    store = graphkeep.open_store(url, **options)
    if journalist is not None:
        log_acknowledged(store, journalist)
    deps = Outside(log=journalist, middle=middle)
    worker = Worker(
        store, {graph: desk}, deps=deps, grace=grace, poll=poll, concurrency=concurrency
    )
    stop = worker.stop

    def timed_stop() -> None:
        nonlocal stopped_at
        stopped_at = stopped_at or time.monotonic()
        stop()
        line.say(stopping=True)

    worker.stop = timed_stop
    candidates = store._candidates
    looked = False

    async def told_candidates(graphs: Sequence[str], limit: int) -> Sequence[graphkeep.Run]:
        nonlocal looked
        if not looked:
            line.say(open=True)
        looked = True
        return await candidates(graphs, limit)

    store._candidates = told_candidates
    listener = asyncio.create_task(listen())
    try:
        async with store:
            await worker.run()
            # Closing the store gives all claims up: that is to have happened before.
            assert not [task for task in asyncio.all_tasks() if 'worker' in task.get_name()]
            return time.monotonic() - stopped_at
    finally:
        listener.cancel()
