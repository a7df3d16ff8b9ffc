"""What happens to an answer that does not do, and to what is under way when a step pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr
from pydantic_graph import GraphBuilder, StepContext

import graphkeep
from graphkeep import (
    InvalidAnswerError,
    PersistentGraph,
    RunNotFoundError,
    RunPausedError,
    Store,
    once,
    wait_for,
)
from tests.classic.conftest import every_store, in_memory

Body = Callable[[], Awaitable[Any]]
Kept = PersistentGraph[None, None, None, str]


def asking(body: Body) -> Kept:
    """A graph of one step."""
    g = GraphBuilder(output_type=str, auto_instrument=False)

    @g.step
    async def ask(ctx: StepContext[None, None, None]) -> str:
        return repr(await body())

    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return graphkeep.persist(g.build())


async def pauses(kept: Kept, store: Store, run_id: str) -> list[str]:
    """Go on to the next pause; gives what is open then."""
    handle = store.persistence(run_id, if_exists='resume')
    with pytest.raises(RunPausedError) as caught:
        await kept.run(persistence=handle)
    return [request.name for request in caught.value.requests]


async def ends(kept: Kept, store: Store, run_id: str) -> str:
    return await kept.run(persistence=store.persistence(run_id, if_exists='resume'))


@every_store
async def test_an_answer_that_was_used_may_not_do_any_more(store: Store, run_id: str) -> None:
    stock = ['red', 'blue']

    def in_stock(color: str) -> str:
        if color not in stock:
            raise ValueError('sold out')
        return color

    async def body() -> Any:
        color = await wait_for(Annotated[str, AfterValidator(in_stock)], 'color')
        return color, await wait_for(int, 'size')

    kept = asking(body)
    assert await pauses(kept, store, run_id) == ['color']
    await store.answer(run_id, '0:color', 'red')
    assert await pauses(kept, store, run_id) == ['size']
    stock.remove('red')
    await store.answer(run_id, '0:size', 42)
    assert await pauses(kept, store, run_id) == ['color']
    request = await store.request(run_id, '0:color')
    assert request.error is not None
    assert 'sold out' in request.error
    await store.answer(run_id, '0:color', 'blue')
    assert await ends(kept, store, run_id) == "('blue', 42)"


@every_store
@pytest.mark.parametrize('waits', [True, False])
async def test_the_deadline_of_a_request_that_was_opened_again_counts(
    store: Store, run_id: str, waits: bool
) -> None:
    def never(value: int) -> int:
        raise ValueError('no')

    async def body() -> Any:
        return await wait_for(Annotated[int, AfterValidator(never)], 'n', timeout=0.6, default=99)

    kept = asking(body)
    assert await pauses(kept, store, run_id) == ['n']
    await store.answer(run_id, '0:n', 5)
    assert await pauses(kept, store, run_id) == ['n']
    assert (await store.run(run_id)).wake_at is not None
    async with asyncio.timeout(20):
        if waits:
            handle = store.persistence(run_id)
            assert await kept.resume(handle, on_pause='wait') == '99'
            return
        while not (await store.run(run_id)).due:
            await asyncio.sleep(0.01)
        assert await ends(kept, store, run_id) == '99'


async def test_a_request_whose_type_has_changed_is_asked_anew(store: Store, run_id: str) -> None:
    type_: Any = int

    async def body() -> Any:
        return await wait_for(type_, 'what', prompt=f'a {type_.__name__}?')

    kept = asking(body)
    await pauses(kept, store, run_id)
    type_ = str
    await store.answer(run_id, '0:what', 5)
    await pauses(kept, store, run_id)
    [request] = await store.requests(run_id=run_id)
    assert (request.prompt, request.schema) == ('a str?', {'type': 'string'})
    await store.answer(run_id, '0:what', 'five')
    assert await ends(kept, store, run_id) == "'five'"


@pytest.mark.parametrize('how', ['taskgroup', 'gather', 'beside an error'])
async def test_what_once_does_when_a_step_pauses_is_kept(
    store: Store, run_id: str, how: str
) -> None:
    paid: list[str] = []
    fails = how == 'beside an error'

    async def pay() -> str:
        paid.append('paid')
        await asyncio.sleep(0.05)
        return 'receipt'

    async def fail() -> None:
        if fails:
            raise ValueError('mine')

    async def body() -> Any:
        if how == 'gather':
            return await asyncio.gather(once('pay', pay), wait_for(str, 'ok'))
        async with asyncio.TaskGroup() as group:
            receipt = group.create_task(once('pay', pay))
            answer = group.create_task(wait_for(str, 'ok'))
            group.create_task(fail())
        return [receipt.result(), answer.result()]

    kept = asking(body)
    if fails:
        with pytest.raises(ExceptionGroup):
            await ends(kept, store, run_id)
        fails = False
    assert await pauses(kept, store, run_id) == ['ok']
    await store.answer(run_id, '0:ok', 'yes')
    assert await ends(kept, store, run_id) == "['receipt', 'yes']"
    assert paid == ['paid']


async def test_a_new_run_of_the_same_id_is_another_run(store: Store, run_id: str) -> None:
    async def body() -> Any:
        return await wait_for(str, 'what')

    kept = asking(body)
    running = asyncio.create_task(kept.run(persistence=store.persistence(run_id), on_pause='wait'))
    async with asyncio.timeout(10):
        while not await store.requests(run_id=run_id):
            await asyncio.sleep(0.005)
        await store.delete(run_id)
        assert await pauses(kept, store, run_id) == ['what']
        await store.answer(run_id, '0:what', 'for the new one')
        with pytest.raises(RunNotFoundError):
            await running
    assert await ends(kept, store, run_id) == "'for the new one'"


class Login(BaseModel):
    token: SecretStr


class Hidden(BaseModel):
    seen: int = 1
    hidden: int = Field(default=2, exclude=True)


@in_memory
@pytest.mark.parametrize(
    ('type_', 'answer'),
    [
        (Login, Login(token=SecretStr('tok-123'))),
        (list[Login], [Login(token=SecretStr('tok-123'))]),
        (Hidden, Hidden(hidden=5)),
        (dict[str, int], {1: 10, '1': 20}),
        (dict[str, dict[str, int]], {'a': {1: 10, '1': 20}}),
    ],
    ids=repr,
)
async def test_an_answer_that_json_does_not_keep_is_refused(
    store: Store, run_id: str, type_: Any, answer: Any
) -> None:
    async def body() -> Any:
        return await wait_for(type_, 'what')

    await pauses(asking(body), store, run_id)
    with pytest.raises(InvalidAnswerError):
        await store.answer(run_id, '0:what', answer)
    assert (await store.run(run_id)).answered == 0


@in_memory
async def test_a_pattern_takes_no_longer_than_the_text(store: Store, run_id: str) -> None:
    """Where a regular expression backtracks, 60 letters would take longer than the universe."""

    @dataclass
    class Words:
        text: Annotated[str, Field(pattern=r'^(\w+\s?)*$')]
        keys: dict[Annotated[str, Field(pattern='^a+$')], int]

    async def body() -> Any:
        return await wait_for(Words, 'what')

    kept = asking(body)
    await pauses(kept, store, run_id)
    for text in ('a' * 60 + '!', '!'):
        with pytest.raises(InvalidAnswerError) as caught:
            await store.answer(run_id, '0:what', {'text': text, 'keys': {'aa': 1}})
        assert caught.value.path == 'answer.text'
    # What the schema does not check, the type does.
    await store.answer(run_id, '0:what', {'text': 'a b', 'keys': {'b': 1}})
    assert await pauses(kept, store, run_id) == ['what']
    await store.answer(run_id, '0:what', {'text': 'a b', 'keys': {'aa': 1}})
    assert 'Words' in await ends(kept, store, run_id)


@in_memory
async def test_a_payload_that_nobody_could_read_is_refused(store: Store, run_id: str) -> None:
    async def body() -> Any:
        return await wait_for(str, 'what', payload=10**5000)

    with pytest.raises(TypeError, match='payload'):
        await ends(asking(body), store, run_id)
