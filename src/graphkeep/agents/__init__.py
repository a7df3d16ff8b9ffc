"""Agents of pydantic-ai: their conversations on every store, and their runs, which go on.

- `Conversations` (`store.conversations`) is pydantic-ai's `ConversationStore`.
- `KeepRun` is a capability: an agent's run that died goes on where it was.
- `run` runs an agent inside of a step, and its tools may wait for approval and hold no process
  then:

```python
@g.step
async def support(ctx: StepContext[State, Deps, str]) -> str:
    result = await graphkeep.agents.run(agent, ctx.inputs, deps=ctx.deps)
    return result.output
```

Each *leg*, one `agent.run` from its start or from the answers before it to its output or to the
next calls that have to be approved, is kept in the step as soon as it has ended. The run pauses
with one request a call. After the answers the step runs again from its beginning, and the agent
goes on behind the last leg that was kept: no model call of a kept leg is made again.

A tool that runs in a leg whose process dies runs again, as every step does. What must not happen
twice belongs into `graphkeep.once`, which works in a tool as it does in a step:

```python
@agent.tool(requires_approval=True)
async def refund(ctx: RunContext[Deps], order_id: str) -> str:
    return await graphkeep.once(f'refund:{ctx.tool_call_id}', lambda: ctx.deps.pay_back(order_id))
```

The id of a call that was approved is the same on every attempt. Needs the extra `agents`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import MissingDriverError

try:
    import pydantic_ai as _  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != 'pydantic_ai':
        raise
    raise MissingDriverError(driver='pydantic-ai-slim', extra='agents') from None

from .answers import Approval, ExternalResult
from .asking import PendingCall, Prompt
from .keeping import KeepRun
from .result import AgentResult
from .running import run

if TYPE_CHECKING:
    from .conversations import Conversations, ScopeConflict

__all__ = (
    'AgentResult',
    'Approval',
    'Conversations',
    'ExternalResult',
    'KeepRun',
    'PendingCall',
    'Prompt',
    'ScopeConflict',
    'run',
)


def __getattr__(name: str) -> Any:
    # Late: pydantic-ai has had conversation stores since 2.66.
    if name in ('Conversations', 'ScopeConflict'):
        if find_spec('pydantic_ai.conversation_store') is None:
            raise MissingDriverError(driver='pydantic-ai-slim>=2.66', extra='agents')
        from . import conversations

        return getattr(conversations, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
