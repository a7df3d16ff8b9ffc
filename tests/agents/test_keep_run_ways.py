"""Every way to run an agent, and every way to leave it, with the run kept in a conversation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import (
    BinaryContent,
    ModelRetry,
    ToolReturn,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from graphkeep import LossyStateError, Store
from graphkeep.agents import Conversations

from .keeping import same
from .staging import call, script, text
from .talking import branches, load, messages
from .test_keep_run import Bench, BoomError, by_hand, prompts


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


@pytest.fixture
def bench(kept: Conversations) -> Bench:
    return Bench(kept)


@dataclass
class Point:
    x: int


# --- streams and iterations -----------------------------------------------------------------------


def streaming(bench: Bench) -> None:
    """Have the model stream what its script says."""

    async def stream(said: list[ModelMessage], info: AgentInfo) -> Any:
        for number, part in enumerate(bench.plot(said, info).parts):
            if part.part_kind == 'text':
                for letter in part.content:
                    yield letter
            elif part.part_kind == 'tool-call':
                args, call_id = part.args_as_json_str(), part.tool_call_id
                yield {number: DeltaToolCall(part.tool_name, args, tool_call_id=call_id)}

    bench.agent.model = FunctionModel(bench.plot.__call__, stream_function=stream)


async def test_a_stream_is_kept(bench: Bench) -> None:
    streaming(bench)
    bench.boom = 0
    async with bench.agent.run_stream('look!', capabilities=[bench.keep()]) as result:
        assert await result.get_output() == 'one'
    assert await messages(bench.kept, bench.name) == result.all_messages()
    assert await bench.unfinished() is None
    async with bench.agent.run_stream('more', capabilities=[bench.keep()]) as result:
        assert [each async for each in result.stream_text(debounce_by=None)][-1] == 'two'
    assert await messages(bench.kept, bench.name) == result.all_messages()
    assert prompts(result.all_messages()) == ['look!', 'more']
    assert bench.plot.asked == [0, 1, 2]


async def test_a_stream_that_fails_in_a_tool_goes_on(bench: Bench) -> None:
    streaming(bench)
    with pytest.raises(BoomError):
        async with bench.agent.run_stream('look!', capabilities=[bench.keep()]):
            pass
    async with bench.agent.run_stream('look!', capabilities=[bench.keep()]) as result:
        assert await result.get_output() == 'one'
    stored = await messages(bench.kept, bench.name)
    assert stored == result.all_messages()
    assert [m.kind for m in stored] == ['request', 'response'] * 2
    assert prompts(stored) == ['look!']
    assert (bench.plot.asked, bench.looked) == ([0, 1], {'a': 2})
    assert await bench.unfinished() is None


@pytest.mark.parametrize('way', ['run', 'run_stream'])
async def test_a_stream_whose_reader_fails_goes_on(bench: Bench, way: str) -> None:
    streaming(bench)
    bench.boom = 0
    with pytest.raises(BoomError):
        async with bench.agent.run_stream('look!', capabilities=[bench.keep()]) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                raise BoomError
    if way == 'run':
        output = (await bench.run()).output
    else:
        async with bench.agent.run_stream('look!', capabilities=[bench.keep()]) as result:
            output = await result.get_output()
    assert output == 'one'
    assert prompts(await messages(bench.kept, bench.name)) == ['look!']
    assert bench.plot.asked[:2] == [0, 1]  # the last response was not complete
    assert bench.looked == {'a': 1}
    assert await bench.unfinished() is None


async def test_an_iteration_is_kept(bench: Bench) -> None:
    bench.boom = 0
    async with bench.agent.iter('look!', capabilities=[bench.keep()]) as run:
        nodes = [type(node).__name__ async for node in run]
    assert run.result is not None
    assert nodes[0] == 'UserPromptNode'
    await bench.check(run.result)


@pytest.mark.parametrize('steps', [1, 2, 3, 4])
async def test_an_iteration_that_was_broken_off_goes_on(bench: Bench, steps: int) -> None:
    bench.boom = 0
    async with bench.agent.iter('look!', capabilities=[bench.keep()]) as run:
        number = 0
        async for _ in run:
            number += 1
            if number == steps:
                break
    result = await bench.run()
    same(result.all_messages(), await by_hand('look!'))
    await bench.check(result)
    assert bench.plot.asked == [0, 1]
    assert bench.looked == {'a': 1}


# --- tools and outputs ----------------------------------------------------------------------------


async def test_what_is_tried_again_is_not_tried_from_the_start(kept: Conversations) -> None:
    plot = script(
        [call('look', 'a', at='x')], [call('look', 'b', at='y')], [text('bad')], [text('good')]
    )
    bench = Bench(kept, plot, boom=0, options={'retries': 1})
    refused: list[str] = []
    fail = {'retry': True, 'boom': True}

    async def inside() -> None:
        if fail['retry']:
            fail['retry'] = False
            raise ModelRetry('look better')

    @bench.agent.output_validator
    def check(output: str) -> str:
        if output == 'bad':
            refused.append(output)
            raise ModelRetry('be good')
        if fail['boom']:
            fail['boom'] = False
            raise BoomError
        return output

    bench.inside = inside
    await bench.leave()
    assert plot.asked == [0, 1, 2, 3]
    result = await bench.run()
    assert result.output == 'good'
    assert plot.asked == [0, 1, 2, 3]
    assert refused == ['bad']
    assert bench.looked == {'a': 1, 'b': 1}
    await bench.check(result)


async def test_output_retries_count_over_the_attempts(kept: Conversations) -> None:
    plot = script([text('bad')], [call('look', 'a', at='x')], [text('bad')], [text('bad')])
    bench = Bench(kept, plot, options={'retries': {'output': 1}})

    @bench.agent.output_validator
    def check(output: str) -> str:
        raise ModelRetry('be good')

    await bench.leave()
    with pytest.raises(Exception, match='retries'):
        await bench.run()
    assert plot.asked == [0, 1, 2]


def batch(bench: Bench) -> None:
    bench.plot.said = [[call('look', 'a', at='x'), call('look', 'b', at='y')], [text('end')]]


async def test_a_return_is_known_by_its_call(bench: Bench) -> None:
    batch(bench)
    bench.boom = 0

    async def inside() -> None:
        """The second one fails when the return of the first is stored."""
        if bench.looked['b'] == 1 and bench.looked['a'] == 1 and not returned:
            returned.append(None)
            async with asyncio.timeout(20):
                while True:
                    run = await bench.unfinished()
                    if run is not None and run.returns:
                        break
                    await asyncio.sleep(0)
            raise BoomError

    returned: list[None] = []
    bench.inside = inside
    await bench.leave()
    result = await bench.run()
    assert bench.looked == {'a': 1, 'b': 2}
    contents = [p.content for p in result.all_messages()[2].parts if isinstance(p, ToolReturnPart)]
    assert contents == ['saw x', 'saw y']
    await bench.check(result)
    assert result.usage.tool_calls == 2


async def test_a_return_with_content_and_metadata_is_used_whole(kept: Conversations) -> None:
    bench = Bench(kept, script([call('show', 's'), call('look', 'b', at='y')], [text('end')]))
    shown = 0
    file = BinaryContent(b'\x89PNG' * 30_000, media_type='image/png')

    @bench.agent.tool_plain
    def show() -> ToolReturn[Any]:
        nonlocal shown
        shown += 1
        return ToolReturn({'n': [1.0, 1]}, content=['see', file], metadata={'k': [None]})

    async def inside() -> None:
        async with asyncio.timeout(20):
            while bench.boom:
                run = await bench.unfinished()
                if run is not None and 's' in run.returns:
                    break
                await asyncio.sleep(0)

    bench.inside = inside
    await bench.leave()
    result = await bench.run()
    assert (shown, bench.looked) == (1, {'b': 2})
    parts = result.all_messages()[2].parts
    assert isinstance(parts[0], ToolReturnPart)
    assert (parts[0].content, parts[0].metadata) == ({'n': [1.0, 1]}, {'k': [None]})
    assert prompts(result.all_messages()) == ['look!', ['see', file]]
    await bench.check(result)


async def test_a_return_that_cannot_be_stored_is_named(bench: Bench) -> None:
    bench.boom = 0
    bad = True

    @bench.agent.tool_plain
    def odd() -> Any:
        return object() if bad else 'plain'

    bench.plot.said = [[call('odd', 'o')], [text('end')]]
    with pytest.raises(LossyStateError, match="tool 'odd'"):
        await bench.run()
    bad = False
    result = await bench.run()
    assert result.output == 'end'
    assert bench.plot.asked == [0, 1]  # the response before was kept
    await bench.check(result)


async def test_what_a_tool_returned_may_be_kept_as_the_model_sees_it(store: Store) -> None:
    bench = Bench(Conversations(store, on_lossy='plain'))
    made = 0

    @bench.agent.tool_plain
    def point() -> Point:
        nonlocal made
        made += 1
        return Point(1)

    bench.plot.said = [[call('point', 'p')], [call('look', 'a', at='x')], [text('end')]]
    await bench.leave()
    result = await bench.run()
    assert (result.output, made) == ('end', 1)
    stored = (await messages(bench.kept, bench.name))[2].parts[0]
    assert isinstance(stored, ToolReturnPart)
    assert stored.content == {'x': 1}


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['cancel', 'timeout'])
async def test_a_cancelled_run_goes_on_at_once(bench: Bench, how: str) -> None:
    at_work = asyncio.Event()
    bench.boom = 0

    async def inside() -> None:
        at_work.set()
        await asyncio.Event().wait()

    bench.inside = inside
    if how == 'cancel':
        running = asyncio.ensure_future(bench.run())
        await at_work.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as bound:
                bench.inside = lambda: _expire(bound)
                await bench.run()
    bench.inside = None
    result = await bench.run()
    same(result.all_messages(), await by_hand('look!'))
    await bench.check(result)
    assert (bench.plot.asked, bench.looked) == ([0, 1], {'a': 2})


async def _expire(bound: asyncio.Timeout) -> None:
    bound.reschedule(0)
    await asyncio.Event().wait()


async def test_usage_limits_count_over_the_attempts(bench: Bench) -> None:
    bench.plot.said = [*([call('look', f'{n}', at='x')] for n in range(3)), [text('end')]]
    bench.boom = 0
    failing = [1]

    async def inside() -> None:
        if sum(bench.looked.values()) == 2 and failing:
            failing.clear()
            raise BoomError

    bench.inside = inside
    limits = UsageLimits(request_limit=3)
    await bench.leave(usage_limits=limits)
    assert bench.plot.asked == [0, 1]
    with pytest.raises(UsageLimitExceeded):
        await bench.run(usage_limits=limits)
    assert bench.plot.asked == [0, 1, 2]
    result = await bench.run(usage_limits=UsageLimits(request_limit=4, tool_calls_limit=3))
    assert (result.usage.requests, result.usage.tool_calls) == (4, 3)
    assert (await load(bench.kept, bench.name)).usage == result.usage
    await bench.check(result)


# --- what else changes a history ------------------------------------------------------------------


async def test_dynamic_prompts_do_not_change_what_is_stored(bench: Bench) -> None:
    now = 1
    bench.boom = 0

    @bench.agent.system_prompt(dynamic=True)
    def system() -> str:
        return f'system {now}'

    @bench.agent.instructions
    def instructions() -> str:
        return f'instructions {now}'

    first = await bench.run()
    stored = await messages(bench.kept, bench.name)
    now, bench.boom = 2, 1
    bench.plot.said = [*bench.plot.said[:2], [call('look', 'b', at='y')], [text('two')]]
    await bench.leave('more')
    result = await bench.run('more')
    assert result.output == 'two'
    assert first.all_messages() == stored
    after = await messages(bench.kept, bench.name)
    assert after[: len(stored)] == stored
    assert after[len(stored) :] == result.new_messages()
    assert [getattr(m, 'instructions', None) for m in after if m.kind == 'request'] == [
        *['Be brief.\n\ninstructions 1'] * 2,
        *['Be brief.\n\ninstructions 2'] * 2,
    ]
    assert await bench.unfinished() is None


async def test_a_run_that_goes_on_at_open_calls_sends_dynamic_prompts_as_stored(
    bench: Bench,
) -> None:
    now = 1
    bench.boom = 0

    @bench.agent.system_prompt(dynamic=True)
    def system() -> str:
        return f'system {now}'

    await bench.run()
    now, bench.boom = 2, 1
    bench.plot.said = [*bench.plot.said[:2], [call('look', 'b', at='y')], [text('two')]]
    await bench.leave('more')
    await bench.run('more')
    seen = [
        [part.content for part in said[0].parts if isinstance(part, SystemPromptPart)]
        for said in bench.plot.seen
    ]
    # Upstream evaluates those of earlier turns where a run begins with a request.
    assert seen == [['system 1'], ['system 1'], ['system 2'], ['system 1']]


@pytest.mark.parametrize('keeps', [1, 2])
async def test_what_trims_the_history_loses_nothing_that_is_stored(
    bench: Bench, keeps: int
) -> None:
    def trim(said: list[ModelMessage]) -> list[ModelMessage]:
        start = max(0, len(said) - keeps)
        while start and any(isinstance(p, ToolReturnPart) for p in said[start].parts):
            start -= 1
        return said[start:]

    bench.plot.said = [[text('hello')], *bench.plot.said]
    asked = 0

    def say(said: list[ModelMessage], info: AgentInfo) -> Any:
        nonlocal asked
        asked += 1
        # By its place in the whole, which the model does not see.
        return ModelResponse(parts=list(bench.plot.said[asked - 1]))

    bench.agent.model = FunctionModel(say)
    trimming = ProcessHistory[Any](trim)
    for prompt in ('hi', 'look!', 'more'):
        both = [bench.keep(), trimming]
        if prompt == 'look!':
            with pytest.raises(BoomError):
                await bench.agent.run(prompt, capabilities=both)
        await bench.agent.run(prompt, capabilities=[bench.keep(), trimming])
    stored = await messages(bench.kept, bench.name)
    assert prompts(stored) == ['hi', 'look!', 'more']
    assert [m.kind for m in stored] == ['request', 'response'] * 4
    assert (asked, bench.looked) == (4, {'a': 2})
    assert await branches(bench.kept, bench.name) == []
    assert await bench.unfinished() is None
