"""The model behind the agent, offline: it plays back `answers.jsonl`, and takes its time.

What it says depends on the messages it is sent and on nothing else, as with a real model: the
second draft of a reply comes only to one who shows it the first.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

__all__ = ('Wait', 'recorded_model')

ANSWERS = Path(__file__).with_name('answers.jsonl')

Wait = Callable[[str, float], Awaitable[None]]
"""`await wait('Research T-1007', 0.05)`: what takes these seconds at this place."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the model said about one ticket, stage by stage."""

    ticket: str
    classify: dict[str, Any]
    calls: list[dict[str, Any]]
    """The tools it called before it came to its findings."""
    facts: list[str]
    drafts: list[dict[str, Any]]
    reviews: list[dict[str, Any]]
    """One for each draft."""


def recorded_model(wait: Wait) -> FunctionModel:
    """A model that plays back what was recorded."""
    adapter = TypeAdapter(Recorded)
    with ANSWERS.open(encoding='utf-8') as lines:
        recorded = {(r := adapter.validate_json(line)).ticket: r for line in lines if line.strip()}

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        questions = _questions(messages)
        stage, _, ticket = questions[-1].partition(' ')
        known = recorded[ticket]
        if stage == 'Research' and known.calls and _is_question(messages[-1]):
            await wait(f'Lookup {ticket}', 0.015)
            return _calls(questions[-1], [(call['tool'], call['args']) for call in known.calls])
        match stage:
            case 'Classify':
                answer, seconds = known.classify, 0.02
            case 'Research':
                answer, seconds = {'facts': known.facts}, 0.03
            case 'Draft':
                answer, seconds = known.drafts[questions.count(questions[-1]) - 1], 0.035
            case _:
                answer, seconds = known.reviews[questions.count(questions[-1]) - 1], 0.02
        await wait(f'{stage} {ticket}', seconds)
        return _calls(f'{len(questions)}', [(info.output_tools[0].name, answer)])

    return FunctionModel(respond, model_name='recorded')


def _questions(messages: Sequence[ModelMessage]) -> list[str]:
    """The first line of all that was asked so far: 'Research T-1007'."""
    return [
        part.content.partition('\n')[0]
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str)
    ]


def _is_question(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and isinstance(message.parts[-1], UserPromptPart)


def _calls(name: str, calls: list[tuple[str, dict[str, Any]]]) -> ModelResponse:
    return ModelResponse(
        parts=[
            ToolCallPart(tool, json.dumps(args, ensure_ascii=False), tool_call_id=f'{name} #{n}')
            for n, (tool, args) in enumerate(calls)
        ]
    )
