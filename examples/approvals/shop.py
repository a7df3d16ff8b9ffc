"""The shop: its orders, and the amounts it writes. Nothing here knows about graphkeep."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

__all__ = ('ORDERS', 'Order', 'euros')


class Order(BaseModel):
    """What was bought."""

    id: str
    customer: str
    item: str
    cents: int
    """What was paid for it, in euro cents."""


ORDERS: Mapping[str, Order] = {
    order.id: order
    for order in (
        Order(id='A-1001', customer='Ada', item='tea, 100 g', cents=790),
        Order(id='A-1002', customer='Blaise', item='tea strainer', cents=1250),
        Order(id='A-1003', customer='Carl', item='cup', cents=1490),
        Order(id='A-1004', customer='Dorothy', item='kettle', cents=8900),
        Order(id='A-1005', customer='Emmy', item='tea set', cents=12900),
        Order(id='A-1006', customer='Florence', item='samovar', cents=24900),
        Order(id='A-1007', customer='Grace', item='espresso machine', cents=64900),
        Order(id='A-1008', customer='Hedy', item='coffee grinder', cents=18900),
    )
}


def euros(cents: int) -> str:
    """An amount as a person writes it: '€12.50'."""
    return f'€{cents // 100}.{cents % 100:02}'
