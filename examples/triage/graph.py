"""The graph: five nodes that work through the tickets, one after the other.

    Classify ─> Research ─> Draft <─> Review ─> File ─> Classify … ─> End
        └────────────── spam ──────────────────> ┘

This is pydantic-graph as it is without graphkeep, but for one word: `AppendOnly`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from agent import Action, Answer, Category, Findings, Priority, Triage, Verdict, agent
from company import Company
from outbox import Outbox
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph
from tickets import Ticket

from graphkeep import AppendOnly

__all__ = ('Case', 'Desk', 'Report', 'State', 'first_node', 'triage')

T = TypeVar('T')


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known about one ticket. Each node hands the next one a fuller one."""

    ticket: str
    since: int
    """Where in `State.messages` the conversation about it begins."""
    category: Category = 'other'
    priority: Priority = 'P4'
    language: str = 'en'
    facts: tuple[str, ...] = ()
    action: Action = 'drop'
    reply: str = ''
    drafts: int = 0


@dataclass
class State:
    """What all nodes share. It is kept at every step, so each costs what it has added."""

    tickets: list[Ticket]
    filed: Annotated[list[Case], AppendOnly] = field(default_factory=list[Case])
    messages: Annotated[list[ModelMessage], AppendOnly] = field(default_factory=list[ModelMessage])

    @property
    def ticket(self) -> Ticket:
        """The ticket that is being worked on."""
        return self.tickets[len(self.filed)]


@dataclass
class Desk:
    """What the nodes work with: the graph's `deps`. Never kept, each process makes its own."""

    model: Model
    company: Company
    outbox: Outbox
    begins: Callable[[str], None]
    """Is told what runs, 'Research T-1007', so that the demo can compare."""


@dataclass
class Report:
    """The output of a run."""

    tickets: int
    actions: dict[str, int]
    """How many cases were closed in which way."""


@dataclass
class Stage(BaseNode[State, Desk, Report]):
    """What the nodes have in common. Their fields are kept with the state."""

    case: Case

    def begins(self, ctx: GraphRunContext[State, Desk]) -> None:
        """Tell that the node runs."""
        ctx.deps.begins(f'{type(self).__name__} {self.case.ticket}')

    async def ask(
        self, ctx: GraphRunContext[State, Desk], question: str, answer: type[T], text: str = ''
    ) -> T:
        """Ask the agent, which is shown what was said about the ticket before."""
        messages = ctx.state.messages
        result = await agent.run(
            f'{question} {self.case.ticket}\n\n{text}'.rstrip(),
            output_type=answer,
            message_history=messages[self.case.since :],
            model=ctx.deps.model,
            deps=ctx.deps.company,
        )
        messages += result.new_messages()
        return result.output


@dataclass
class Classify(Stage):
    """What is it about, and does it hurry?"""

    async def run(self, ctx: GraphRunContext[State, Desk]) -> Research | File:
        self.begins(ctx)
        ticket = ctx.state.ticket
        text = f'From: {ticket.sender}\nSubject: {ticket.subject}\n\n{ticket.body}'
        found = await self.ask(ctx, 'Classify', Triage, text)
        case = replace(self.case, **found.model_dump())
        return File(case) if case.category == 'spam' else Research(case)


@dataclass
class Research(Stage):
    """What do the account and the handbook say? The agent calls its tools for that."""

    async def run(self, ctx: GraphRunContext[State, Desk]) -> Draft:
        self.begins(ctx)
        found = await self.ask(ctx, 'Research', Findings)
        return Draft(replace(self.case, facts=tuple(found.facts)))


@dataclass
class Draft(Stage):
    """What is done, and what is written?"""

    note: str = ''
    """What the review did not like about the draft before."""

    async def run(self, ctx: GraphRunContext[State, Desk]) -> Review:
        self.begins(ctx)
        answer = await self.ask(ctx, 'Draft', Answer, self.note)
        drafts = self.case.drafts + 1
        return Review(replace(self.case, action=answer.action, reply=answer.reply, drafts=drafts))


@dataclass
class Review(Stage):
    """May it go out like that?"""

    async def run(self, ctx: GraphRunContext[State, Desk]) -> File | Draft:
        self.begins(ctx)
        verdict = await self.ask(ctx, 'Review', Verdict, self.case.reply)
        return File(self.case) if verdict.ok else Draft(self.case, note=verdict.note)


@dataclass
class File(Stage):
    """Send the reply, file the case, and go on to the next ticket."""

    async def run(self, ctx: GraphRunContext[State, Desk]) -> Classify | End[Report]:
        self.begins(ctx)
        state = ctx.state
        if self.case.reply:
            # A node that is interrupted runs again, so this may be said twice. The key is the same
            # both times, and the provider delivers once.
            await ctx.deps.outbox.send(
                key=self.case.ticket, to=state.ticket.sender, text=self.case.reply
            )
        state.filed.append(self.case)
        if len(state.filed) < len(state.tickets):
            return first_node(state)
        actions = Counter[str](case.action for case in state.filed)
        return End(Report(tickets=len(state.filed), actions=dict(sorted(actions.items()))))


triage = Graph(nodes=[Classify, Research, Draft, Review, File], name='triage')


def first_node(state: State) -> Classify:
    """The node that begins with the next ticket."""
    return Classify(Case(ticket=state.ticket.id, since=len(state.messages)))
