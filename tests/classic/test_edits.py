"""What a person or program puts into a run between two nodes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import graphkeep
from graphkeep import LossyStateError, Store
from tests.classic.conftest import MakeStore, every_store
from tests.classic.graphs import (
    Answer,
    Ask,
    Deps,
    Order,
    Pay,
    Pick,
    Price,
    Quiz,
    answer_quiz,
    count_calls,
    events,
    fails,
    nodes,
    orders,
    quiz,
    tea_by_node,
    writes,
)

# --- a caller edits -------------------------------------------------------------------------------


@every_store
async def test_an_edited_state_is_committed_before_the_node_runs(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    found: list[Any] = []

    async def look(ctx: Any, node: Any) -> None:
        found.append((await store.document(run_id)).state)

    deps = Deps(hooks={'Price': look})
    async with orders.iter(Pick('tea'), state=Order(), deps=deps, persistence=handle) as run:
        await run.next()
        run.state.total = 1000
        await run.next()

    assert await events(store, run_id) == ['start', 'step', 'edit', 'step']
    assert found == [{'lines': b'["tea"]', 'total': b'1000'}]


async def test_an_edited_node_is_committed_before_it_runs(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    async with orders.iter(
        Pick('tea'),
        state=Order(),
        deps=Deps(hooks={'Price': fails(ValueError())}),
        persistence=handle,
    ) as run:
        price = await run.next()
        assert isinstance(price, Price)
        price.cents = 42
        with pytest.raises(ValueError):
            await run.next()

    assert await events(store, run_id) == ['start', 'step', 'edit', 'error']
    assert (await graphkeep.resume(orders, store.persistence(run_id))).output == 42
    history = await handle.load_all()
    assert nodes(history) == ['Pick success', 'Price success', 'Pay success', 'end']
    assert history[1].node == Price(42)


@every_store
async def test_what_was_loaded_and_edited_is_committed_with_the_claim_of_the_node(
    store: Store, run_id: str
) -> None:
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())
    calls = count_calls(store)

    async with orders.iter_from_persistence(store.persistence(run_id)) as run:
        assert isinstance(run.next_node, Pick)
        run.next_node.item = 'gin'
        run.state.lines.append('please')
        assert await run.next() == Price(300)

    assert writes(calls) == {'claim': 1, 'append': 2}
    assert await events(store, run_id) == ['start', 'edit', 'step']
    assert run.state == Order(lines=['please', 'gin'])


async def test_two_edits_before_the_same_node(store: Store, run_id: str) -> None:
    """One is committed and its node cancelled, then comes another."""
    await orders.initialize(Pick('tea'), store.persistence(run_id), state=Order())

    async def cancelled(ctx: Any, node: Any) -> None:
        raise asyncio.CancelledError

    for item, deps in (('gin', Deps(hooks={'Pick': cancelled})), ('port', Deps())):
        async with orders.iter_from_persistence(store.persistence(run_id), deps=deps) as run:
            assert isinstance(run.next_node, Pick)
            run.next_node.item = item
            if deps.hooks:
                with pytest.raises(asyncio.CancelledError):
                    await run.next()
            else:
                await run.next()

    assert await events(store, run_id) == ['start', 'edit', 'edit', 'step']
    assert run.state.lines == ['port']


async def test_what_is_unchanged_costs_no_write(store: Store, run_id: str) -> None:
    await store.open()
    calls = count_calls(store)
    async with tea_by_node(store, run_id) as run:
        price = await run.next()
        assert isinstance(price, Price)
        # Other objects, and a change taken back: what is stored is the same.
        run.state.lines = list(run.state.lines)
        run.state.total += 1
        run.state.total -= 1
        price.cents = int(str(price.cents))
        async for _ in run:
            pass

    assert writes(calls) == {'create': 1, 'append': 3}


async def test_an_edit_that_cannot_be_stored_is_refused_before_anything_happens(
    store: Store, run_id: str
) -> None:
    deps = Deps()
    async with tea_by_node(store, run_id, deps=deps) as run:
        await run.next()
        run.state.total = 1.5  # type: ignore[assignment]
        with pytest.raises(LossyStateError) as error:
            await run.next()
        assert error.value.path == 'state.total'
        assert deps.ran == ['Pick']
        assert await events(store, run_id) == ['start', 'step']

        run.state.total = 15
        assert await run.next() == Pay()
    assert run.state.total == 315


async def test_a_state_that_the_caller_replaces_is_visible_when_the_next_node_ends(
    store: Store, run_id: str
) -> None:
    found: list[Any] = []

    async def look(ctx: Any, node: Any) -> None:
        found.append((ctx.state, (await store.document(run_id)).state))

    deps = Deps(hooks={'Price': look})
    async with tea_by_node(store, run_id, deps=deps) as run:
        await run.next()
        run.state = Order(lines=['other'], total=5)
        await run.next()

    assert found == [
        (Order(lines=['other'], total=305), {'lines': b'["tea"]', 'total': b'0'}),
    ]
    assert (await store.document(run_id)).state == {'lines': b'["other"]', 'total': b'305'}
    assert await events(store, run_id) == ['start', 'step', 'step']


# --- the documented human in the loop -------------------------------------------------------------


@every_store
async def test_the_documented_pattern(make_store: MakeStore, run_id: str) -> None:
    question = 'What is the capital of France?'
    said: list[str] = []
    for answer in (None, 'Lyon', 'Paris'):
        store = make_store()
        said.append(await answer_quiz(store, run_id, answer))
        await store.close()

    assert said == [question, question, 'END: Paris is right, after 1 wrong answers']
    store = make_store()
    assert await events(store, run_id) == [
        *('start', 'step', 'replace', 'step', 'step'),
        *('replace', 'end'),
    ]
    persistence = store.persistence(run_id)
    persistence.set_graph_types(quiz)
    assert nodes(await persistence.load_all()) == [
        *('Ask success', 'Answer created', 'Evaluate success'),
        *('Ask success', 'Answer created', 'Evaluate success', 'end'),
    ]


@every_store
async def test_the_answer_is_put_into_the_node_that_asks(store: Store, run_id: str) -> None:
    persistence = store.persistence(run_id)
    async with quiz.iter(Ask(), state=Quiz(), persistence=persistence) as run:
        async for node in run:
            if isinstance(node, Answer):
                break

    async with quiz.iter_from_persistence(store.persistence(run_id)) as run:
        assert run.next_node == Answer('What is the capital of France?')
        assert isinstance(run.next_node, Answer)
        run.next_node.answer = 'Paris'
        async for _ in run:
            pass

    assert run.result is not None
    assert run.result.output == 'Paris is right, after 0 wrong answers'
    assert await events(store, run_id) == ['start', 'step', 'edit', 'step', 'end']


ANSWER = """
import asyncio, sys
import graphkeep
from tests.classic.graphs import answer_quiz

async def main(url, run_id, answer=None):
    async with graphkeep.open_store(url) as store:
        print(await answer_quiz(store, run_id, answer))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize('database', ['sqlite'], indirect=True)
async def test_the_person_answers_in_another_process(
    store: Store, database: str, run_id: str
) -> None:
    said: list[str] = []
    for answer in ([], ['Paris']):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, '-c', ANSWER, database, run_id, *answer),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        said.append(output.decode().strip())

    assert said == ['What is the capital of France?', 'END: Paris is right, after 0 wrong answers']
    assert (await store.run(run_id)).status == 'done'
