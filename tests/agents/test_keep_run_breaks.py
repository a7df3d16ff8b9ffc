"""What people have broken `KeepRun` with: each was a fault once."""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
import random
from typing import Any

import pytest

if importlib.util.find_spec('pydantic_ai.conversation_store') is None:
    pytest.skip('pydantic-ai has no conversations', allow_module_level=True)

from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    ModelRetry,
    UnexpectedModelBehavior,
)
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RunUsage, UsageLimits

from graphkeep import ConversationBusyError, Store, UnfinishedRunError
from graphkeep.agents import Conversations, KeepRun, ScopeConflict
from graphkeep.conversations import ConversationQuery, ConversationWrite

from .staging import Stage, call, script, text


def agent(*, fails: int = 0) -> Agent[None, str]:
    """Calls a tool, which fails some times, then ends."""
    plot = script(*[[call('look', f'l{n}')] if n % 2 == 0 else [text('done')] for n in range(99)])
    made: Agent[None, str] = Agent(plot.model)
    left = [None] * fails

    @made.tool_plain
    async def look() -> str:
        if left:
            left.pop()
            raise ConnectionError
        return 'seen'

    return made


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


@pytest.mark.leaks('tasks')  # upstream's own, of runs that are cancelled before they have begun
async def test_a_run_that_is_cancelled_at_its_beginning_holds_nothing(
    kept: Conversations,
) -> None:
    pauses = random.Random(5)
    for number in range(40):
        name = f'c{number}'
        keep = KeepRun(kept, name)
        run = asyncio.ensure_future(agent().run('hi', capabilities=[keep]))
        for _ in range(pauses.randrange(25)):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait((run,))
        try:
            result = await agent().run('hi', capabilities=[keep])
        except ConversationBusyError:
            pytest.fail(f'{name} is held')
        assert result.output == 'done'


async def test_two_of_them_are_refused_before_anything_is_paid(kept: Conversations) -> None:
    asked: list[int] = []

    def ask(*_: Any) -> ModelResponse:
        asked.append(1)
        return ModelResponse(parts=[text('done')])

    keep = KeepRun(kept)
    made = Agent(FunctionModel(ask), capabilities=[keep])
    with pytest.raises(ValueError, match='two KeepRun'):
        await made.run('hi', conversation_id='c', capabilities=[KeepRun(kept)])
    assert asked == []


async def test_limits_are_those_of_a_run_and_usage_that_of_the_conversation(
    kept: Conversations,
) -> None:
    shared = RunUsage()
    for turn in range(1, 4):
        result = await agent().run(
            'hi',
            conversation_id='c',
            usage=shared,
            usage_limits=UsageLimits(request_limit=2 * turn),
            capabilities=[KeepRun(kept)],
        )
        assert result.usage.requests == 2 * turn + (2 * turn - 2)
        assert shared.requests == 2 * turn  # what the caller gave has what was used in it
    loaded = await kept.load('c')
    assert loaded is not None
    assert loaded.usage.requests == 6


async def test_a_large_prompt_is_written_once(
    store: Store, kept: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    put = store.write_conversation

    async def noted(write: ConversationWrite) -> bool:
        sizes.append(write.size)
        return await put(write)

    monkeypatch.setattr(store, 'write_conversation', noted)
    picture = BinaryContent(bytes(range(256)) * 4_000, media_type='image/png')
    made, keep = agent(fails=1), KeepRun(kept, 'c')
    with pytest.raises(ConnectionError):
        await made.run(['What is it?', picture], capabilities=[keep])
    result = await made.run(['What is it?', picture], capabilities=[keep])
    assert result.output == 'done'
    assert sum(size > 100_000 for size in sizes) == 1
    loaded = await kept.load('c')
    assert loaded is not None
    assert len(loaded.messages) == 4
    again = await made.run(['And now?', picture], capabilities=[keep])
    assert again.output == 'done'


async def test_a_large_prompt_has_to_be_given_again(kept: Conversations) -> None:
    prompt = 'x' * 100_000
    run = asyncio.ensure_future(_slow().run(prompt, capabilities=[KeepRun(kept, 'c')]))
    while await kept.unfinished('c') is None:
        await asyncio.sleep(0)
    rows = await kept.store.find_conversations(ConversationQuery(conversation_id='c'))
    assert len(rows[0].data) < 5_000
    run.cancel()
    await asyncio.wait((run,))


def _slow() -> Agent[None, str]:
    async def ask(*_: Any) -> ModelResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return Agent(FunctionModel(ask))


async def test_another_history_is_refused_where_a_run_goes_on(kept: Conversations) -> None:
    made, keep = agent(fails=1), KeepRun(kept, 'c')
    other = (await agent().run('Elsewhere')).all_messages()
    with pytest.raises(ConnectionError):
        await made.run('hi', capabilities=[keep])
    with pytest.raises(UserError, match='message_history'):
        await made.run('hi', message_history=other, capabilities=[keep])
    assert (await made.run('hi', capabilities=[keep])).output == 'done'


async def test_results_are_refused_where_a_run_goes_on_without_them(kept: Conversations) -> None:
    from pydantic_ai.tools import DeferredToolResults

    made, keep = agent(fails=1), KeepRun(kept, 'c')
    with pytest.raises(ConnectionError):
        await made.run('hi', capabilities=[keep])
    with pytest.raises(UnfinishedRunError, match='without'):
        await made.run(deferred_tool_results=DeferredToolResults(), capabilities=[keep])
    assert (await made.run('hi', capabilities=[keep])).output == 'done'


async def test_a_conversation_does_not_expire_under_a_run(store: Store) -> None:
    brief = Conversations(store, ttl=0.001)
    made, keep = agent(fails=1), KeepRun(brief, 'c')
    with pytest.raises(ConnectionError):
        await made.run('hi', capabilities=[keep])
    assert (await made.run('hi', capabilities=[keep])).output == 'done'


def _picky(answers: list[str]) -> Agent[None, str]:
    """Calls a tool, then answers what is given, of which only `good` is taken."""
    plot = script(
        [call('look', 'l')],
        *([text(each)] for each in answers),
    )
    made: Agent[None, str] = Agent(plot.model, retries=1)

    @made.tool_plain
    def look() -> str:
        return 'seen'

    @made.output_validator
    def check(output: str) -> str:
        if output != 'good':
            raise ModelRetry('no')
        return output

    return made


@pytest.mark.parametrize('where', ['conversation', 'step'])
async def test_a_response_that_is_refused_is_asked_for_again(
    store: Store, run_id: str, where: str
) -> None:
    stage, results = Stage(store, run_id), list[Any]()
    seen: list[str] = []

    async def play(*answers: str) -> None:
        keep = KeepRun(store.conversations, 'c') if where == 'conversation' else KeepRun()
        made = _picky(list(answers))

        async def body() -> None:
            result = await made.run('hi', capabilities=[keep])
            seen.extend(type(m).__name__ for m in result.all_messages())
            results.append(result.output)

        await (body() if where == 'conversation' else stage.play(body))

    with pytest.raises(UnexpectedModelBehavior):
        await play('bad', 'bad')
    with pytest.raises(UnexpectedModelBehavior):
        await play('bad', 'bad')
    await play('bad', 'good')
    assert results == ['good']
    assert seen == ['ModelRequest', 'ModelResponse'] * 3
    if where == 'conversation':
        loaded = await store.conversations.load('c')
        assert loaded is not None
        assert [type(m).__name__ for m in loaded.messages] == seen


async def test_a_first_response_that_is_refused_leaves_the_prompt(kept: Conversations) -> None:
    made: Agent[None, str] = Agent(script([text('bad')]).model, retries=0)

    @made.output_validator
    def check(output: str) -> str:
        raise ModelRetry('no')

    with pytest.raises(UnexpectedModelBehavior):
        await made.run('hi', conversation_id='c', capabilities=[KeepRun(kept)])
    assert await kept.unfinished('c') is not None
    good: Agent[None, str] = Agent(script([text('good')]).model)
    result = await good.run('hi', conversation_id='c', capabilities=[KeepRun(kept)])
    assert result.output == 'good'
    loaded = await kept.load('c')
    assert loaded is not None
    assert len(loaded.messages) == 2
    # The same for an answer that is given again.
    branched = await kept.branch('c', at=1, expected_revision=loaded.revision)
    with pytest.raises(UnexpectedModelBehavior):
        await made.run(conversation=branched, capabilities=[KeepRun(kept)])
    result = await good.run(conversation_id='c', capabilities=[KeepRun(kept)])
    assert [type(m).__name__ for m in result.all_messages()] == ['ModelRequest', 'ModelResponse']


async def test_a_run_that_has_ended_does_not_give_up_another_one(kept: Conversations) -> None:
    keep = KeepRun(kept, 'c', on_unfinished='discard')
    first = await agent().run('one', run_id='first', capabilities=[keep])
    made = agent(fails=1)
    with pytest.raises(ConnectionError):
        await made.run('two', capabilities=[keep])
    again = await agent().run('one', run_id='first', capabilities=[keep])
    assert again.all_messages() == first.all_messages()
    assert (await made.run('two', capabilities=[keep])).output == 'done'
    record = await kept.read_record('c')
    assert record is not None
    assert record.branches == []


async def test_another_scope_is_said_to_be_one(kept: Conversations) -> None:
    await kept.save(Conversation(conversation_id='c'), scope='ada')
    with pytest.raises(ScopeConflict, match='another scope') as caught:
        await kept.save(Conversation(conversation_id='c'), scope='bob')
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ScopeConflict):
        await agent().run('hi', capabilities=[KeepRun(kept, 'c', scope='bob')])
    with pytest.raises(ConversationConflict) as conflict:
        await kept.save(Conversation(conversation_id='c'), scope='ada')
    assert type(conflict.value) is ConversationConflict


async def test_what_is_no_store_of_conversations_is_refused(store: Store) -> None:
    for wrong in (store, 'sqlite:///runs.db', object()):
        with pytest.raises(TypeError, match=r'store\.conversations'):
            KeepRun(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='Got RunContext'):
        await agent().run('hi', capabilities=[KeepRun])


async def test_a_call_that_was_approved_is_not_denied_by_who_goes_on(kept: Conversations) -> None:
    plot = script([call('pay', 'p')], [text('paid')])
    away = [ConnectionError()]

    def ask(messages: Any, info: Any) -> ModelResponse:
        if len(messages) > 2 and away:
            raise away.pop()
        return plot(messages, info)

    made = Agent(FunctionModel(ask), output_type=[str, DeferredToolRequests])

    @made.tool_plain(requires_approval=True)
    def pay() -> str:
        return 'money'

    keep = KeepRun(kept, 'c')
    await made.run('pay', capabilities=[keep])
    loaded = await kept.load('c')
    assert loaded is not None
    requests = loaded.deferred_tool_requests
    assert requests is not None
    yes = requests.build_results(approvals={'p': True})
    no = requests.build_results(approvals={'p': False})
    with pytest.raises(ConnectionError):
        await made.run(deferred_tool_results=yes, capabilities=[keep])
    with pytest.raises(UnfinishedRunError, match='other results'):
        await made.run(deferred_tool_results=no, capabilities=[keep])
    assert (await made.run(deferred_tool_results=yes, capabilities=[keep])).output == 'paid'
