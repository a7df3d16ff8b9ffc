"""Agents in steps: legs that are kept, pauses for approvals, and what may not be."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    CallDeferred,
    DeferredToolRequests,
    RunContext,
    ToolReturn,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RunUsage

from graphkeep import LossyStateError, RequestTimeoutError, agents, once
from graphkeep.agents import Approval, ExternalResult, PendingCall
from tests.classic.conftest import in_memory

from .staging import Script, Stage, call, plain, script, text

pytestmark = in_memory


class BoomError(Exception):
    pass


@dataclass
class Shop:
    """An agent that gives money back if somebody approves, and what it has paid."""

    agent: Agent[None, str]
    paid: list[tuple[str, int]]


def shop(plot: Script, **options: Any) -> Shop:
    made = Shop(Agent(plot.model, **options), [])

    @made.agent.tool_plain(requires_approval=True)
    def refund(order: str, amount: int) -> str:
        made.paid.append((order, amount))
        return f'paid {amount}'

    @made.agent.tool_plain
    def look(order: str) -> str:
        return f'{order} is late'

    @made.agent.tool_plain
    def ship(order: str) -> str:
        raise CallDeferred(metadata={'depot': 7})

    return made


async def test_a_leg_that_was_kept_is_not_run_again(stage: Stage) -> None:
    plot = script([call('look', 'a', order='x')], [text('late')])
    here = shop(plot)

    async def fail() -> None:
        await agents.run(here.agent, 'where?')
        raise BoomError

    with pytest.raises(BoomError):
        await stage.play(fail)
    result = await stage.play(lambda: agents.run(here.agent, 'where?'))
    assert plot.asked == [0, 1]
    assert (result.output, result.legs, result.usage.requests) == ('late', 1, 2)
    assert result.usage.tool_calls == 1
    assert result.response.parts == [TextPart('late')]
    undisturbed = await here.agent.run('where?')
    assert plain(result.all_messages()) == plain(undisturbed.all_messages())
    assert plain(result.new_messages()) == plain(undisturbed.new_messages())
    assert b'"late"' in result.all_messages_json()
    assert here.agent.name is None, 'not that of a variable here'


async def test_a_call_is_approved(stage: Stage) -> None:
    plot = script([call('refund', 'a', order='x', amount=5)], [text('done')])
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!')

    (request,) = await stage.pause(body)
    assert here.paid == []
    assert request.name == 'agent:0:a'
    assert request.payload == {
        'tool_name': 'refund',
        'args': {'order': 'x', 'amount': 5},
        'tool_call_id': 'a',
        'kind': 'approval',
        'metadata': None,
    }
    assert request.prompt == 'May the agent call refund(order="x", amount=5)?'
    assert (await stage.pause(body))[0].request_id == request.request_id
    await stage.answer(request, True)
    result = await stage.play(body)
    assert (result.output, result.legs) == ('done', 2)
    assert here.paid == [('x', 5)]
    assert plot.asked == [0, 1]


@pytest.mark.parametrize(
    ('answer', 'paid', 'told'),
    [
        (True, [('x', 5)], 'paid 5'),
        ({'approved': True}, [('x', 5)], 'paid 5'),
        (Approval(approved=True), [('x', 5)], 'paid 5'),
        (Approval(approved=True, override_args={'order': 'x', 'amount': 2}), [('x', 2)], 'paid 2'),
        (False, [], 'The tool call was denied.'),
        (Approval(approved=False), [], 'The tool call was denied.'),
        ({'approved': False, 'message': 'too much'}, [], 'too much'),
    ],
    ids=repr,
)
async def test_answers_to_an_approval(stage: Stage, answer: object, paid: Any, told: str) -> None:
    plot = script([call('refund', 'a', order='x', amount=5)], [text('done')])
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!')

    (request,) = await stage.pause(body)
    await stage.answer(request, answer)
    result = await stage.play(body)
    assert here.paid == paid
    assert plain(plot.seen[-1])[-1] == ('tool-return', 'refund', 'a', None, told)
    assert result.output == 'done'


async def test_approvals_and_calls_made_elsewhere_are_asked_in_one_pause(stage: Stage) -> None:
    plot = script(
        [
            call('look', 'l', order='x'),
            call('refund', 'r', order='x', amount=5),
            call('ship', 's', order='x'),
            call('refund', 'q', order='y', amount=9),
        ],
        [text('done')],
    )
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'do it', name='desk')

    requests = await stage.pause(body)
    asked = {request.name: request for request in requests}
    assert asked.keys() == {'desk:0:r', 'desk:0:s', 'desk:0:q'}
    assert asked['desk:0:s'].payload['kind'] == 'external'
    assert asked['desk:0:s'].payload['metadata'] == {'depot': 7}
    assert asked['desk:0:s'].prompt == 'The agent needs the result of ship(order="x").'
    await stage.answer(asked['desk:0:r'], True)
    await stage.answer(asked['desk:0:s'], ExternalResult(result={'parcel': 3}))
    assert [request.name for request in await stage.pause(body)] == ['desk:0:q']
    assert here.paid == [], 'only together'
    await stage.answer(asked['desk:0:q'], {'approved': False, 'message': 'no'})
    result = await stage.play(body)
    assert here.paid == [('x', 5)]
    returned = {each[2]: each[4] for each in plain(result.messages) if each[0] == 'tool-return'}
    assert returned == {'l': 'x is late', 'r': 'paid 5', 's': {'parcel': 3}, 'q': 'no'}
    assert plot.asked == [0, 1]


@pytest.mark.parametrize(
    ('answer', 'told'),
    [
        ({'result': None}, None),
        ({'result': [1, 'x']}, [1, 'x']),
        (ExternalResult(retry='which depot?'), 'which depot?'),
        ({'failed': 'burnt down'}, 'burnt down'),
    ],
    ids=repr,
)
async def test_answers_to_a_call_made_elsewhere(stage: Stage, answer: Any, told: Any) -> None:
    plot = script([call('ship', 's', order='x')], [text('done')])
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'send it')

    (request,) = await stage.pause(body)
    await stage.answer(request, answer)
    assert (await stage.play(body)).output == 'done'
    content = plain(plot.seen[-1])[-1][-1]
    if isinstance(told, str):
        assert told in str(content)
    else:
        assert content == told


async def test_several_rounds_with_the_same_id(stage: Stage) -> None:
    plot = script(
        [call('refund', 'a', order='x', amount=1)],
        [call('refund', 'a', order='x', amount=2)],
        [call('refund', 'a', order='x', amount=3)],
        [text('done')],
    )
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!')

    for number, answer in enumerate((True, False, True)):
        (request,) = await stage.pause(body)
        assert request.name == f'agent:{number}:a'
        await stage.answer(request, answer)
    result = await stage.play(body)
    assert (result.output, result.legs, result.usage.requests) == ('done', 4, 4)
    assert here.paid == [('x', 1), ('x', 3)]
    assert plot.asked == [0, 1, 2, 3]
    assert len(plain(result.messages)) == 1 + 3 * 2 + 1
    assert (await stage.kept()).count(b'money!') <= 1


@pytest.mark.parametrize(
    'call_id', ['x' * 300, 'ü' * 130, 'a\0b', '#a', 'a\nb', '\u202ea', 'a b', 'agent:0:']
)
async def test_ids_of_any_kind(stage: Stage, call_id: str) -> None:
    plot = script(
        [call('refund', call_id, order='x', amount=1), call('refund', 'b', order='y', amount=2)],
        [text('done')],
    )
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!')

    requests = await stage.pause(body)
    assert len({request.name for request in requests}) == 2
    for request in requests:
        assert request.payload['tool_call_id'] in (call_id, 'b')
        await stage.answer(request, request.payload['tool_call_id'] == call_id)
    assert (await stage.play(body)).output == 'done'
    assert here.paid == [('x', 1)]


async def test_an_approval_is_not_for_two_calls(stage: Stage) -> None:
    plot = script(
        [call('refund', 'a', order='x', amount=1), call('refund', 'a', order='x', amount=1000)]
    )
    here = shop(plot)
    with pytest.raises(UnexpectedModelBehavior):
        await stage.play(lambda: agents.run(here.agent, 'money!'))
    assert b'agent:0' not in await stage.kept()


async def test_halves_of_characters(stage: Stage) -> None:
    plot = script([call('refund', 'a')], [text('done \ud800')])
    agent = Agent(plot.model)

    @agent.tool
    async def refund(ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={'why': '\ud800'})
        return 'paid'

    def body() -> Any:
        return agents.run(agent, 'money!', prompt=lambda call: str(call.metadata))

    (request,) = await stage.pause(body)
    assert request.payload['metadata']['why'] == '\\ud800'
    await stage.answer(request, True)
    assert (await stage.play(body)).output == 'done \ud800'


@pytest.mark.parametrize(
    ('prompt', 'asked'),
    [
        ('{tool_name} with {args}?', 'refund with order="x", amount=5?'),
        (lambda call: f'{call.kind} of {call.args["amount"]}', 'approval of 5'),
        (lambda call: None, None),
    ],
)
async def test_what_a_person_is_asked(
    stage: Stage, prompt: str | Callable[[PendingCall], str | None], asked: str | None
) -> None:
    here = shop(script([call('refund', 'a', order='x', amount=5)]))
    (request,) = await stage.pause(lambda: agents.run(here.agent, 'money!', prompt=prompt))
    assert request.prompt == asked


@pytest.mark.parametrize('prompt', ['{tool_name} for {nothing}', '{tool_name', '{args.x}', 5])
async def test_a_prompt_that_cannot_be_made_is_refused_before_the_model(
    stage: Stage, prompt: Any
) -> None:
    here = shop(script([call('refund', 'a', order='x', amount=5)]))
    with pytest.raises((ValueError, TypeError), match='prompt='):
        await stage.play(lambda: agents.run(here.agent, 'money!', prompt=prompt))


async def test_a_long_call_is_shown_in_part_and_says_so(stage: Stage) -> None:
    here = shop(script([call('refund', 'a', order='x' * 5_000, amount=5)]))
    (request,) = await stage.pause(lambda: agents.run(here.agent, 'money!'))
    assert request.prompt is not None
    assert len(request.prompt) < 2_200
    assert 'all of them in the payload' in request.prompt
    assert request.payload['args']['order'] == 'x' * 5_000


async def test_a_tool_keeps_what_must_not_happen_twice(stage: Stage) -> None:
    plot = script([call('refund', 'a', amount=5)], [text('done')])
    paid: list[str] = []
    agent = Agent(plot.model)
    dies = True

    @agent.tool(requires_approval=True)
    async def refund(ctx: RunContext[None], amount: int) -> str:
        def pay() -> str:
            paid.append(f'{ctx.tool_call_id}: {amount}')
            return f'paid {len(paid)}'

        said = await once(f'refund:{ctx.tool_call_id}', pay)
        if dies:
            raise BoomError
        return said

    def body() -> Any:
        return agents.run(agent, 'money!')

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    with pytest.raises(BoomError):
        await stage.play(body)
    dies = False
    result = await stage.play(body)
    assert paid == ['a: 5']
    assert plain(result.messages)[-2][-1] == 'paid 1'


async def test_a_tool_that_asks_for_approval_itself_gets_its_metadata_back(stage: Stage) -> None:
    plot = script([call('refund', 'a', amount=5)], [text('done')])
    agent = Agent(plot.model)
    seen: list[Any] = []

    @agent.tool
    async def refund(ctx: RunContext[None], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={'limit': 3})
        seen.append(ctx.tool_call_metadata)
        return 'paid'

    def body() -> Any:
        return agents.run(agent, 'money!')

    (request,) = await stage.pause(body)
    assert request.payload['metadata'] == {'limit': 3}
    await stage.answer(request, True)
    await stage.play(body)
    assert seen == [{'limit': 3}]


async def test_a_question_is_asked_as_one(stage: Stage) -> None:
    options: dict[str, Any] = {'kind': 'question'}
    try:
        question = CallDeferred(**options)
    except TypeError:
        pytest.skip('pydantic-ai 1.x knows no questions')
    plot = script([call('ask', 'a', what='why?')], [text('done')])
    agent = Agent(plot.model)

    @agent.tool_plain
    async def ask(what: str) -> str:
        raise question

    def body() -> Any:
        return agents.run(agent, 'hm')

    (request,) = await stage.pause(body)
    assert request.payload['kind'] == 'question'
    assert request.prompt == 'The agent asks: ask(what="why?")'
    await stage.answer(request, {'result': 'because'})
    assert (await stage.play(body)).output == 'done'


async def test_limits_count_all_legs(stage: Stage) -> None:
    plot = script(
        [call('refund', 'a', order='x', amount=1)],
        [call('refund', 'b', order='x', amount=1)],
        [text('done')],
    )
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!', usage_limits=UsageLimits(request_limit=2))

    for _ in range(2):
        (request,) = await stage.pause(body)
        await stage.answer(request, True)
    with pytest.raises(UsageLimitExceeded):
        await stage.play(body)
    assert plot.asked == [0, 1]


async def test_usage_is_added_to_what_is_given(stage: Stage) -> None:
    plot = script([call('refund', 'a', order='x', amount=1)], [text('done')])
    here = shop(plot)
    given: list[RunUsage] = []

    async def body() -> Any:
        given.append(RunUsage(requests=10, details={'mine': 1}))
        return await agents.run(here.agent, 'money!', usage=given[-1])

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    result = await stage.play(body)
    assert [usage.requests for usage in given] == [11, 12]
    assert given[-1].details == {'mine': 1}
    assert result.usage.requests == 12
    undisturbed = RunUsage()
    for message in result.messages:
        if isinstance(message, ModelResponse):
            undisturbed.incr(message.usage)
    assert result.usage.output_tokens == undisturbed.output_tokens > 0


async def test_a_history_comes_first_and_once(stage: Stage) -> None:
    plot = script([text('hello')], [call('refund', 'a', order='x', amount=1)], [text('done')])
    here = shop(plot)
    history = [
        ModelRequest(parts=[UserPromptPart('hi')]),
        ModelResponse(parts=[TextPart('hello')]),
    ]

    def body() -> Any:
        return agents.run(here.agent, 'money!', message_history=history)

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    result = await stage.play(body)
    said = [each[-1] for each in plain(result.all_messages())]
    assert said == ['hi', 'hello', 'money!', None, 'paid 1', 'done']
    assert [each[-1] for each in plain(result.new_messages())] == said[2:]
    assert plot.asked == [1, 2]
    assert len(history) == 2


async def test_dependencies_and_options_reach_every_leg(stage: Stage) -> None:
    plot = script([call('refund', 'a')], [text('done')])
    agent = Agent(deps_type=list)
    secret = ['s3cret']

    @agent.tool
    async def refund(ctx: RunContext[list[str]]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return str(len(ctx.deps))

    def body() -> Any:
        return agents.run(
            agent, 'money!', deps=secret, model=plot.model, conversation_id='new', toolsets=[]
        )

    (request,) = await stage.pause(body)
    assert b's3cret' not in await stage.kept()
    await stage.answer(request, True)
    result = await stage.play(body)
    assert plain(result.messages)[-2][-1] == '1'
    assert len({message.conversation_id for message in result.messages}) == 1


async def test_outside_of_a_step(stage: Stage) -> None:
    plot = script([text('done')])
    with pytest.raises(RuntimeError, match=r'agents\.run\(\) was called outside of a step'):
        await agents.run(Agent(plot.model), 'hm')
    assert plot.asked == []


async def test_inside_of_once(stage: Stage) -> None:
    plot = script([text('done')])

    async def body() -> None:
        await once('all', lambda: agents.run(Agent(plot.model), 'hm'))

    with pytest.raises(RuntimeError, match=r"inside of once\('all'\)"):
        await stage.play(body)
    assert plot.asked == []


@pytest.mark.parametrize('name', ['', 'x' * 129, 'a\0', 'a\nb', '\ud800'])
async def test_names_that_cannot_be(stage: Stage, name: str) -> None:
    plot = script([text('done')])
    with pytest.raises(ValueError, match='the name must be 1 to 128 bytes'):
        await stage.play(lambda: agents.run(Agent(plot.model), 'hm', name=name))
    assert plot.asked == []


async def test_two_agents_of_one_name(stage: Stage) -> None:
    plot = script([text('done')])
    agent = Agent(plot.model)

    async def body() -> None:
        await agents.run(agent, 'one')
        await agents.run(agent, 'two')

    for _ in range(2):
        with pytest.raises(ValueError, match=r"'agent' twice in one attempt of step 'Act'"):
            await stage.play(body)
    assert plot.asked == [0]


@pytest.mark.parametrize('gathers', [False, True])
async def test_agents_beside_each_other(stage: Stage, gathers: bool) -> None:
    plot = script([call('refund', 'a', order='x', amount=1)], [text('done')])
    here = shop(plot)

    async def body() -> list[str]:
        names = ('one', 'two')
        if gathers:
            legs = (agents.run(here.agent, 'money!', name=name) for name in names)
            return [each.output for each in await asyncio.gather(*legs)]
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(agents.run(here.agent, 'money!', name=name)) for name in names
            ]
        return [each.result().output for each in runs]

    answered = 0
    while answered < 2:
        # One person is slower than the other.
        request = (await stage.pause(body))[0]
        await stage.answer(request, True)
        answered += 1
    assert await stage.play(body) == ['done', 'done']
    assert here.paid == [('x', 1)] * 2, 'a pause cuts no leg short'
    assert sorted(plot.asked) == [0, 0, 1, 1]


async def test_an_agent_that_is_cancelled(stage: Stage) -> None:
    begun, ended = asyncio.Event(), list[str]()
    agent = Agent(script([call('wait', 'a')], [text('done')]).model)

    @agent.tool_plain
    async def wait() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append('wait')
        return ''

    task = asyncio.ensure_future(stage.play(lambda: agents.run(agent, 'hm')))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ['wait']
    assert b'agent:0' not in await stage.kept()


async def test_an_agent_that_failed_may_be_run_again(stage: Stage) -> None:
    plot = script([call('look', 'a', order='x')], [text('done')])
    here = shop(plot)

    async def body() -> str:
        with pytest.raises(UsageLimitExceeded):
            await agents.run(here.agent, 'hm', usage_limits=UsageLimits(request_limit=1))
        return (await agents.run(here.agent, 'hm')).output

    assert await stage.play(body) == 'done'


class Parcel(BaseModel):
    number: int


async def test_a_tool_may_return_a_model(stage: Stage) -> None:
    plot = script([call('look', 'a')], [call('refund', 'b')], [text('done')])
    agent = Agent(plot.model)

    @agent.tool_plain
    def look() -> list[Parcel]:
        return [Parcel(number=1)]

    @agent.tool_plain(requires_approval=True)
    def refund() -> tuple[int, int]:
        return (1, 2)

    def body() -> Any:
        return agents.run(agent, 'hm')

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    returned = [each[-1] for each in plain((await stage.play(body)).messages)]
    assert returned == ['hm', None, [{'number': 1}], None, [1, 2], 'done']


@pytest.mark.parametrize(
    ('returned', 'path'),
    [
        (ToolReturn('x', metadata={'score': math.nan}), 'metadata'),
        ({'score': [math.inf]}, 'score'),
        (ToolReturn('x', metadata={'lock': object()}), 'messages[2]'),
    ],
    ids=['metadata', 'content', 'object'],
)
async def test_what_json_cannot_hold_is_refused(stage: Stage, returned: Any, path: str) -> None:
    plot = script([call('look', 'a')], [text('done')])
    agent = Agent(plot.model)

    @agent.tool_plain
    def look() -> Any:
        return returned

    with pytest.raises(LossyStateError) as caught:
        await stage.play(lambda: agents.run(agent, 'hm', name='desk'))
    assert "leg 'desk:0'" in str(caught.value)
    assert path in caught.value.path
    assert b'desk:0' not in await stage.kept()


async def test_metadata_of_a_call_that_json_cannot_hold(stage: Stage) -> None:
    plot = script([call('refund', 'a')])
    agent = Agent(plot.model)

    @agent.tool_plain
    def refund() -> str:
        raise ApprovalRequired(metadata={'score': math.nan})

    with pytest.raises(LossyStateError, match='score'):
        await stage.play(lambda: agents.run(agent, 'hm'))


async def test_an_approval_that_comes_too_late_is_a_denial(stage: Stage) -> None:
    plot = script([call('refund', 'a', order='x', amount=5)], [text('done')])
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'money!', timeout=0.01)

    (request,) = await stage.pause(body)
    assert request.deadline is not None
    await asyncio.sleep(0.02)
    assert (await stage.play(body)).output == 'done'
    assert here.paid == []
    assert plain(plot.seen[-1])[-1][-1] == 'Nobody has approved the tool call in time.'


async def test_a_result_that_comes_too_late_is_an_error(stage: Stage) -> None:
    plot = script([call('ship', 'a', order='x'), call('refund', 'b', order='x', amount=1)])
    here = shop(plot)

    def body() -> Any:
        return agents.run(here.agent, 'send it', timeout=0.01)

    assert len(await stage.pause(body)) == 2
    await asyncio.sleep(0.02)
    with pytest.raises(RequestTimeoutError) as caught:
        await stage.play(body)
    assert caught.value.request_id.endswith(':agent:0:a')


async def test_an_agent_that_defers_by_itself(stage: Stage) -> None:
    plot = script([call('refund', 'a', order='x', amount=5)], [text('done')])
    here = shop(plot, output_type=[str, DeferredToolRequests])

    def body() -> Any:
        return agents.run(here.agent, 'money!')

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    assert (await stage.play(body)).output == 'done'


async def test_a_conversation_object_is_refused(stage: Stage) -> None:
    plot = script([text('done')])
    with pytest.raises(TypeError, match='conversation='):
        await stage.play(lambda: agents.run(Agent(plot.model), 'hm', conversation=object()))
    assert plot.asked == []
