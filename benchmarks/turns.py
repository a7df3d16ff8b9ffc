"""Turns of chats, as a provider gives them: the same for the same number, whoever keeps them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

__all__ = ('Turns', 'turn')

Turns = dict[str, list[ModelMessage]]
"""Messages by chat."""

_INSTRUCTIONS = (
    'You help the customers of a shop. Answer briefly, and look things up before you do.'
)
_EPOCH = datetime(2026, 1, 1, 9, tzinfo=UTC)
_TOOL_EVERY = 5
_SYLLABLES = (
    *('an', 'be', 'cor', 'da', 'el', 'fi', 'gre', 'ho', 'is', 'ju', 'ka', 'lo', 'mer', 'no', 'or'),
    *('pa', 'qui', 'ra', 'ste', 'ti', 'un', 'ver', 'wo', 'ya', 'zu'),
)


def _vocabulary() -> Sequence[str]:
    rng = random.Random(1)
    return [''.join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3, 4)))) for _ in range(1_500)]


_WORDS = _vocabulary()


def turn(chat: str, number: int) -> list[ModelMessage]:
    """The messages of one turn: a prompt and a response, every fifth time with a tool between."""
    rng = random.Random(f'{chat}:{number}')
    run_id = str(_id(rng))
    moment = _EPOCH + timedelta(minutes=3 * number, microseconds=rng.randrange(10**6))
    prompt = UserPromptPart(_text(rng, rng.randint(40, 400)), timestamp=moment)
    messages: list[ModelMessage] = [_request(prompt, run_id, chat)]
    if number % _TOOL_EVERY == 0:
        call = ToolCallPart(
            'look_up_order',
            {'order': rng.randrange(10**6), 'fields': ['status', 'items', 'address']},
            tool_call_id=f'call_{_token(rng, 24)}',
        )
        found = ToolReturnPart(
            call.tool_name,
            {
                'order': rng.randrange(10**6),
                'status': rng.choice(('sent', 'packed', 'paid')),
                'items': [_text(rng, 60) for _ in range(4)],
                'address': _text(rng, 120),
            },
            tool_call_id=call.tool_call_id,
            timestamp=moment + timedelta(seconds=2),
        )
        messages.append(_response(rng, [call], 'tool_call', moment, run_id, chat))
        messages.append(_request(found, run_id, chat))
    answer = TextPart(_text(rng, rng.randint(100, 1_500)))
    messages.append(_response(rng, [answer], 'stop', moment, run_id, chat))
    return messages


def _request(part: UserPromptPart | ToolReturnPart, run_id: str, chat: str) -> ModelRequest:
    return ModelRequest(
        parts=[part],
        timestamp=part.timestamp,
        instructions=_INSTRUCTIONS,
        run_id=run_id,
        conversation_id=chat,
    )


def _response(
    rng: random.Random,
    parts: Sequence[TextPart | ToolCallPart],
    reason: str,
    moment: datetime,
    run_id: str,
    chat: str,
) -> ModelResponse:
    given = rng.randint(500, 8_000)
    return ModelResponse(
        parts=list(parts),
        usage=RequestUsage(
            input_tokens=given,
            cache_read_tokens=given // 2,
            output_tokens=rng.randint(20, 400),
            details={'reasoning_tokens': rng.randint(0, 200), 'audio_tokens': 0},
        ),
        model_name='gpt-5.2-2026-01-15',
        timestamp=moment + timedelta(seconds=1),
        provider_name='openai',
        provider_url='https://api.openai.com/v1/',
        provider_details={
            'finish_reason': reason,
            'timestamp': (moment + timedelta(seconds=1)).isoformat(),
        },
        provider_response_id=f'resp_{_token(rng, 48)}',
        finish_reason='stop' if reason == 'stop' else 'tool_call',
        run_id=run_id,
        conversation_id=chat,
    )


def _text(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return ' '.join(words)[:size].strip().capitalize() + '.'


def _token(rng: random.Random, length: int) -> str:
    return f'{rng.getrandbits(4 * length):0{length}x}'


def _id(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)
