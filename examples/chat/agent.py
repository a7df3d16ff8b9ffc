"""The agent of a small shop: it answers questions about orders, with three tools.

Nothing here knows about graphkeep.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model

__all__ = ('Wait', 'make_agent')

Wait = Callable[[str, float], Awaitable[None]]
"""`await wait('ask_carrier', 2.0)`: take these seconds at this place."""

ORDERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name('orders.json').read_text())
DAYS = {'post': 5, 'van': 2, 'bicycle': 1}
PARCELS = {'post': 'it is being sorted', 'van': 'it is in the van', 'bicycle': 'it is at the door'}


def make_agent(model: Model, wait: Wait) -> Agent[None, str]:
    """The agent.

    Args:
        model: Who answers.
        wait: How long the world outside takes.
    """
    agent = Agent(model, name='clerk', instructions='Answer questions about orders. Be brief.')

    @agent.tool_plain
    async def look_up(order_id: str) -> dict[str, Any]:
        """Look an order up."""
        await wait('look_up', 0.2)
        found = ORDERS.get(order_id, {'unknown': True})
        await wait('look_up done', 0.0)
        return {'order_id': order_id, **found}

    @agent.tool_plain
    async def estimate_delivery(order_id: str) -> str:
        """Estimate the day on which an order arrives."""
        await wait('estimate_delivery', 0.1)
        order = ORDERS[order_id]
        day = date.fromisoformat(order['sent']) + timedelta(days=DAYS[order['carrier']])
        await wait('estimate_delivery done', 0.0)
        return day.isoformat()

    @agent.tool_plain
    async def ask_carrier(order_id: str) -> str:
        """Ask the carrier where a parcel is. The carrier takes its time."""
        await wait('ask_carrier', 1.0)
        said = PARCELS[ORDERS[order_id]['carrier']]
        await wait('ask_carrier done', 0.0)
        return said

    return agent
