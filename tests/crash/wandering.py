"""What workers that wander (see `jobs`) have written down, and whether the store agrees."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic_core import from_json

import graphkeep
from tests.crash.children import Nursery
from tests.crash.trip import FINAL, NODES, OUTPUT


@dataclass(kw_only=True)
class Told:
    """A log."""

    acknowledged: dict[str, int]
    """The newest snapshot of each run that the store has acknowledged."""
    again: int
    """How many starts of nodes were repetitions."""


def read(log: Path) -> Told:
    """Read a log, in which no node may start that was acknowledged as committed.

    The lines stand in the order in which things happened, whichever process wrote them.
    """
    acknowledged: dict[str, int] = {}
    started: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        what, run_id, value = line.split()
        if what == 'ack':
            # One that was killed before it could write this line leaves a gap.
            assert int(value) > acknowledged.get(run_id, -1)
            acknowledged[run_id] = int(value)
        else:
            committed = acknowledged.get(run_id, 0)
            assert NODES.index(value) >= committed, 'it was committed, and ran again'
            started[run_id, value] += 1
    return Told(acknowledged=acknowledged, again=started.total() - len(started))


async def check(told: Told, url: str) -> None:
    """Every run has ended as it should, with every snapshot that was acknowledged."""
    async with graphkeep.open_store(url) as store:
        for run_id, seq in told.acknowledged.items():
            run = await store.run(run_id)
            assert (run.status, run.seq, run.owner) == ('done', len(NODES), None)
            assert seq <= run.seq
            snapshots = await store.snapshots(run_id)
            assert [s.seq for s in snapshots] == list(range(len(NODES) + 1))
            document = await store.document(run_id)
            assert from_json(document.to_json())['state'] == {**asdict(FINAL), 'name': run_id}
            assert from_json(document.output or b'') == OUTPUT


async def grows(log: Path, size: int) -> None:
    """Wait until that many bytes of progress were written, in time that differs by machine."""
    before = log.stat().st_size
    while log.stat().st_size < before + size:
        await asyncio.sleep(0.002)


async def finish_all(nursery: Nursery, *, url: str, graph: str, log: str) -> None:
    """Bring every run that is left to its end."""
    last = nursery.child('wander', url=url, graph=graph, log=log, width=0, seed='last')
    async with last as child:
        await child.hears('open')
        await child.result()
