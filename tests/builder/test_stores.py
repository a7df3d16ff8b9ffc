"""Graphs of every kind on every store: kept, and crashed before and after each store call."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import graphkeep
from graphkeep import Store
from graphkeep.hooks import Hooks
from tests.classic.conftest import MakeStore, every_store

from .fixed import CASES, Case, Diary, Ledger, sorted_output

every_case = pytest.mark.parametrize('name', CASES)


class Dead(graphkeep.StoreError):
    """What every call of a store raises after its process has died."""


def dies_at(store: Store, number: int, moment: str) -> None:
    """Have the store write nothing more from (before, or after) its call of this number on."""
    calls, dead = 0, False

    def mortal(name: str, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            nonlocal calls, dead
            calls += 1
            here = calls == number
            if name == '_close':  # a process lets go of its files, dead or alive
                await hook(*args)
            elif not dead and (not here or moment == 'after'):
                result = await hook(*args)
                if not here:
                    return result
            dead = dead or here
            if dead:
                raise Dead('the process has died')
            return None

        return call

    for name in Hooks.__abstractmethods__:
        setattr(store, name, mortal(name, getattr(store, name)))


@dataclass
class Rig:
    """Runs one case in a database, and lets it die."""

    case: Case
    make_store: MakeStore
    run_id: str = field(default_factory=lambda: f'run-{uuid.uuid4().hex}')
    diary: Diary = field(default_factory=Diary)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.kept: Any = graphkeep.persist(self.case.build())
        self.keeper = self.make_store()

    async def run(self, *, number: int | None = None, moment: str = 'before') -> bool:
        """Start the run or go on with it; whether the process died."""
        before, held = dict(self.diary.starts), await self.pending()
        store = self.make_store(retry=0.0)
        if number is not None:
            dies_at(store, number, moment)
        output: Any = None
        try:
            async with store:
                output = await self.kept.run(
                    state=Ledger(),
                    inputs=self.case.inputs,
                    deps=self.diary,
                    persistence=store.persistence(self.run_id, if_exists='resume'),
                )
        except Dead:
            self.deaths += 1
            died = True
        else:
            assert sorted_output(output) == self.case.output
            died = False
        if held is not None:
            again = {task for task in before if self.diary.starts[task] > before[task]}
            assert again <= held, 'a committed step ran twice'
        return died

    async def pending(self) -> set[str] | None:
        """The tasks that are not finished; `None` if the run does not exist."""
        try:
            return set((await self.keeper.document(self.run_id)).tasks)
        except graphkeep.RunNotFoundError:
            return None

    async def check(self) -> None:
        """The run has ended as if nobody had disturbed it."""
        run = await self.keeper.run(self.run_id)
        assert (run.status, run.owner) == ('done', None)
        document = await self.keeper.document(self.run_id)
        assert not document.tasks
        assert not document.joins
        state = self.kept._plan.state.decode(document.state)
        assert state.ends == self.case.ends
        assert sorted(mark.split(' ')[0] for mark in state.marks) == sorted(
            name for name, times in self.case.ends.items() for _ in range(times)
        )
        assert sorted_output(self.kept._plan.decode_output(document.output)) == self.case.output
        snapshots = await self.keeper.snapshots(self.run_id)
        assert [s.seq for s in snapshots] == list(range(run.seq + 1))
        assert all(times <= 1 + self.deaths for times in self.diary.starts.values())


@every_store
@every_case
async def test_a_kept_run_gives_what_its_graph_says(name: str, make_store: MakeStore) -> None:
    rig = Rig(CASES[name], make_store)
    assert not await rig.run()
    await rig.check()
    assert set(rig.diary.starts.values()) == {1}


@every_case
async def test_without_a_store_a_run_is_kept_in_memory(name: str) -> None:
    case, state = CASES[name], Ledger()
    kept = graphkeep.persist(case.build())
    output = await kept.run(state=state, inputs=case.inputs, deps=Diary())
    assert sorted_output(output) == case.output
    assert state.ends == case.ends


@every_case
@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_a_run_that_dies_at_any_call_of_the_store_ends_as_if_it_had_not(
    name: str, moment: str, make_store: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        rig = Rig(CASES[name], make_store)
        died = await rig.run(number=number, moment=moment)
        if died:
            assert not await rig.run()
        await rig.check()
    assert number > 4, 'open, create, one commit or more, close'


@every_case
async def test_a_resume_may_die_as_well(name: str, make_store: MakeStore) -> None:
    number, died = 2, True
    while died:
        number += 1
        rig = Rig(CASES[name], make_store)
        died = await rig.run(number=number, moment='after')
        for again in (3, 4, 5, 3):
            if died and not await rig.run(number=again, moment='before' if again % 2 else 'after'):
                break
        assert not await rig.run()
        await rig.check()


@every_store
@pytest.mark.parametrize('name', ['nested_map', 'stream_to_a_map', 'first_value'])
async def test_a_dead_run_goes_on_in_every_store(name: str, make_store: MakeStore) -> None:
    for number in (3, 5, 7):
        rig = Rig(CASES[name], make_store)
        assert await rig.run(number=number, moment='after')
        assert not await rig.run()
        await rig.check()
