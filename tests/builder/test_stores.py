"""Graphs of every kind on every store: kept, and dying around each call of the store."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

import graphkeep
from graphkeep import Store
from tests.classic.conftest import MakeStore, every_store

from .dying import Death, Moment, Rig
from .fixed import CASES, Diary, Ledger, sorted_output

every_case = pytest.mark.parametrize('name', CASES)


def rig_of(name: str, store: Store, open_again: MakeStore) -> Rig:
    case = CASES[name]
    return Rig(
        kept=graphkeep.persist(case.build()),
        inputs=case.inputs,
        deps=Diary(),
        make_state=Ledger,
        keeper=store,
        make_store=open_again,
    )


async def check(rig: Rig, name: str, output: Any) -> None:
    """The run has ended as if nobody had disturbed it."""
    case = CASES[name]
    state, stored = await rig.check_end()
    assert sorted_output(output) == sorted_output(stored) == case.output
    assert state.ends == case.ends
    assert sorted(mark.split(' ')[0] for mark in state.marks) == sorted(
        name for name, times in case.ends.items() for _ in range(times)
    )


@every_store
@every_case
async def test_a_kept_run_gives_what_its_graph_says(
    name: str, store: Store, open_again: MakeStore
) -> None:
    rig = rig_of(name, store, open_again)
    await check(rig, name, await rig.live_and_die([]))
    assert set(rig.deps.starts.values()) == {1}


@every_case
async def test_without_a_store_a_run_is_kept_in_memory(name: str) -> None:
    case, state = CASES[name], Ledger()
    kept = graphkeep.persist(case.build())
    output = await kept.run(state=state, inputs=case.inputs, deps=Diary())
    assert sorted_output(output) == case.output
    assert state.ends == case.ends


@every_store
@every_case
@pytest.mark.parametrize('moment', ['before', 'during', 'after'])
async def test_a_run_that_dies_at_any_call_of_the_store_ends_as_if_it_had_not(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        rig = rig_of(name, store, open_again)
        await check(rig, name, await rig.live_and_die([Death(number, moment)]))
        died = rig.deaths > 0
    assert number > 4, 'open, create, one commit or more, close'


@every_case
async def test_a_resume_may_die_as_well(name: str, store: Store, open_again: MakeStore) -> None:
    for number in count(3):
        rig = rig_of(name, store, open_again)
        again = [Death(n, 'before' if n % 2 else 'after') for n in (3, 4, 5, 3)]
        await check(rig, name, await rig.live_and_die([Death(number, 'after'), *again]))
        if not rig.deaths:
            break
