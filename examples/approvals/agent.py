"""The agent: it reads what a customer writes, and refunds with a tool.

A small refund is made at once. A large one needs a person: the tool raises `ApprovalRequired`, and
is called again when somebody has approved.
"""

from __future__ import annotations

from dataclasses import dataclass

from payments import Provider, Receipt
from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext
from shop import Order, euros

import graphkeep

__all__ = ('Case', 'agent')


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the tool works with: the agent's `deps`. The model cannot choose whose order it is."""

    order: Order
    provider: Provider
    limit: int
    """Up to so many cents are refunded without a person."""


agent = Agent(
    deps_type=Case,
    instructions='Refund what is just, if anything is, and write an answer to the customer.',
)


@agent.tool
async def refund(ctx: RunContext[Case], cents: int) -> Receipt:
    """Give money back to the customer."""
    order, provider = ctx.deps.order, ctx.deps.provider
    if not 0 < cents <= order.cents:
        raise ModelRetry(f'The customer has paid {euros(order.cents)}.')
    if cents > ctx.deps.limit and not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={'order': order.id, 'customer': order.customer})
    # The same on every attempt, and no other run's: one run refunds once, whatever the model says.
    key = graphkeep.current_task().key

    async def pay() -> Receipt:
        return await provider.refund(key=key, order=order.id, cents=cents)

    # Kept as soon as it is known, so that an attempt after a crash does not even ask. A tool that
    # may be called for several things has the id of the call in both: ctx.tool_call_id.
    return await graphkeep.once('refund', pay)
