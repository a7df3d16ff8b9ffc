"""The model behind the agent, offline: it reads the text that it is shown, and takes its time.

It is an extractive summariser of the oldest kind. A passage says much if the words in it come
often in the text. The same text always gets the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable

from agent import Summary
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

__all__ = ('Wait', 'reading_model', 'summarise')

Wait = Callable[[str, float], Awaitable[None]]
"""`await wait('Sonnet 18', 0.5)`: take these seconds to read this."""

_COMMON = """
a about after again all also am an and any are as at be been before being but by came can come could
did do does down each every few for from had has hath have he her here him his how i if in into is
it its let like long made may me might mine more most much my never no nor not now o of off on once
one or other our out over own said say shall she should so some still such than that the thee their
them themselves then there therefore these they thine this those thou though through thus thy till
to too two under until up upon us very was way we were what when where which while who whom whose
why will with within without would yet you your
"""
COMMON = frozenset(_COMMON.split())
"""Words that tell nothing about a text."""
LONGEST = 45
"""Words of a passage, at most: a summary is short."""
_ENDS = re.compile(r'(?<=[.!?;:])\s+|(?<=[.!?][\'"])\s+|\s*--\s*')
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")


def reading_model(wait: Wait) -> FunctionModel:
    """A model that summarises what it is shown."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        (question,) = (
            part.content
            for message in messages
            for part in message.parts
            if isinstance(part, UserPromptPart) and isinstance(part.content, str)
        )
        title, _, body = question.partition('\n\n')
        await wait(title, 0.003 * len(body.split()))
        answer = summarise(body).model_dump_json()
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, answer)])

    return FunctionModel(respond, model_name='reader')


def summarise(body: str) -> Summary:
    """The two passages that say most, and the words that come most often."""
    passages = [' '.join(passage.split()).rstrip(',;:') for passage in _ENDS.split(body)]
    short = [number for number, passage in enumerate(passages) if len(passage.split()) <= LONGEST]
    often = Counter(_telling(body))
    said = set[str]()

    def weight(number: int) -> float:
        news = set(_telling(passages[number])) - said
        # A long passage has more words, and is not a better one for it.
        return sum(often[word] for word in news) / (len(passages[number].split()) + 8)

    best: list[int] = []
    for _ in range(min(2, len(short))):
        best.append(max((number for number in short if number not in best), key=weight))
        said.update(_telling(passages[best[-1]]))
    return Summary(
        passages=[passages[number] for number in sorted(best)],
        keywords=[word for word, _ in often.most_common(3)],
    )


def _telling(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in COMMON]
