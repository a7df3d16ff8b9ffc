"""Runs that wait for approvals and results: stored with the conversation, and gone on with."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, UserError
from pydantic_ai.messages import ToolReturnPart

from graphkeep import Store, UnfinishedRunError
from graphkeep.agents import Conversations, KeepRun
from tests.builder.dying import Dead, Death, Moment, mortal
from tests.classic.conftest import MakeStore

from .staging import call, script, text
from .talking import branches, load, messages, new_id
from .test_keep_run import BoomError, prompts


@dataclass
class Shop:
    """An agent that pays with approval, ships elsewhere, and looks by itself, all in one batch."""

    kept: Conversations
    mixed: bool

    def __post_init__(self) -> None:
        self.done: list[str] = []
        self.boom = 0
        batch = [call('pay', 'p', sum=5)]
        if self.mixed:
            batch += [call('ship', 's', to='x'), call('look', 'l', at='y')]
        self.plot = script(batch, [text('sold')])
        self.name = new_id()
        self.agent: Agent[None, Any] = Agent(
            self.plot.model, output_type=[str, DeferredToolRequests]
        )

        @self.agent.tool_plain(requires_approval=True)
        def pay(sum: int) -> str:  # noqa: A002
            self.done.append('pay')
            if self.boom:
                self.boom -= 1
                raise BoomError
            return f'paid {sum}'

        @self.agent.tool_plain
        def ship(to: str) -> str:
            raise CallDeferred(metadata={'to': [to]})

        @self.agent.tool_plain
        def look(at: str) -> str:
            self.done.append('look')
            return f'saw {at}'

    def keep(self, store: Store) -> KeepRun:
        return KeepRun(store.conversations, self.name)

    def results(self, requests: DeferredToolRequests | None, *, approve: bool = True) -> Any:
        assert requests is not None
        calls: dict[str, Any] = {'s': 'shipped'} if self.mixed else {}
        return requests.build_results(approvals={'p': approve}, calls=calls)


@pytest.mark.parametrize('mixed', [False, True], ids=['alone', 'mixed'])
@pytest.mark.parametrize('given', ['id', 'conversation'])
async def test_deferred_tools_wait_in_the_conversation(
    make_store: MakeStore, mixed: bool, given: str
) -> None:
    store = make_store()
    shop = Shop(store.conversations, mixed)
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    assert isinstance(first.output, DeferredToolRequests)
    again = make_store()
    loaded = await load(again.conversations, shop.name)
    assert loaded.deferred_tool_requests == first.output
    if mixed:
        assert first.output.metadata == {'s': {'to': ['x']}}
    results = shop.results(loaded.deferred_tool_requests)
    options: Any = {'conversation': loaded} if given == 'conversation' else {}
    result = await shop.agent.run(
        deferred_tool_results=results, capabilities=[shop.keep(again)], **options
    )
    assert result.output == 'sold'
    assert shop.done == (['look', 'pay'] if mixed else ['pay'])
    assert shop.plot.asked == [0, 1]
    loaded = await load(again.conversations, shop.name)
    assert loaded.deferred_tool_requests is None
    assert prompts(loaded.messages) == ['buy']
    returned = {
        part.tool_call_id: part.content
        for message in loaded.messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    wanted = {'p': 'paid 5', 's': 'shipped', 'l': 'saw y'}
    assert returned == (wanted if mixed else {'p': 'paid 5'})
    assert await branches(again.conversations, shop.name) == []


async def test_a_denied_call_is_answered(store: Store) -> None:
    shop = Shop(store.conversations, mixed=False)
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    results = shop.results(first.output, approve=False)
    await shop.agent.run(deferred_tool_results=results, capabilities=[shop.keep(store)])
    assert shop.done == []
    assert (await load(store.conversations, shop.name)).deferred_tool_requests is None


@pytest.mark.parametrize('mixed', [False, True], ids=['alone', 'mixed'])
async def test_a_run_with_results_that_fails_goes_on_with_the_same(
    store: Store, mixed: bool
) -> None:
    shop = Shop(store.conversations, mixed)
    shop.boom = 1
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    results = shop.results(first.output)
    with pytest.raises(BoomError):
        await shop.agent.run(deferred_tool_results=results, capabilities=[shop.keep(store)])
    waiting = (await load(store.conversations, shop.name)).deferred_tool_requests
    assert waiting == first.output
    result = await shop.agent.run(deferred_tool_results=results, capabilities=[shop.keep(store)])
    assert result.output == 'sold'
    assert shop.done.count('pay') == 2
    assert shop.done.count('look') == mixed
    assert shop.plot.asked == [0, 1]
    assert await messages(store.conversations, shop.name) == result.all_messages()


@pytest.mark.parametrize('mixed', [False, True], ids=['alone', 'mixed'])
async def test_a_process_that_died_with_results_is_asked_for_them_again(
    store: Store, open_again: MakeStore, mixed: bool
) -> None:
    shop = Shop(store.conversations, mixed)
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    results = shop.results(first.output)
    async with mortal(open_again, Death(1, 'after', '_write_conversation')) as dying:
        with pytest.raises(Dead):
            await shop.agent.run(deferred_tool_results=results, capabilities=[shop.keep(dying)])
    with pytest.raises(UnfinishedRunError, match='deferred_tool_results'):
        await shop.agent.run(capabilities=[shop.keep(store)])
    result = await shop.agent.run(deferred_tool_results=results, capabilities=[shop.keep(store)])
    assert (result.output, shop.plot.asked) == ('sold', [0, 1])
    assert await messages(store.conversations, shop.name) == result.all_messages()


@pytest.mark.parametrize('mixed', [False, True], ids=['alone', 'mixed'])
async def test_calls_that_wait_are_not_passed_over(store: Store, mixed: bool) -> None:
    shop = Shop(store.conversations, mixed)
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    with contextlib.suppress(UnfinishedRunError, UserError):
        again = await shop.agent.run(capabilities=[shop.keep(store)])
        assert again.output == first.output
    waiting = (await load(store.conversations, shop.name)).deferred_tool_requests
    assert waiting == first.output
    result = await shop.agent.run(
        deferred_tool_results=shop.results(waiting), capabilities=[shop.keep(store)]
    )
    assert (result.output, shop.plot.asked) == ('sold', [0, 1])


@pytest.mark.parametrize('moment', ['before', 'during', 'after'])
async def test_a_process_dies_with_deferred_tools(
    store: Store, open_again: MakeStore, moment: Moment
) -> None:
    keeper, number, deaths = store, 0, 1
    while deaths:
        number += 1
        shop, deaths = Shop(keeper.conversations, mixed=True), 0
        first = await shop.agent.run('buy', capabilities=[shop.keep(keeper)])
        results = shop.results(first.output)
        for death in (Death(number, moment), None):
            try:
                async with mortal(open_again, death) as dying:
                    result = await shop.agent.run(
                        deferred_tool_results=results,
                        capabilities=[shop.keep(dying)],
                        run_id='again',
                    )
                break
            except Dead:
                deaths += 1
        assert result.output == 'sold'
        assert shop.done.count('look') == 1
        assert shop.done.count('pay') <= 1 + deaths
        loaded = await load(keeper.conversations, shop.name)
        assert loaded.deferred_tool_requests is None
        assert loaded.messages == result.all_messages() or deaths
        assert [len(m.parts) for m in loaded.messages] == [
            len(m.parts) for m in result.all_messages()
        ]
    assert number > 3


async def test_a_prompt_that_was_refused_is_not_sent_later(store: Store) -> None:
    shop = Shop(store.conversations, mixed=False)
    first = await shop.agent.run('buy', capabilities=[shop.keep(store)])
    with pytest.raises((UserError, UnfinishedRunError)):
        await shop.agent.run('quick!', capabilities=[shop.keep(store)])
    result = await shop.agent.run(
        deferred_tool_results=shop.results(first.output), capabilities=[shop.keep(store)]
    )
    assert (result.output, shop.done) == ('sold', ['pay'])
    stored = await messages(store.conversations, shop.name)
    assert prompts(stored) == ['buy']
    assert stored == result.all_messages()
