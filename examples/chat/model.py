"""The model behind the agent, offline: it follows a few rules, and streams word by word."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from .agent import Wait

__all__ = ('clerk_model',)

OPENINGS = ('', 'To say it otherwise: ', 'Once more: ')
"""So that an answer that is given again is another one."""


def clerk_model(wait: Wait) -> FunctionModel:
    """A model that looks orders up, asks where those are that were sent, and says so."""
    openings = itertools.cycle(OPENINGS)

    async def stream(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        prompt, turn = last_turn(messages)
        number = 1 + sum(isinstance(message, ModelResponse) for message in turn)
        await wait(f'model {number}', 0.2)
        if calls := [*wanted(prompt, turn)]:
            for index, (tool, order_id) in enumerate(calls):
                yield {index: DeltaToolCall(tool, json.dumps({'order_id': order_id}))}
        else:
            for word in re.findall(r'\S+\s*', next(openings) + answer(turn)):
                await wait('a word', 0.02)
                yield word
        await wait(f'model {number} done', 0.0)

    return FunctionModel(stream_function=stream, model_name='clerk')


def last_turn(messages: list[ModelMessage]) -> tuple[str, list[ModelMessage]]:
    """What the user has said last, and all messages since."""
    for index in reversed(range(len(messages))):
        for part in messages[index].parts:
            if isinstance(part, UserPromptPart):
                return str(part.content), messages[index:]
    return '', messages


def wanted(prompt: str, turn: list[ModelMessage]) -> Iterator[tuple[str, str]]:
    """The calls that are to be made next: tool and order."""
    found = returns(turn)
    for order_id in dict.fromkeys(re.findall(r'[A-Z]-\d{4}', prompt)):
        if ('look_up', order_id) not in found:
            yield 'look_up', order_id
    if not found or any(tool != 'look_up' for tool, _ in found):
        return
    for (_, order_id), order in found.items():
        if isinstance(order, dict) and order.get('sent'):
            yield 'estimate_delivery', order_id
            yield 'ask_carrier', order_id


def answer(turn: list[ModelMessage]) -> str:
    """What the tools have returned, in words."""
    found = returns(turn)
    said: list[str] = []
    for (tool, order_id), order in found.items():
        if tool != 'look_up' or not isinstance(order, dict):
            continue
        if 'unknown' in order:
            said.append(f'We have no order {order_id}.')
        elif not order['sent']:
            said.append(f'Order {order_id}, {order["item"]}, is still being packed.')
        else:
            day, place = found['estimate_delivery', order_id], found['ask_carrier', order_id]
            said.append(
                f'Order {order_id}, {order["item"]}, should arrive on {day}. '
                f'The carrier says that {place}.'
            )
    return ' '.join(said) or 'Which order is it? Its number is like A-1004.'


def returns(turn: list[ModelMessage]) -> dict[tuple[str, str], object]:
    """What the tools have returned, by tool and order."""
    calls = {
        call.tool_call_id: str(call.args_as_dict()['order_id'])
        for message in turn
        if isinstance(message, ModelResponse)
        for call in message.tool_calls
    }
    return {
        (part.tool_name, calls[part.tool_call_id]): part.content
        for message in turn
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
