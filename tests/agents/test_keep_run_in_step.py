"""Agents whose runs are kept with the task of a step or node: left in any way, they go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    BinaryContent,
    ModelRetry,
    RunContext,
    ToolReturn,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart

from graphkeep import LossyStateError, Store, once
from graphkeep.agents import KeepRun

from .keeping import same
from .staging import Script, Stage, call, script, text

BATCH = [[call('look', 'a', at='x'), call('look', 'b', at='y')], [text('end')]]


class BoomError(Exception):
    pass


@dataclass
class Worker:
    """An agent with a tool that does what the test says."""

    plot: Script = field(default_factory=lambda: Script(BATCH))
    looked: Counter[str] = field(default_factory=Counter)
    inside: Callable[[str], Awaitable[Any]] | None = None
    """Is given the id of the call; what it gives is returned, if it is something."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.agent: Agent[None, Any] = Agent(
            self.plot.model, instructions='Be brief.', **self.options
        )

        @self.agent.tool
        async def look(ctx: RunContext[None], at: str) -> Any:
            call_id = ctx.tool_call_id
            assert call_id is not None
            self.looked[call_id] += 1
            given = None if self.inside is None else await self.inside(call_id)
            return f'saw {at}' if given is None else given

    async def run(self, prompt: Any = 'look!', *, name: str = 'agent', **options: Any) -> Any:
        return await self.agent.run(prompt, capabilities=[KeepRun(name=name)], **options)


def failing(*call_ids: str) -> Callable[[str], Awaitable[None]]:
    """Each of these calls fails once."""
    left = set(call_ids)

    async def inside(call_id: str) -> None:
        if call_id in left:
            left.discard(call_id)
            raise BoomError

    return inside


def prompts(said: list[ModelMessage]) -> list[Any]:
    return [p.content for m in said for p in m.parts if isinstance(p, UserPromptPart)]


def returns(said: list[ModelMessage]) -> list[Any]:
    return [p.content for m in said for p in m.parts if isinstance(p, ToolReturnPart)]


async def keeps(stage: Stage, call_id: str) -> None:
    """Until a return is stored."""
    async with asyncio.timeout(20):
        while f'"{call_id}"'.encode() not in (await stage.kept()).partition(b'return-')[2]:
            await asyncio.sleep(0)


async def test_a_step_goes_on_with_its_agent(stage: Stage) -> None:
    worker = Worker(inside=failing('a'))
    with pytest.raises(BoomError):
        await stage.play(worker.run)
    assert b'keep-run' in await stage.kept()
    result = await stage.play(worker.run)
    assert result.output == 'end'
    by_hand = (await Worker().agent.run('look!')).all_messages()
    same(result.all_messages(), by_hand)
    assert result.new_messages() == result.all_messages()
    assert worker.plot.asked == [0, 1]
    assert worker.looked['a'] == 2
    assert b'keep-run' not in await stage.kept()


async def test_a_history_is_given_by_the_step(stage: Stage) -> None:
    before = (await Worker(script([text('hello')])).agent.run('hi')).all_messages()
    worker = Worker(script([text('hello')], *BATCH), inside=failing('b'))
    with pytest.raises(BoomError):
        await stage.play(lambda: worker.run(message_history=before))
    result = await stage.play(lambda: worker.run(message_history=before))
    assert prompts(result.all_messages()) == ['hi', 'look!']
    assert prompts(result.new_messages()) == ['look!']
    assert worker.plot.asked == [1, 2]


async def test_a_return_is_known_by_its_call(stage: Stage) -> None:
    file = BinaryContent(b'\x89PNG' * 30_000, media_type='image/png')
    given: ToolReturn[Any] = ToolReturn(
        {'n': [1.0, 1]}, content=['see', file], metadata={'k': [None]}
    )
    worker = Worker()

    async def inside(call_id: str) -> Any:
        if call_id == 'a':
            return given
        if worker.looked['b'] == 1:
            await keeps(stage, 'a')
            raise BoomError
        return None

    worker.inside = inside
    with pytest.raises(BoomError):
        await stage.play(worker.run)
    result = await stage.play(worker.run)
    assert worker.looked == {'a': 1, 'b': 2}
    said = result.all_messages()
    assert returns(said) == [{'n': [1.0, 1]}, 'saw y']
    assert prompts(said) == ['look!', ['see', file]]
    assert said[2].parts[0].metadata == {'k': [None]}


async def test_what_follows_the_agent_may_fail(stage: Stage) -> None:
    worker, fails = Worker(), [True]

    async def body() -> Any:
        result = await worker.run()
        if fails.pop() if fails else False:
            raise BoomError
        return result

    with pytest.raises(BoomError):
        await stage.play(body)
    result = await stage.play(body)
    assert result.output == 'end'
    assert (worker.plot.asked, worker.looked) == ([0, 1], {'a': 1, 'b': 1})
    assert len(result.all_messages()) == 4


async def test_two_agents_in_a_step_need_names(stage: Stage) -> None:
    async def twice() -> None:
        await Worker().run()
        await Worker().run()

    with pytest.raises(ValueError, match=r"KeepRun\(name='agent'\)"):
        await stage.play(twice)


@pytest.mark.parametrize('at_once', [False, True], ids=['in turn', 'at once'])
async def test_agents_with_names_are_kept_apart(stage: Stage, at_once: bool) -> None:
    one, two = Worker(), Worker(script([call('look', 'c', at='z')], [text('other')]))
    outcomes: list[Any] = []

    async def inside(call_id: str) -> None:
        if two.looked['c'] == 1:
            async with asyncio.timeout(20):
                while not outcomes:
                    await asyncio.sleep(0)
            raise BoomError

    async def first() -> Any:
        outcomes.append(await one.run(name='one'))
        return outcomes[-1]

    async def body() -> Any:
        if at_once:
            return await asyncio.gather(first(), two.run(name='two'))
        return [await first(), await two.run(name='two')]

    two.inside = inside
    with pytest.raises(BoomError):
        await stage.play(body)
    done = await stage.play(body)
    assert [each.output for each in done] == ['end', 'other']
    assert (one.plot.asked, one.looked) == ([0, 1], {'a': 1, 'b': 1})
    assert (two.plot.asked, two.looked) == ([0, 1], {'c': 2})


async def test_an_agent_in_a_tool_of_an_agent(stage: Stage) -> None:
    outer = Worker(script([call('look', 'o', at='x')], [text('outer')]))
    inner = Worker(inside=failing('b'))

    async def ask(call_id: str) -> Any:
        return (await inner.run('deep', name=f'inner {call_id}')).output

    outer.inside = ask
    with pytest.raises(BoomError):
        await stage.play(outer.run)
    result = await stage.play(outer.run)
    assert returns(result.all_messages()) == ['end']
    assert (outer.plot.asked, outer.looked) == ([0, 1], {'o': 2})
    assert inner.plot.asked == [0, 1]
    assert inner.looked['b'] == 2
    assert b'keep-run' not in await stage.kept()


async def test_an_agent_inside_of_once_is_refused(stage: Stage) -> None:
    worker = Worker()

    async def body() -> None:
        await once('all', worker.run, type=Any)

    with pytest.raises(RuntimeError, match=r'KeepRun\(\)'):
        await stage.play(body)
    assert worker.plot.asked == []


async def test_outside_of_a_step_it_needs_a_conversation() -> None:
    worker = Worker()
    with pytest.raises(RuntimeError, match=r'KeepRun\(store\.conversations\)'):
        await worker.run()
    assert worker.plot.asked == []


async def test_a_return_that_cannot_be_stored_is_named(stage: Stage) -> None:
    bad, worker = [True], Worker(script([call('look', 'a', at='x')], [text('end')]))

    async def inside(call_id: str) -> Any:
        return object() if bad else 'plain'

    worker.inside = inside
    with pytest.raises(LossyStateError, match="tool 'look'"):
        await stage.play(worker.run)
    bad.clear()
    result = await stage.play(worker.run)
    assert returns(result.all_messages()) == ['plain']
    assert worker.plot.asked == [0, 1]


async def test_retries_and_limits_count_over_the_attempts(stage: Stage) -> None:
    worker = Worker(
        script(
            [call('look', 'a', at='x')], [call('look', 'b', at='y')], [text('bad')], [text('end')]
        )
    )
    refused: list[str] = []

    @worker.agent.output_validator
    def check(output: str) -> str:
        if output == 'bad':
            refused.append(output)
            raise ModelRetry('be good')
        return output

    async def inside(call_id: str) -> None:
        if call_id == 'a':
            raise ModelRetry('look better')
        if worker.looked['b'] == 1:
            raise BoomError

    worker.inside = inside
    limits = UsageLimits(request_limit=3)
    with pytest.raises(BoomError):
        await stage.play(lambda: worker.run(usage_limits=limits))
    with pytest.raises(UsageLimitExceeded):
        await stage.play(lambda: worker.run(usage_limits=limits))
    assert worker.plot.asked == [0, 1, 2]
    result = await stage.play(worker.run)
    assert (result.output, refused) == ('end', ['bad'])
    assert worker.plot.asked == [0, 1, 2, 3]
    assert worker.looked == {'a': 1, 'b': 2}


@pytest.mark.parametrize('how', ['cancel', 'iter'])
async def test_a_run_that_was_broken_off_goes_on(stage: Stage, how: str) -> None:
    worker, at_work = Worker(), asyncio.Event()

    async def inside(call_id: str) -> None:
        at_work.set()
        await asyncio.Event().wait()

    async def broken() -> None:
        async with worker.agent.iter('look!', capabilities=[KeepRun()]) as run:
            node: Any = run.next_node
            for _ in range(2):
                node = await run.next(node)
        raise BoomError

    if how == 'cancel':
        worker.inside = inside
        playing = asyncio.ensure_future(stage.play(worker.run))
        await at_work.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        worker.inside = None
    else:
        with pytest.raises(BoomError):
            await stage.play(broken)
    result = await stage.play(worker.run)
    assert result.output == 'end'
    assert prompts(result.all_messages()) == ['look!']
    assert worker.plot.asked == [0, 1]


async def test_a_step_may_bind_its_agent_to_a_conversation(store: Store, stage: Stage) -> None:
    pytest.importorskip('pydantic_ai.conversation_store')
    worker = Worker(inside=failing('a'))
    keep = KeepRun(store.conversations, stage.run_id)

    async def body() -> Any:
        return await worker.agent.run('look!', capabilities=[keep])

    with pytest.raises(BoomError):
        await stage.play(body)
    result = await stage.play(body)
    assert worker.plot.asked == [0, 1]
    loaded = await store.conversations.load(stage.run_id)
    assert loaded is not None
    assert loaded.messages == result.all_messages()


async def test_who_catches_an_error_may_go_on_in_the_same_attempt(stage: Stage) -> None:
    worker = Worker(inside=failing('b'))

    async def body() -> Any:
        try:
            return await worker.run()
        except BoomError:
            return await worker.run()

    result = await stage.play(body)
    assert result.output == 'end'
    assert worker.plot.asked == [0, 1]
    assert worker.looked['b'] == 2
