"""Agents whose runs are kept in a conversation: left in any way, they go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import Agent, BinaryContent, RunContext
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, UserPromptPart

from graphkeep import (
    ConversationBusyError,
    Store,
    UnfinishedRunError,
)
from graphkeep.agents import Conversations, KeepRun
from graphkeep.agents.records import Unfinished

from .keeping import same
from .staging import Script, call, script, text
from .talking import ask, branches, conversation, load, messages, new_id, say, turns


class BoomError(Exception):
    pass


@dataclass
class Bench:
    """An agent with one tool that fails at will, and the conversation that it is kept in."""

    kept: Conversations
    plot: Script = field(
        default_factory=lambda: script([call('look', 'a', at='x')], [text('one')], [text('two')])
    )
    name: str = field(default_factory=new_id)
    boom: int = 1
    """So many calls of the tool fail."""
    looked: Counter[str] = field(default_factory=Counter)
    inside: Callable[[], Awaitable[Any]] | None = None
    """What the tool does before it fails or returns."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.agent: Agent[None, Any] = Agent(
            self.plot.model, instructions='Be brief.', **self.options
        )

        @self.agent.tool
        async def look(ctx: RunContext[None], at: str) -> Any:
            assert ctx.tool_call_id is not None
            self.looked[ctx.tool_call_id] += 1
            if self.inside is not None:
                await self.inside()
            if self.boom:
                self.boom -= 1
                raise BoomError
            return f'saw {at}'

    def keep(self, **options: Any) -> KeepRun:
        return KeepRun(self.kept, self.name, **options)

    async def run(self, prompt: Any = 'look!', *, keep: Any = None, **options: Any) -> Any:
        return await self.agent.run(
            prompt, capabilities=[self.keep() if keep is None else keep], **options
        )

    async def leave(self, prompt: Any = 'look!', **options: Any) -> None:
        with pytest.raises(BoomError):
            await self.run(prompt, **options)

    async def unfinished(self) -> Unfinished | None:
        found = await self.kept.read(self.name)
        return None if found is None else found[1]

    async def check(self, result: Any, *, branches_left: int = 0) -> None:
        """What is stored is what the run came to, and nothing is left."""
        record = await self.kept.read_record(self.name)
        assert record is not None
        assert await messages(self.kept, self.name) == result.all_messages()
        assert len(record.branches) == branches_left
        assert await self.unfinished() is None


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


@pytest.fixture
def bench(kept: Conversations) -> Bench:
    return Bench(kept)


def prompts(said: list[ModelMessage]) -> list[Any]:
    return [p.content for m in said for p in m.parts if isinstance(p, UserPromptPart)]


async def by_hand(*asked: Any) -> list[ModelMessage]:
    """The same turns without graphkeep, and nothing failing."""
    bench = Bench(Conversations.__new__(Conversations), boom=0)
    said: list[ModelMessage] = []
    for each in asked:
        said = (await bench.agent.run(each, message_history=said)).all_messages()
    return said


# --- what is kept, and what goes on ---------------------------------------------------------------


async def test_turns_are_loaded_and_saved_for_the_caller(bench: Bench) -> None:
    bench.boom = 0
    first = await bench.run('look!')
    assert first.output == 'one'
    await bench.check(first)
    second = await bench.run('more')
    assert second.output == 'two'
    await bench.check(second)
    assert prompts(second.all_messages()) == ['look!', 'more']
    assert prompts(second.new_messages()) == ['more']
    assert bench.plot.asked == [0, 1, 2]
    assert [m.parts for m in second.all_messages()] != []
    said = await by_hand('look!', 'more')
    assert [m.kind for m in second.all_messages()] == [m.kind for m in said]
    loaded = await load(bench.kept, bench.name)
    assert (loaded.usage.requests, loaded.usage.tool_calls) == (3, 1)


@pytest.mark.parametrize(
    'prompt',
    ['look!', ['see', BinaryContent(b'\xff', media_type='image/png')]],
    ids=['text', 'parts'],
)
@pytest.mark.parametrize('again', [True, False], ids=['the same prompt', 'none'])
async def test_a_run_goes_on(bench: Bench, prompt: Any, again: bool) -> None:
    await bench.leave(prompt)
    result = await bench.run(prompt if again else None)
    assert result.output == 'one'
    assert prompts(result.all_messages()) == [prompt]
    same(result.all_messages(), await by_hand(prompt))
    assert result.new_messages() == result.all_messages()
    await bench.check(result)
    assert (bench.plot.asked, bench.looked) == ([0, 1], {'a': 2})
    assert (result.usage.requests, result.usage.tool_calls) == (2, 1)


async def test_a_run_goes_on_behind_a_history(bench: Bench) -> None:
    bench.plot.said = [[text('hello')], *bench.plot.said]
    await bench.run('hi')
    before = await messages(bench.kept, bench.name)
    await bench.leave()
    # What others see has not moved.
    assert await messages(bench.kept, bench.name) == before
    result = await bench.run()
    assert prompts(result.all_messages()) == ['hi', 'look!']
    assert prompts(result.new_messages()) == ['look!']
    await bench.check(result)
    assert bench.plot.asked == [0, 1, 2]


async def test_the_conversation_moves_when_the_run_ends(bench: Bench) -> None:
    seen: list[Any] = []

    async def inside() -> None:
        seen.append(await bench.kept.load(bench.name))
        seen.append(await bench.unfinished())

    bench.boom, bench.inside = 0, inside
    await bench.check(await bench.run())
    assert seen[0].messages == []
    assert seen[1].count == 2


async def test_another_prompt_is_refused_while_a_run_is_left(bench: Bench) -> None:
    await bench.leave()
    before = await bench.kept.read(bench.name)
    asked = list(bench.plot.asked)
    with pytest.raises(UnfinishedRunError, match=bench.name) as caught:
        await bench.run('something else')
    assert caught.value.conversation_id == bench.name
    assert await bench.kept.read(bench.name) == before
    assert bench.plot.asked == asked
    await bench.check(await bench.run())


@pytest.mark.parametrize('how', ['option', 'call'])
async def test_a_run_that_is_given_up_stays_as_a_branch(bench: Bench, how: str) -> None:
    await bench.leave()
    if how == 'call':
        assert await bench.kept.discard(bench.name)
        result = await bench.run('something else')
    else:
        result = await bench.run('something else', keep=bench.keep(on_unfinished='discard'))
    assert prompts(result.all_messages()) == ['something else']
    await bench.check(result, branches_left=1)
    (left,) = await branches(bench.kept, bench.name)
    assert prompts(left) == ['look!']
    assert [m.kind for m in left] == ['request', 'response']


async def test_a_save_by_hand_gives_a_run_up_as_a_branch(bench: Bench) -> None:
    await bench.kept.save(conversation(*turns(1), name=bench.name))
    bench.plot.said = [[], *bench.plot.said]
    await bench.leave()
    loaded = await load(bench.kept, bench.name)
    loaded.messages += turns(2)
    await bench.kept.save(loaded)
    assert await bench.unfinished() is None
    assert await messages(bench.kept, bench.name) == loaded.messages
    assert [prompts(left) for left in await branches(bench.kept, bench.name)] == [
        ['question 1', 'look!']
    ]


@pytest.mark.parametrize('given', ['conversation', 'nothing'])
async def test_a_run_id_that_has_ended_gives_its_output_again(bench: Bench, given: str) -> None:
    bench.boom = 0
    await bench.run('look!', run_id='first')
    later = await bench.run('more', run_id='second')
    before = await bench.kept.read(bench.name)
    asked = list(bench.plot.asked)
    for run_id, output, new in (('first', 'one', 4), ('second', 'two', 2)):
        prompt = 'look!' if run_id == 'first' else 'more'
        for each in (prompt, None):
            again = await bench.run(each, run_id=run_id)
            assert again.output == output
            assert len(again.new_messages()) == new
            assert again.all_messages() == later.all_messages()[: 4 if run_id == 'first' else 6]
    assert bench.plot.asked == asked
    assert bench.looked == {'a': 1}
    assert await bench.kept.read(bench.name) == before


async def test_a_structured_output_is_given_again(kept: Conversations) -> None:
    plot = script(
        [call('look', 'a', at='x')],
        [call('final_result', 'f', x=3), call('look', 'b', at='y')],
    )

    @dataclass
    class Out:
        x: int

    bench = Bench(kept, plot, boom=0, options={'output_type': Out, 'end_strategy': 'exhaustive'})
    first = await bench.run(run_id='r')
    again = await bench.run(run_id='r')
    assert first.output == again.output == Out(3)
    same(again.all_messages(), first.all_messages())
    assert await messages(kept, bench.name) == first.all_messages()
    assert (bench.plot.asked, bench.looked) == ([0, 1], {'a': 1, 'b': 1})


# --- who may run ----------------------------------------------------------------------------------


async def test_one_run_at_a_time_in_a_process(bench: Bench) -> None:
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def inside() -> None:
        at_work.set()
        await go_on.wait()

    bench.boom, bench.inside = 0, inside
    running = asyncio.ensure_future(bench.run())
    await at_work.wait()
    for prompt in ('look!', None, 'other'):
        keep = bench.keep(on_unfinished='discard')
        with pytest.raises(ConversationBusyError) as caught:
            await bench.run(prompt, keep=keep)
        assert caught.value.conversation_id == bench.name
    go_on.set()
    await bench.check(await running)
    assert bench.plot.asked == [0, 1]


@pytest.mark.parametrize('age', [0, 29, 31], ids=lambda age: f'{age} s')
async def test_a_run_of_another_machine_is_left_when_its_lease_is_over(
    bench: Bench, age: int
) -> None:
    await bench.leave()
    found = await bench.kept.read(bench.name)
    assert found is not None
    record, run = found
    assert run is not None
    await bench.kept.put(
        replace(
            record, revision=new_id(), updated_at=datetime.now(tz=UTC) - timedelta(seconds=age)
        ),
        expected_revision=record.revision,
        unfinished=replace(run, owner='elsewhere/7/1/boot/4026531836/abcd'),
    )
    if age < 30:
        with pytest.raises(ConversationBusyError, match='elsewhere/7') as caught:
            await bench.run()
        assert caught.value.owner.startswith('elsewhere/7/')
        result = await bench.run(keep=bench.keep(lease=age / 2 + 1e-6))
    else:
        result = await bench.run()
    await bench.check(result)
    assert bench.plot.asked == [0, 1]


async def test_a_conversation_of_another_scope_is_not_touched(bench: Bench) -> None:
    bench.boom = 0
    first = await bench.run(keep=bench.keep(scope='ada'))
    with pytest.raises(ConversationConflict):
        await bench.run('more', keep=bench.keep(scope='bob'))
    assert bench.plot.asked == [0, 1]
    await bench.check(first)
    assert await bench.kept.load(bench.name, scope='bob') is None
    await bench.check(await bench.run('more', keep=bench.keep(scope='ada')))
    found = await bench.kept.read_record(bench.name)
    assert found is not None
    assert found.scope == 'ada'


async def test_whoever_saves_in_between_wins(bench: Bench) -> None:
    """The run cannot be kept any more; what was saved stays."""

    async def inside() -> None:
        talk = await load(bench.kept, bench.name)
        talk.messages += turns(7)
        await bench.kept.save(talk)

    bench.boom, bench.inside = 0, inside
    with pytest.raises(ConversationConflict):
        await bench.run()
    assert prompts(await messages(bench.kept, bench.name)) == ['question 7']
    assert [prompts(left) for left in await branches(bench.kept, bench.name)] == [['look!']]


async def test_the_conversation_id_may_be_that_of_the_run(bench: Bench) -> None:
    bench.boom = 0
    keep = KeepRun(bench.kept)
    await bench.check(await bench.run(keep=keep, conversation_id=bench.name))
    result = await bench.run('more', keep=keep, conversation_id=bench.name)
    await bench.check(result)
    other = await bench.run('look!', keep=keep)  # a new one
    assert prompts(await messages(bench.kept, other.conversation_id)) == ['look!']


# --- what the caller gives ------------------------------------------------------------------------


async def test_a_history_that_is_not_the_conversations_is_refused(bench: Bench) -> None:
    bench.boom = 0
    first = await bench.run()
    for history in ([ask('x'), say('y')], first.all_messages()[:2]):
        with pytest.raises(UserError, match=bench.name):
            await bench.run('more', message_history=history)
    await bench.check(first)
    result = await bench.run('more', message_history=first.all_messages())
    await bench.check(result)


async def test_messages_that_are_not_saved_yet_are_saved_before_the_run(bench: Bench) -> None:
    added = turns(8)
    bench.plot.said = [[], *bench.plot.said]
    with pytest.raises(BoomError):
        await bench.run(message_history=added)
    result = await bench.run(message_history=added)
    assert prompts(result.all_messages()) == ['question 8', 'look!']
    await bench.check(result)
    assert bench.plot.asked == [1, 2]


@pytest.mark.parametrize('limit', [None, 0, 1, 3])
@pytest.mark.parametrize('added', [0, 2])
async def test_a_conversation_or_its_end_may_be_given(
    bench: Bench, limit: int | None, added: int
) -> None:
    bench.plot.said = [[call('look', 'a', at='x')], [text('one')]]
    real = bench.plot.model

    old = conversation(*turns(1, 2), name=bench.name)
    await bench.kept.save(old)
    stored = list(old.messages)
    new = turns(9)[:added]
    start = 4 if limit is None else limit
    seen = sum(m.kind == 'response' for m in [*stored[4 - start :], *new])
    bench.plot.said = [[]] * seen + [*bench.plot.said]
    for attempt in range(2):
        loaded = await load(bench.kept, bench.name, limit)
        loaded.messages += new
        if attempt == 0:
            await bench.leave(conversation=loaded, model=real)
        else:
            result = await bench.run(conversation=loaded)
            assert await messages(bench.kept, bench.name) == [
                *stored, *new, *result.new_messages()
            ]  # fmt: skip
            assert result.all_messages() == [*loaded.messages, *result.new_messages()]
            assert prompts(result.new_messages()) == ['look!']
    assert await branches(bench.kept, bench.name) == []


async def test_a_conversation_that_was_saved_since_is_refused(bench: Bench) -> None:
    bench.boom = 0
    await bench.run()
    stale = await load(bench.kept, bench.name)
    result = await bench.run('more')
    with pytest.raises(ConversationConflict):
        await bench.run('other', conversation=stale)
    await bench.check(result)
    assert bench.plot.asked == [0, 1, 2]


async def test_saving_the_result_too_does_no_harm(bench: Bench) -> None:
    await bench.leave()
    result = await bench.run()
    assert await bench.kept.save(result) == []
    await bench.check(result)
    usage = (await load(bench.kept, bench.name)).usage
    assert (usage.requests, usage.tool_calls) == (2, 1)
    more = await bench.run('more', conversation=result.conversation)
    await bench.check(more)
    assert await bench.kept.save(more) == []
    await bench.check(more)
    assert (await load(bench.kept, bench.name)).usage.requests == 3


async def test_an_answer_is_made_again_on_a_branch(bench: Bench) -> None:
    bench.plot.said = [[text('hello')]]
    await bench.run('hi')
    loaded = await load(bench.kept, bench.name)
    await bench.kept.branch(bench.name, at=1, expected_revision=loaded.revision)
    bench.plot.said = [[text('again')]]
    result = await bench.run(None)
    assert result.output == 'again'
    stored = await messages(bench.kept, bench.name)
    assert prompts(stored) == ['hi']
    assert [m.kind for m in stored] == ['request', 'response']
    assert len(await branches(bench.kept, bench.name)) == 1
    assert await bench.unfinished() is None
