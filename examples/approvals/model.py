"""The model behind the agent, offline: it follows three rules, and takes its time."""

from __future__ import annotations

import json

from payments import Receipt, Wait
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from shop import Order, euros

__all__ = ('amount', 'clerk_model')


def clerk_model(wait: Wait) -> FunctionModel:
    """A model that drafts a refund, and says what has become of it."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [p for m in messages if isinstance(m, ModelRequest) for p in m.parts]
        (asked,) = (p.content for p in parts if isinstance(p, UserPromptPart))
        case = json.loads(str(asked))
        order = Order.model_validate(case['order'])
        last = parts[-1]
        if isinstance(last, UserPromptPart):
            await wait(f'draft {order.id}', 0.3)
            if cents := amount(order, case['reason']):
                return ModelResponse(parts=[ToolCallPart('refund', {'cents': cents})])
            said = 'We do not refund this.'
        else:
            await wait(f'reply {order.id}', 0.3)
            said = 'We could not refund this.'
            if isinstance(last, ToolReturnPart):
                said = last.model_response_str()
                if last.outcome == 'success':
                    receipt = Receipt.model_validate_json(said)
                    said = f'We have refunded {euros(receipt.cents)} ({receipt.number}).'
        return ModelResponse(parts=[TextPart(f'Dear {order.customer}! {said}')])

    return FunctionModel(respond, model_name='clerk')


def amount(order: Order, reason: str) -> int:
    """What is just, in cents: all of it, a tenth for a delay, or nothing."""
    if any(word in reason.lower() for word in ('broken', 'lost', 'wrong')):
        return order.cents
    return order.cents // 10 if 'late' in reason.lower() else 0
