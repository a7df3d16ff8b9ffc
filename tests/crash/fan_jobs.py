"""Jobs of workers that run a graph of parallel steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import graphkeep
from tests.builder.fan import ITEMS, Tally, Worker, kept
from tests.crash.hooked import park_at, tell_renewals
from tests.crash.jobs import Line, job
from tests.crash.logbook import Journalist


async def once() -> None:
    """Run the graph."""
    await kept.run(state=Tally(), inputs=ITEMS, deps=Worker())


@dataclass
class _Told(Worker):
    """Writes down what starts, says what waits, and lets go of what it is told to."""

    line: Line | None = None
    log: Journalist | None = None
    chance: random.Random | None = None

    async def begins(self, name: str) -> None:
        assert self.line is not None
        if self.log is not None:
            self.log.write('start', '-', name)
        await super().begins(name)
        if name in self.held:
            self.line.say(halt=name)
        if self.chance is not None:
            await asyncio.sleep(self.chance.random() * 0.1)

    async def listen(self) -> None:
        assert self.line is not None
        while True:
            await self.let_go(await self.line.told())

    async def park(self) -> None:
        assert self.line is not None
        self.held.add('park')
        self.line.say(park=True)
        async with self.changed:
            await self.changed.wait_for(lambda: 'park' not in self.held)


@job
async def fan_out(
    line: Line,
    *,
    url: str,
    run_id: str,
    items: int = ITEMS,
    log: str | None = None,
    held: Sequence[str] = (),
    asks: bool = False,
    park: tuple[str, int, str] | None = None,
    seed: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run the graph, or go on with it.

    Args:
        line: The way to the test. It lets go of steps by telling their names.
        url: The store.
        run_id: The run.
        items: How many steps run at once.
        log: Where the starts of steps are written.
        held: Steps that say `halt` and wait.
        asks: See `Worker`.
        park: Before or after this call of this hook say `park`, and wait to be told that.
        seed: Of how long steps take, up to a tenth of a second; without it they end at once.
        **options: Of the store.
    """
    store = graphkeep.open_store(url, **options)
    tell_renewals(store, line.say)
    chance = None if seed is None else random.Random(seed)
    journalist = Journalist(log) if log else None
    worker = _Told(held={*held}, asks=asks, line=line, log=journalist, chance=chance)
    if park is not None:
        park_at(store, *park, worker.park)
    state = Tally()
    listener = asyncio.create_task(worker.listen())
    try:
        async with store:
            output = await kept.run(
                state=state,
                inputs=items,
                deps=worker,
                persistence=store.persistence(run_id, if_exists='resume'),
            )
    except graphkeep.LeaseLostError:
        line.say(lost={'stopped': sorted(worker.stopped), 'state': asdict(state)})
        raise
    finally:
        listener.cancel()
    return {'output': output, 'state': asdict(state)}
