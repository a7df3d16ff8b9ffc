"""The reader: an agent that is shown a text, and what it has to answer with.

Nothing here knows about graphkeep. For a real model, give `Agent` its name: 'openai:gpt-…'.
"""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent

__all__ = ('Summary', 'agent')


class Summary(BaseModel):
    """What a text says, in short."""

    passages: list[str]
    """The two that say most, in the text's own words and order."""
    keywords: list[str]


agent = Agent(
    output_type=Summary,
    instructions='Pick the two passages that say most about the text, and up to three keywords.',
)
