"""Jobs of workers that run the trip, a graph of the 1.x front end."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import graphkeep
import graphkeep.classic
from tests.crash.hooked import crash_at, log_acknowledged, park_at, tell_renewals
from tests.crash.jobs import Line, job
from tests.crash.logbook import Journalist
from tests.crash.trip import Outside, Pack, Trip, trip


async def once() -> None:
    """Run the graph."""
    async with graphkeep.open_store('memory://') as store:
        await trip.run(Pack(), state=Trip(), deps=Outside(), persistence=store.persistence('-'))


def _outside(line: Line, log: str | None, halts: Sequence[str]) -> Outside:
    async def middle(_: str, node: str) -> None:
        if node in halts:
            line.say(halt=node)
            await line.told()

    return Outside(log=Journalist(log) if log else None, middle=middle)


@job
async def travel(
    line: Line,
    *,
    url: str,
    run_id: str,
    graph: str | None = None,
    how: str = 'resume',
    log: str | None = None,
    halts: Sequence[str] = (),
    crash: tuple[int, str] | None = None,
    park: tuple[str, int, str] | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Run the trip, or go on with it.

    Args:
        line: The way to the test.
        url: The store.
        run_id: The run.
        graph: The name its graph is recorded under; that of the run if omitted.
        how: `run`, `resume`, `start` (or resume it), or `recover`.
        log: Where the starts of nodes are written.
        halts: In the middle of these nodes say `halt`, and go on when told to.
        crash: Die at this call of the store, at this moment.
        park: Before or after this call of this hook say `park`, and go on when told to.
        **options: Of the store.
    """
    store = graphkeep.open_store(url, **options)
    if crash is not None:
        crash_at(store, *crash)
    if park is not None:

        async def parked() -> None:
            line.say(park=park)
            await line.told()

        park_at(store, *park, parked)
    tell_renewals(store, line.say)
    deps = _outside(line, log, halts)
    async with store:
        persistence = store.persistence(run_id, graph=graph or run_id)
        if how == 'recover':
            recovered = await graphkeep.recover(store, {run_id: trip}, deps=deps)
            if not recovered:
                return None
            assert recovered[0].result is not None, recovered
            result = recovered[0].result
        elif how == 'run':
            result = await trip.run(Pack(), state=Trip(), deps=deps, persistence=persistence)
        elif how == 'start':
            result = await graphkeep.resume(
                trip, persistence, deps=deps, start=Pack(), state=Trip()
            )
        else:
            result = await graphkeep.resume(trip, persistence, deps=deps)
    return {'output': result.output, 'state': asdict(result.state)}


@job
async def resume_each(line: Line, *, url: str, **options: Any) -> None:
    """Resume one run after the other, or start it, as told by the test: a run and a log."""
    async with graphkeep.open_store(url, **options) as store:
        while told := await line.told():
            run_id, log = told.split()
            try:
                result = await graphkeep.resume(
                    trip,
                    store.persistence(run_id),
                    deps=_outside(line, log, ()),
                    start=Pack(),
                    state=Trip(),
                )
            except graphkeep.GraphkeepError as e:
                line.say(error=type(e).__name__, message=str(e), traceback=traceback.format_exc())
            else:
                line.say(result={'output': result.output, 'state': asdict(result.state)})


@job
async def leave(line: Line, *, url: str, run_id: str, **options: Any) -> None:
    """Run two nodes, leave the run half-way, and live on until told to end."""
    async with graphkeep.open_store(url, **options) as store:
        persistence = store.persistence(run_id)
        async with trip.iter(Pack(), state=Trip(), deps=Outside(), persistence=persistence) as run:
            await run.next()
            await run.next()
        line.say(left=True)
        await line.told()


@job
async def background(
    line: Line,
    *,
    url: str,
    run_id: str,
    closes: bool,
    halts: Sequence[str] = (),
    park: tuple[str, int, str] | None = None,
    **options: Any,
) -> None:
    """Start the trip in a task, and return while it is halted or parked."""
    store = graphkeep.open_store(url, **options)
    halted = asyncio.Event()

    async def halt() -> None:
        halted.set()
        # For as long as a cancellation waits for a write that is slow.
        await asyncio.sleep(0.2 if park else 60)

    async def middle(_: str, node: str) -> None:
        if node in halts:
            await halt()

    if park is not None:
        park_at(store, *park, halt)
    persistence = store.persistence(run_id)
    run = asyncio.create_task(
        trip.run(Pack(), state=Trip(), deps=Outside(middle=middle), persistence=persistence)
    )
    await halted.wait()
    assert not run.done()
    if closes:
        await store.close()


@job
def travel_sync(
    line: Line, *, url: str, run_id: str, halt: str, seconds: float = 60.0, **options: Any
) -> str:
    """Run the trip with `run_sync`, and block the whole process in the middle of a node."""

    async def middle(_: str, node: str) -> None:
        if node == halt:
            line.say(halt=node)
            time.sleep(seconds)

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    store = graphkeep.open_store(url, **options)
    try:
        return trip.run_sync(
            Pack(),
            state=Trip(),
            deps=Outside(middle=middle),
            persistence=store.persistence(run_id),
        ).output
    finally:
        loop.run_until_complete(store.close())
        loop.close()


@job
async def wander(
    line: Line, *, url: str, graph: str, log: str, width: int, seed: str, **options: Any
) -> None:
    """Go on with all runs that others left, and start new ones, until killed.

    Args:
        line: The way to the test.
        url: The store.
        graph: The name the graph of all these runs is recorded under.
        log: Where the starts of nodes are written, and what the store has acknowledged.
        width: How many runs are started at a time; 0 ends the job when nothing is left.
        seed: Of what is random.
        **options: Of the store.
    """
    chance = random.Random(seed)
    journalist = Journalist(log)
    store = graphkeep.open_store(url, **options)
    log_acknowledged(store, journalist)

    async def middle(_name: str, _node: str) -> None:
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.005)))

    deps = Outside(log=journalist, middle=middle)

    async def wanderer(number: int) -> None:
        while True:
            name = f'{graph}-{seed}-{number}-{chance.randrange(1 << 32)}'
            persistence = store.persistence(name, graph=graph)
            await trip.run(Pack(), state=Trip(name), deps=deps, persistence=persistence)

    async with store, asyncio.TaskGroup() as group:
        line.say(open=True)
        for number in range(width):
            group.create_task(wanderer(number))
        while True:
            ended = await graphkeep.recover(
                store, {graph: trip}, deps=deps, ready=True, wait=width == 0
            )
            for recovered in ended:
                if recovered.error is not None:
                    raise recovered.error
            if width == 0 and not ended:
                break
            await asyncio.sleep(0.05)
