"""The types of outputs, found and loaded again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    NativeOutput,
    PromptedOutput,
    StructuredDict,
    TextOutput,
    ToolOutput,
)
from typing_extensions import TypeAliasType

from graphkeep import LossyStateError, UnstorableTypeError, agents
from graphkeep.agents.outputs import output_of
from tests.classic.conftest import in_memory

from .staging import Stage, call, script, text


class Parcel(BaseModel):
    number: int


@dataclass
class Letter:
    to: str


def weigh(number: int) -> Parcel:
    return Parcel(number=number)


async def upper(said: str) -> str:
    return said.upper()


class Lock:
    pass


class Reader:
    def __call__(self, said: str) -> Letter:
        return Letter(said)


Alias = TypeAliasType('Alias', Parcel | Letter)
Box = StructuredDict({'type': 'object', 'properties': {'n': {'type': 'integer'}}}, name='box')


@pytest.mark.parametrize(
    ('spec', 'type_'),
    [
        (str, str),
        (int | str, int | str),
        ([Parcel, str], Parcel | str),
        ([Parcel, DeferredToolRequests], Parcel),
        (ToolOutput(Parcel), Parcel),
        ([ToolOutput(Parcel), ToolOutput(weigh, name='w')], Parcel),
        (NativeOutput([Parcel, Letter]), Parcel | Letter),
        (PromptedOutput(Letter), Letter),
        (TextOutput(upper), str),
        (weigh, Parcel),
        (functools.partial(weigh, 1), Parcel),
        (Reader(), Letter),
        (Alias, Parcel | Letter),
        (list[int], list[int]),
        (Box, Box),
    ],
)
def test_types_of_a_specification(spec: Any, type_: Any) -> None:
    output = output_of(Agent(), spec)
    assert output.type == type_
    assert DeferredToolRequests in output.passed


def test_an_agent_that_defers_by_itself_is_left_as_it_is() -> None:
    agent = Agent(output_type=[Parcel, DeferredToolRequests])
    assert output_of(agent, None) == (Parcel, None)


def _says_nothing(said: str):
    return said


@pytest.mark.parametrize('spec', [_says_nothing, TextOutput(_says_nothing), lambda x: x, 7])
def test_types_that_cannot_be_told(spec: Any) -> None:
    with pytest.raises(TypeError, match='output_type='):
        output_of(Agent(), spec)


def test_an_agent_that_can_only_defer() -> None:
    with pytest.raises(TypeError, match='nothing that a run could end with'):
        output_of(Agent(), DeferredToolRequests)


@in_memory
@pytest.mark.parametrize(
    ('spec', 'said', 'output'),
    [
        (Parcel, [call('final_result', 'o', number=3)], Parcel(number=3)),
        ([Letter, str], [call('final_result', 'o', to='me')], Letter('me')),
        (Box, [call('final_result', 'o', n=3)], {'n': 3}),
        (TextOutput(upper), [text('hi')], 'HI'),
        (PromptedOutput([Parcel]), [text('{"number": 4}')], Parcel(number=4)),
        (int | str, [text('5')], '5'),
        (Annotated[int, Field(gt=1)], [call('final_result', 'o', response=5)], 5),
    ],
)
@pytest.mark.parametrize('of', ['agent', 'run'])
async def test_an_output_comes_back_as_its_type(
    stage: Stage, spec: Any, said: Any, output: Any, of: str
) -> None:
    plot = script([call('refund', 'a')], said)
    agent: Agent[None, Any] = Agent(plot.model, output_type=spec if of == 'agent' else str)

    @agent.tool_plain(requires_approval=True)
    def refund() -> str:
        return 'paid'

    async def body(*, fails: bool = False) -> Any:
        given = None if of == 'agent' else spec
        result = await agents.run(agent, 'hm', output_type=given)
        if fails:
            raise ZeroDivisionError
        return result.output

    (request,) = await stage.pause(body)
    await stage.answer(request, True)
    with pytest.raises(ZeroDivisionError):
        await stage.play(lambda: body(fails=True))
    again = await stage.play(body)
    assert again == output
    assert type(again) is type(output)
    assert plot.asked == [0, 1]


@in_memory
async def test_an_output_that_cannot_be_kept_is_refused_before_a_model_is_called(
    stage: Stage,
) -> None:
    def lock(said: str) -> Lock:
        return Lock()

    plot = script([text('hi')])
    with pytest.raises(UnstorableTypeError, match='Lock'):
        await stage.play(lambda: agents.run(Agent(plot.model), 'hm', output_type=TextOutput(lock)))
    assert plot.asked == []


@in_memory
async def test_an_output_that_would_change_is_refused(stage: Stage) -> None:
    def pair(said: str) -> Any:
        return (said, said)

    plot = script([text('hi')])
    with pytest.raises(LossyStateError, match=r'output\[0\]'):
        await stage.play(lambda: agents.run(Agent(plot.model), 'hm', output_type=TextOutput(pair)))


@in_memory
async def test_an_agent_with_output_validators(stage: Stage) -> None:
    plot = script([call('refund', 'a')], [text('done')])
    agent = Agent(plot.model, output_type=[str, DeferredToolRequests])

    @agent.output_validator
    def check(said: Any) -> Any:
        return said.upper() if isinstance(said, str) else said

    @agent.tool_plain(requires_approval=True)
    def refund() -> str:
        return 'paid'

    (request,) = await stage.pause(lambda: agents.run(agent, 'hm'))
    await stage.answer(request, False)
    assert (await stage.play(lambda: agents.run(agent, 'hm'))).output == 'DONE'


@in_memory
async def test_an_agent_with_output_validators_that_never_defers(stage: Stage) -> None:
    agent = Agent(script([text('done')]).model)

    @agent.output_validator
    def check(said: str) -> str:
        return said.upper()

    assert (await stage.play(lambda: agents.run(agent, 'hm'))).output == 'DONE'
