"""Kept runs of agents whose process dies around each call of the store: each goes on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from graphkeep import Store
from tests.builder.dying import Death, Moment
from tests.classic.conftest import MakeStore, every_store, on_sqlite

from .keeping import BATCH, Life
from .staging import FRONT_ENDS

WHERE = [*FRONT_ENDS, *(['conversation'] if find_spec('pydantic_ai.conversation_store') else [])]
everywhere = pytest.mark.parametrize('where', WHERE)


@every_store
@everywhere
async def test_undisturbed(where: str, store: Store, open_again: MakeStore) -> None:
    life = Life(where, store, open_again)
    await life.live_and_die()
    await life.check()
    assert life.script.asked == [0, 1, 2]
    assert set(life.looked.values()) == {1}


@every_store
@everywhere
@pytest.mark.parametrize('moment', ['before', 'during', 'after'])
async def test_a_process_dies_at_any_call_of_the_store(
    where: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        life = Life(where, store, open_again)
        await life.live_and_die(Death(number, moment))
        await life.check()
        died = life.deaths > 0
    assert number > 5 + len(BATCH)


@on_sqlite
@everywhere
async def test_a_process_dies_and_the_next_one_too(
    where: str, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        life = Life(where, store, open_again)
        await life.live_and_die(Death(number, 'before'), Death(2 + number % 4, 'after'))
        await life.check()
        died = life.deaths > 0
