"""The graph: the order is looked up, the agent settles the case.

    request ─> look_up ─┬─ an order ──────> settle ─> outcome
                        └─ no such order ───────────> outcome

A person is asked in the middle of `settle`, and no process waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent import Case, agent
from payments import Provider, Receipt
from pydantic import BaseModel, TypeAdapter
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_graph import GraphBuilder, StepContext
from shop import Order, euros

import graphkeep
from graphkeep import agents

__all__ = ('NAME', 'Claim', 'Desk', 'Outcome', 'RefundRequest', 'refunds')

NAME = 'refunds'


class RefundRequest(BaseModel):
    """What a customer wants."""

    order: str
    reason: str


class Claim(BaseModel):
    """It, with the order that it is about."""

    order: Order
    reason: str


class Outcome(BaseModel):
    """What has become of it."""

    order: str
    refunded: int
    """In cents, by the receipt and not by what the model says."""
    receipt: str | None
    answer: str
    """To the customer."""


@dataclass(kw_only=True)
class Desk:
    """What the steps work with: the graph's `deps`. Never kept, each process makes its own."""

    model: Model
    provider: Provider
    orders: Mapping[str, Order]
    begins: Callable[[str], None] = lambda step: None
    """Is told which step runs, so that the demo can show it."""
    limit: int = 2000
    """Up to so many cents are refunded without a person."""


g = GraphBuilder(name=NAME, deps_type=Desk, input_type=RefundRequest, output_type=Outcome)


@g.step
async def look_up(ctx: StepContext[None, Desk, RefundRequest]) -> Claim | Outcome:
    """Find the order."""
    ctx.deps.begins(f'look_up {ctx.inputs.order}')
    order = ctx.deps.orders.get(ctx.inputs.order)
    if order is None:
        answer = 'We do not know this order.'
        return Outcome(order=ctx.inputs.order, refunded=0, receipt=None, answer=answer)
    return Claim(order=order, reason=ctx.inputs.reason)


@g.step
async def settle(ctx: StepContext[None, Desk, Claim]) -> Outcome:
    """Let the agent refund, with a person's approval where it needs one, and answer."""
    claim, desk = ctx.inputs, ctx.deps
    desk.begins(f'settle {claim.order.id}')

    def question(call: agents.PendingCall) -> str:
        cents = euros(call.args['cents'])
        return f'Refund {cents} of {euros(claim.order.cents)} to {claim.order.customer}?'

    result = await agents.run(
        agent,
        claim.model_dump_json(),
        deps=Case(order=claim.order, provider=desk.provider, limit=desk.limit),
        model=desk.model,
        prompt=question,
    )
    receipt = receipt_in(result.all_messages())
    return Outcome(
        order=claim.order.id,
        refunded=receipt.cents if receipt else 0,
        receipt=receipt.number if receipt else None,
        answer=result.output,
    )


def receipt_in(messages: Sequence[ModelMessage]) -> Receipt | None:
    """What the tool has returned. Messages are kept; what a tool left elsewhere would not be."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and part.outcome == 'success':
                return TypeAdapter(Receipt).validate_python(part.content)
    return None


g.add(
    g.edge_from(g.start_node).to(look_up),
    g.edge_from(look_up).to(
        g.decision().branch(g.match(Claim).to(settle)).branch(g.match(Outcome).to(g.end_node))
    ),
    g.edge_from(settle).to(g.end_node),
)
refunds = graphkeep.persist(g.build())
