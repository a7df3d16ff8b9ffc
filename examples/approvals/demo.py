"""Kills the worker of refunds at every bad moment, and counts the money: `make demo-approvals`.

    python demo.py
    STORE=postgresql://… python demo.py
    STORE=redis://… python demo.py

Without `STORE` the runs are kept in a SQLite file, in a temporary folder. Ends with 1 if a promise
was not kept.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which all examples use

import show
from graph import NAME, Desk, Outcome, RefundRequest, refunds
from killing.children import Child, started
from killing.demo import DemoError, perform, run_on_terminal
from killing.tables import promises
from payments import read_ledger
from promises import Evidence, Kill, check
from rich.console import Console
from rich.markup import escape
from shop import euros

import graphkeep

WORKER = Path(__file__).with_name('worker.py')
Follow = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Act:
    """What happens before one worker starts, and where it is killed."""

    starts: Sequence[str] = ()
    """Orders whose refund is asked for."""
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """To the request about an order. No process of the refunds lives then."""
    stall: str | None = None
    """Where the worker hangs and is killed; without one it is killed when nothing can go on."""
    means: str


ACTS = (
    Act(
        starts=('A-1004', 'A-1005', 'A-1006', 'A-1007'),
        stall='draft A-1004',
        means='before the agent asks',
    ),
    Act(
        starts=('A-1001', 'A-1002'),
        stall='paid A-1001',
        means='the money has moved, and nobody knows yet',
    ),
    Act(means='four people are asked, and nothing runs'),
    Act(
        answers={'A-1004': True},
        stall='pay A-1004',
        means='approved, and not paid yet',
    ),
    Act(
        answers={'A-1005': {'approved': True, 'override_args': {'cents': 4500}}},
        stall='paid A-1005',
        means='approved, paid, and nobody knows yet',
    ),
    Act(
        answers={
            'A-1006': {'approved': False, 'message': 'It was broken when it came back.'},
            'A-1007': True,
        },
        stall='reply A-1007',
        means='paid, and the agent writes its answer',
    ),
)
LAST = 'A-1008'
"""Is asked for and approved while the last worker works."""
EXPECTED = {
    'A-1001': 790,
    'A-1002': 1250,
    'A-1004': 8900,
    'A-1005': 4500,
    'A-1006': 0,
    'A-1007': 64900,
    'A-1008': 18900,
}
"""What has to be refunded for each order, in cents."""


@dataclass(kw_only=True)
class Office:
    """The part of the web app: starts refunds, and answers what people are asked."""

    store: graphkeep.Store
    name: str
    """What the runs are recorded under: only this demo's workers take them."""
    answered: dict[str, str] = field(default_factory=dict[str, str])
    """The request of each order that was answered."""

    def run_id(self, order: str) -> str:
        """The run of an order's refund."""
        return f'{self.name}-{order}'

    async def start(self, order: str) -> None:
        """Take a refund in. No step of it runs here."""
        await refunds.start(
            inputs=RefundRequest(order=order, reason='It is broken.'),
            persistence=self.store.persistence(
                self.run_id(order), graph=self.name, labels={'order': order}
            ),
        )

    async def waiting(self) -> dict[str, graphkeep.Request]:
        """What people are asked, by the order."""
        requests = await self.store.requests(graph=self.name)
        return {request.labels['order']: request for request in requests}

    async def answer(self, order: str, value: Any) -> None:
        """Answer what a person was asked about an order."""
        request = (await self.waiting())[order]
        await self.store.answer(request.run_id, request.request_id, value, by='demo')
        self.answered[order] = request.request_id

    async def statuses(self) -> dict[str, str]:
        """How far the refunds are, by the order."""
        runs = await self.store.runs(graph=self.name)
        return {run.labels['order']: run.status for run in runs}

    async def rests(self) -> bool:
        """Whether no refund can go on: each waits for a person, or has ended."""
        return set((await self.statuses()).values()) <= {'paused', 'done'}

    async def is_done(self) -> bool:
        """Whether all refunds have ended."""
        return set((await self.statuses()).values()) == {'done'}

    async def outcome(self, order: str) -> Outcome:
        """The result of a refund that has ended. Nothing of the graph is needed for that."""
        output = (await self.store.document(self.run_id(order))).output
        assert output is not None
        return Outcome.model_validate_json(output)


async def demo(console: Console, url: str, folder: Path, *, pace: float) -> bool:
    """Kill, answer and go on, again and again. Whether all is well."""
    name = f'{NAME}-{secrets.token_hex(4)}'
    ledger = folder / 'ledger.db'
    options = [f'--ledger={ledger}', f'--pace={pace}']
    kills: list[Kill] = []
    async with graphkeep.open_store(url) as store:
        office = Office(store=store, name=name)
        console.print(
            f'{len(EXPECTED)} refunds, by an agent that needs approval above {euros(Desk.limit)}: '
            f'runs [b]{name}-…[/] in {store!r}.\n'
        )
        for number, act in enumerate(ACTS, start=1):
            for order in act.starts:
                await office.start(order)
            for order, value in act.answers.items():
                await office.answer(order, value)
                console.print(f'{order} is answered while no worker lives: {escape(repr(value))}')
            with console.status(f'worker {number} starts') as status:
                kills.append(await killed(office, act, url, options, status.update))
            show.kill(console, number, kills[-1], act.means)
        with console.status('the last worker starts') as status:
            last = await to_the_end(office, url, options, status.update)
        console.print(
            f'[b]The last worker[/], process {last.pid}, goes on with all that is left. {LAST} is '
            f'approved while it works. It is stopped with SIGTERM ({last.code}).\n'
        )
        evidence = Evidence(
            expected=EXPECTED,
            kills=kills,
            code=last.code,
            statuses=await office.statuses(),
            outcomes={order: await office.outcome(order) for order in EXPECTED},
            requests=await store.requests(graph=name, status=()),
            answered=office.answered,
            ledger=read_ledger(ledger),
        )
    console.rule('What became of the refunds')
    show.refunds(console, evidence)
    console.rule('The promises')
    return promises(console, check(evidence))


async def killed(
    office: Office, act: Act, url: str, options: Sequence[str], follow: Follow
) -> Kill:
    """Let a worker work until the act's moment, and kill it there."""
    stall = [f'--stall={act.stall}'] if act.stall else []
    with started(WORKER, office.name, *options, *stall, store_url=url) as child:
        hearing = asyncio.create_task(hear(child, follow))
        if act.stall is None:
            await until(office.rests, child)
            child.kill()
        stalled = await hearing
    if stalled != act.stall:
        raise DemoError(f'Worker {child.pid} ended with {child.code}, which was not the plan.')
    waiting = {order: request.request_id for order, request in (await office.waiting()).items()}
    return Kill(pid=child.pid, code=child.code, place=act.stall, waiting=waiting)


async def to_the_end(office: Office, url: str, options: Sequence[str], follow: Follow) -> Child:
    """Let a worker do all that is left, and one refund that is approved meanwhile."""

    async def is_asked() -> bool:
        return LAST in await office.waiting()

    with started(WORKER, office.name, *options, store_url=url) as child:
        hearing = asyncio.create_task(hear(child, follow))
        await office.start(LAST)
        await until(is_asked, child)
        await office.answer(LAST, True)
        await until(office.is_done, child)
        child.process.terminate()
        await hearing
    return child


async def hear(child: Child, follow: Follow) -> str | None:
    """Hear a worker until it has ended. Where it stalls it is killed; gives where that was."""
    stalled = None
    async for event, text in child.events():
        follow(f'process {child.pid} {event} {escape(text)}')
        if event == 'stalled':
            child.kill()
            stalled = text
    return stalled


async def until(condition: Callable[[], Awaitable[bool]], child: Child) -> None:
    """Wait for something that a worker brings about."""
    while not await condition():
        if (code := child.process.poll()) is not None:
            raise DemoError(f'Worker {child.pid} ended with {code}, which was not the plan.')
        await asyncio.sleep(0.05)


def main(console: Console, argv: Sequence[str] | None = None) -> int:
    return perform(demo, console, 'Kills the worker of refunds, and counts the money.', argv)


if __name__ == '__main__':
    sys.exit(run_on_terminal(main))
