"""The graph: a step for each text, several at once, and one for the report.

    names ─ map ─> summarise ─┐
              ├──> summarise ─┼─> collect ─> write ─> report
              └──> summarise ─┘

This is pydantic-graph's `GraphBuilder` as it is without graphkeep, but for `merge` and `persist`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from agent import Summary, agent
from pydantic_ai.models import Model
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append
from texts import Text

import graphkeep
from graphkeep import merge

__all__ = ('AT_ONCE', 'Desk', 'Entry', 'Progress', 'research')

AT_ONCE = 4
"""How many texts are read at once: as many calls as the provider of a model allows."""


@dataclass
class Progress:
    """The state. Steps that run at the same time all change it, and no change is lost."""

    words: Annotated[int, merge.add] = 0
    """Of the texts that were read. Two steps that add to a number need a rule."""
    authors: set[str] = field(default_factory=set[str])
    """Sets are united, without a rule."""
    read: list[str] = field(default_factory=list[str])
    """Names of texts, in the order in which they were done: lists that grow are joined."""


@dataclass
class Desk:
    """What the steps work with: the graph's `deps`. Never kept, each process makes its own."""

    model: Model
    texts: Mapping[str, Text]
    begins: Callable[[str], None]
    """Is told which step runs, so that the demo can compare."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the report says about one text."""

    text: str
    summary: Summary


g = GraphBuilder(
    name='research',
    state_type=Progress,
    deps_type=Desk,
    input_type=list[str],
    output_type=str,
)


@g.step
async def summarise(ctx: StepContext[Progress, Desk, str]) -> Entry:
    """Have one text read. Its name is what is kept, and not all of it."""
    text = ctx.deps.texts[ctx.inputs]
    ctx.deps.begins(text.name)
    result = await agent.run(f'{text.title}\n\n{text.body}', model=ctx.deps.model)
    ctx.state.words += text.words
    ctx.state.authors.add(text.author)
    ctx.state.read.append(text.name)
    return Entry(text=text.name, summary=result.output)


@g.step
async def write(ctx: StepContext[Progress, Desk, list[Entry]]) -> str:
    """Write the report. Entries arrive in the order in which they were done: it has its own."""
    ctx.deps.begins('the report')
    texts, state = ctx.deps.texts, ctx.state
    lines = [
        '# What they wrote',
        '',
        f'{len(state.read)} texts by {len(state.authors)} authors, {state.words:,} words.',
    ]
    for entry in sorted(ctx.inputs, key=lambda e: (texts[e.text].year, e.text)):
        text = texts[entry.text]
        lines += ['', f'## {text.title}', '', f'{text.author}, {text.year}', '']
        lines += [f'> {" […] ".join(entry.summary.passages)}', '']
        lines += [f'Keywords: {", ".join(entry.summary.keywords)}.']
    return '\n'.join(lines) + '\n'


collect = g.join(reduce_list_append, initial_factory=list[Entry], node_id='collect')
g.add(
    g.edge_from(g.start_node).map().to(summarise),
    g.edge_from(summarise).to(collect),
    g.edge_from(collect).to(write),
    g.edge_from(write).to(g.end_node),
)
research = graphkeep.persist(g.build(), max_parallel=AT_ONCE)
