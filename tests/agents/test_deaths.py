"""Agents whose process dies around each call of the store, and who go on in another."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied

from graphkeep import RequestClosedError, RunNotFoundError, RunPausedError, Store, agents, once
from tests.builder.dying import Death, Moment, mortal, through
from tests.classic.conftest import MakeStore, on_sqlite

from .staging import FRONT_ENDS, Script, Stage, call, plain, script, text

pytestmark = on_sqlite


def _plot() -> Script:
    """Two rounds: an approval, a denial and a call made elsewhere; then an approval."""
    return script(
        [call('look', 'l'), call('refund', 'a', amount=5), call('ship', 's')],
        [call('look', 'm'), call('refund', 'a', amount=7), call('refund', 'b', amount=9)],
        [text('done')],
    )


ANSWERS = {
    'agent:0:a': True,
    'agent:0:s': {'result': 'sent'},
    'agent:1:a': {'approved': True, 'override_args': {'amount': 6}},
    'agent:1:b': {'approved': False, 'message': 'no'},
}
LEGS = [0, 1, 2]
"""What the model is asked in each leg."""


@dataclass
class Life:
    """One run of an agent through several processes."""

    front_end: str
    keeper: Store
    make_store: MakeStore
    plot: Script = field(default_factory=_plot)
    paid: Counter[int] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    result: Any = None

    def __post_init__(self) -> None:
        self.run_id = f'run-{uuid.uuid4().hex}'
        self.agent: Agent[None, str] = Agent(self.plot.model)

        @self.agent.tool_plain
        def look() -> str:
            return 'looked'

        @self.agent.tool(requires_approval=True)
        async def refund(ctx: RunContext[None], amount: int) -> str:
            self.paid[amount] += 1

            def charge() -> str:
                self.charged[f'{amount}'] += 1
                return f'paid {amount}'

            return await once(f'refund:{ctx.tool_call_id}:{amount}', charge)

        @self.agent.tool_plain
        def ship() -> str:
            raise CallDeferred

    async def body(self) -> None:
        self.result = await agents.run(self.agent, 'money!')

    async def live(self, death: Death | None) -> None:
        """Go on until the run has ended, or the process dies."""
        asked = len(self.plot.asked)
        kept = await self.legs()
        try:
            async with mortal(self.make_store, death) as store:
                stage = Stage(store, self.run_id, self.front_end, begun=await self._exists())
                while True:
                    try:
                        await stage.play(self.body)
                        return
                    except RunPausedError as paused:
                        for request in paused.requests:
                            with contextlib.suppress(RequestClosedError):
                                await stage.answer(request, ANSWERS[request.name])
        finally:
            again = self.plot.asked[asked:]
            assert not set(again) & kept, 'a model was called again for a leg that was kept'
            assert len(set(again)) == len(again)

    async def live_and_die(self, *deaths: Death) -> None:
        self.deaths += await through(self.live, deaths)

    async def legs(self) -> set[int]:
        try:
            document = bytes((await self.keeper.document(self.run_id)).to_json())
        except RunNotFoundError:
            return set()
        return {leg for leg in LEGS if b'"agent:%d":' % leg in document}

    async def _exists(self) -> bool:
        with contextlib.suppress(RunNotFoundError):
            await self.keeper.run(self.run_id)
            return True
        return False

    async def check(self) -> None:
        result = self.result
        by_hand = await _by_hand()
        assert plain(result.messages) == plain(by_hand)
        assert [each.kind for each in result.messages] == [each.kind for each in by_hand]
        assert (result.output, result.legs, result.usage.requests) == ('done', 3, 3)
        assert self.paid.keys() == {5, 6}
        assert all(times <= 1 + self.deaths for times in self.paid.values())
        assert all(times == 1 or self.deaths for times in self.charged.values())
        assert (await self.keeper.run(self.run_id)).status == 'done'


async def _by_hand() -> list[ModelMessage]:
    """The messages of the same conversation without graphkeep."""
    plot = _plot()
    agent = Agent(plot.model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def look() -> str:
        return 'looked'

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> str:
        return f'paid {amount}'

    @agent.tool_plain
    def ship() -> str:
        raise CallDeferred

    result: Any = await agent.run('money!')
    given = DeferredToolResults(approvals={'a': True}, calls={'s': 'sent'})
    result = await agent.run(message_history=result.all_messages(), deferred_tool_results=given)
    given = DeferredToolResults(
        approvals={'a': ToolApproved(override_args={'amount': 6}), 'b': ToolDenied('no')}
    )
    result = await agent.run(message_history=result.all_messages(), deferred_tool_results=given)
    assert result.output == 'done'
    return result.all_messages()


every_front_end = pytest.mark.parametrize('front_end', FRONT_ENDS)


@every_front_end
async def test_undisturbed(front_end: str, store: Store, open_again: MakeStore) -> None:
    life = Life(front_end, store, open_again)
    await life.live_and_die()
    await life.check()
    assert life.plot.asked == LEGS


@every_front_end
@pytest.mark.parametrize('moment', ['before', 'during', 'after'])
async def test_a_process_dies_at_any_call_of_the_store(
    front_end: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        life = Life(front_end, store, open_again)
        await life.live_and_die(Death(number, moment))
        await life.check()
        died = life.deaths > 0
    assert number > 8


@every_front_end
async def test_a_process_dies_and_the_next_one_too(
    front_end: str, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        life = Life(front_end, store, open_again)
        deaths = Death(number, 'before'), Death(2 + number % 5, 'after')
        await life.live_and_die(*deaths)
        await life.check()
        died = life.deaths > 0
