"""Runs of kept graphs whose process dies around a call of the store, and lives again."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import asyncpg
from redis.asyncio import Redis

import graphkeep
from graphkeep import Store
from graphkeep.document import Document
from graphkeep.hooks import Hooks
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.redis import RedisStore
from graphkeep.tasks import read_counters

Moment = Literal['before', 'during', 'after']
"""The call was not made; it is on its way, and nobody waits for it; it has returned."""


@contextlib.asynccontextmanager
async def opener(url: str) -> AsyncIterator[Callable[..., Store]]:
    """Makes store objects over one database, whose connections they share: most live for some
    milliseconds.
    """
    async with contextlib.AsyncExitStack() as stack:
        if url.startswith('postgresql:'):
            pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=5))
            yield partial(PostgresStore, pool=pool)
        elif url.startswith('redis:'):
            client = Redis.from_url(url)
            stack.push_async_callback(client.aclose)
            yield partial(RedisStore, client=client, check_server=False)
        else:
            yield partial(graphkeep.open_store, url)


class Dead(graphkeep.StoreError):
    """What every call of a store raises after its process has died."""


@dataclass(frozen=True)
class Death:
    """When a process dies."""

    number: int
    """At which call of the store, from 1."""
    moment: Moment
    hook: str | None = None
    """Of which hook; of any if omitted."""


def dies_at(store: Store, death: Death, late: list[asyncio.Future[Any]]) -> None:
    """Have a store write nothing more from its death on.

    Args:
        store: The store.
        death: When.
        late: Gets a call that is on its way then.
    """
    calls, dead = 0, False
    close = store._close

    def mortal(name: str, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def unheard(*args: Any) -> None:
            await hook(*args)
            if name == '_open':
                await close()  # the store does not know that it was opened

        async def call(*args: Any) -> Any:
            nonlocal calls, dead
            if name == '_close':  # a process lets go of its files, dead or alive
                await hook(*args)
            calls += death.hook in (None, name)
            here = not dead and calls == death.number and death.hook in (None, name)
            if not dead and not here:
                return None if name == '_close' else await hook(*args)
            dead = True
            if here and name != '_close' and death.moment != 'before':
                asked = asyncio.ensure_future(unheard(*args))
                late.append(asked)
                await asyncio.wait((asked,), timeout=0 if death.moment == 'during' else None)
            raise Dead('the process has died')

        return call

    for name in Hooks.__abstractmethods__:
        setattr(store, name, mortal(name, getattr(store, name)))


@contextlib.asynccontextmanager
async def mortal(make_store: Callable[..., Store], death: Death | None) -> AsyncIterator[Store]:
    """A store of a process that may die; at the end what it had on its way has arrived."""
    store, late = make_store(retry=0.0), list[asyncio.Future[Any]]()
    if death is not None:
        dies_at(store, death, late)
    try:
        yield store
    finally:
        await asyncio.gather(*late, return_exceptions=True)
        with contextlib.suppress(Dead):
            await store.close()


async def through(live: Callable[[Death | None], Awaitable[None]], deaths: Sequence[Death]) -> int:
    """Live through all of these, and to the end; gives how often it died."""
    for number, death in enumerate(deaths):
        with contextlib.suppress(Dead):
            await live(death)
            return number
    await live(None)
    return len(deaths)


class Notes(Protocol):
    """The dependencies of a graph whose steps note their starts."""

    starts: Counter[str]
    """By task."""


@dataclass(kw_only=True)
class Rig:
    """Runs one graph in a database, and lets it die."""

    kept: Any
    inputs: Any
    deps: Notes
    make_state: Callable[[], Any]
    keeper: Store
    """A store object that lives on, to look at the run."""
    make_store: Callable[..., Store]
    """See `opener`."""
    run_id: str = field(default_factory=lambda: f'run-{uuid.uuid4().hex}')
    deaths: int = 0
    _dead: list[Store] = field(default_factory=list)
    _late: list[asyncio.Future[Any]] = field(default_factory=list)

    async def live(self, death: Death | None = None) -> Any:
        """Start the run or go on with it. Raises `Dead` if the process died."""
        before, may_run = self.deps.starts.copy(), await self._runnable()
        store = self.make_store(retry=0.0)
        late: list[asyncio.Future[Any]] = []
        if death is not None:
            dies_at(store, death, late)
        try:
            output = await self._run(store)
            await store.close()
        except Dead:
            self.deaths += 1
            raise
        finally:
            # What a dead process has sent may arrive while the next one goes on with the run.
            await self._bury()
            self._dead, self._late = [store], late
            began = self.deps.starts - before
            assert all(times == 1 for times in began.values()), 'a task ran twice at a time'
            assert all(may_run(task) for task in began), 'a committed step ran twice'
        return output

    async def _bury(self) -> None:
        for store in self._dead:
            with contextlib.suppress(Dead):
                await store.close()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def live_and_die(self, deaths: Sequence[Death]) -> Any:
        """Live through all of these, and to the end."""
        try:
            for death in deaths:
                with contextlib.suppress(Dead):
                    return await self.live(death)
            return await self.live()
        finally:
            await self._bury()

    async def _run(self, store: Store) -> Any:
        return await self.kept.run(
            state=self.make_state(),
            inputs=self.inputs,
            deps=self.deps,
            persistence=store.persistence(self.run_id, if_exists='resume'),
        )

    async def _runnable(self) -> Callable[[str], bool]:
        """Which tasks may run from here on: those that are pending, or do not exist yet."""
        try:
            document = await self.keeper.document(self.run_id)
        except graphkeep.RunNotFoundError:
            return lambda task: True
        following, _ = read_counters(document)
        return lambda task: task in document.tasks or int(task) >= following

    async def check_end(self) -> tuple[Any, Any]:
        """The run has ended as if nobody had disturbed it; gives its state and output."""
        run = await self.keeper.run(self.run_id)
        assert (run.status, run.owner) == ('done', None)
        snapshots = await self.keeper.snapshots(self.run_id)
        assert [s.seq for s in snapshots] == list(range(run.seq + 1))
        document = await self.keeper.document(self.run_id)
        assert not document.tasks
        assert not document.joins
        assert all(times <= 1 + self.deaths for times in self.deps.starts.values())
        return self.state_in(document), self.kept._plan.decode_output(document.output)

    def state_in(self, document: Document) -> Any:
        return self.kept._plan.state.decode(document.state)
