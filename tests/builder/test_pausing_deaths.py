"""Steps that wait for people, on every store, dying around each call of the store."""

from __future__ import annotations

import pytest

from graphkeep import Store
from tests.classic.conftest import MakeStore, every_store, in_memory

from .asking import CASES, AskingRig, People, everybody, one_person, two_at_once
from .dying import Death, Moment

every_case = pytest.mark.parametrize('name', CASES)
people = pytest.mark.parametrize('people', [one_person, everybody, two_at_once])
moments = pytest.mark.parametrize('moment', ['before', 'during', 'after'])


@every_store
@every_case
@people
async def test_answers_carry_a_run_on(
    name: str, people: People, store: Store, open_again: MakeStore
) -> None:
    rig = AskingRig(case=CASES[name], keeper=store, make_store=open_again, people=people)
    await rig.check(await rig.live_and_die([]))
    assert rig.pauses > 0


@every_store
@every_case
async def test_answers_that_come_while_the_run_goes_on(
    name: str, store: Store, open_again: MakeStore
) -> None:
    rig = AskingRig(
        case=CASES[name], keeper=store, make_store=open_again, people=everybody, at_once=True
    )
    await rig.check(await rig.live_and_die([]))


@every_store
@every_case
@moments
async def test_a_run_that_asks_dies_at_any_call_of_the_store(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        rig = AskingRig(case=CASES[name], keeper=store, make_store=open_again, people=one_person)
        await rig.check(await rig.live_and_die([Death(number, moment)]))
        died = rig.deaths > 0


@every_case
@moments
async def test_a_run_dies_while_two_people_answer_or_somebody_answers_at_once(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    for at_once in (False, True):
        number, died = 0, True
        while died:
            number += 1
            rig = AskingRig(
                case=CASES[name],
                keeper=store,
                make_store=open_again,
                people=two_at_once,
                at_once=at_once,
            )
            await rig.check(await rig.live_and_die([Death(number, moment)]))
            died = rig.deaths > 0


@pytest.mark.slow
@in_memory
@every_case
@moments
async def test_a_run_that_asks_dies_at_any_call_and_again(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    first, died = 0, True
    while died:
        first += 1
        second, died_twice = 0, True
        while died_twice:
            second += 1
            rig = AskingRig(case=CASES[name], keeper=store, make_store=open_again, people=everybody)
            deaths = [Death(first, moment), Death(second, 'before')]
            await rig.check(await rig.live_and_die(deaths))
            died = rig.deaths > 0
            died_twice = rig.deaths > 1
