"""What it costs to keep what agents say: saves, bytes and loads of long chats, and `KeepRun`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.bench import NAMES, Bench
from benchmarks.counting import transactions_of
from benchmarks.elsewhere import measured
from benchmarks.report import Line, exactly, ms
from benchmarks.timing import in_turns, one_by_one
from benchmarks.turns import turn
from graphkeep import Store, open_store

__all__ = ('measure', 'ours')

_DATABASES = ('sqlite', 'postgres', 'redis')
_CALLS = ('_conversations', '_entries', '_write_conversation', '_delete_conversation')
_WRITE = '_write_conversation'
_BATCH = 4


async def measure(bench: Bench) -> list[Line]:
    """Those of others need the environment of the benchmarks, ours pydantic-ai 2.66 or newer."""
    store = 'pydantic_ai.conversation_store'
    own = await measured(bench, __name__, 'ours', needs=store)
    if not own:
        return own
    return own + await measured(bench, 'benchmarks.sessions', 'others', needs='langchain_postgres')


async def ours(bench: Bench) -> list[Line]:
    """graphkeep, and the whole list as one value in the same databases."""
    from benchmarks.sessions import long_and_short, one_value

    chats: list[Line] = []
    calls: list[Line] = []
    runs: list[Line] = []
    values: list[Line] = []
    for name, url in bench.stores(*_DATABASES).items():
        async with open_store(url) as store:
            chats += await long_and_short(bench, _side(name, url, store))
            calls += await _calls_of_a_save(bench, name, url, store)
            runs += await _runs(bench, name, store)
        beside = bench.url(name)
        assert beside is not None
        async with one_value(name, beside) as side:
            values += await long_and_short(bench, side)
    return chats + calls + runs + values


def _side(name: str, url: str, store: Store) -> Any:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelMessage

    from benchmarks.sessions import Side

    class Ours(Side):
        promised = True

        def __init__(self) -> None:
            super().__init__(name, url)
            self.name = NAMES[name]
            self._store = store.conversations
            self._open: dict[str, Conversation] = {}

        async def save(self, chat: str, messages: list[ModelMessage]) -> None:
            if chat not in self._open:
                self._open[chat] = Conversation(conversation_id=chat)
            conversation = self._open[chat]
            conversation.messages += messages
            await self._store.save(conversation, scope='ada')

        async def load(self, chat: str) -> Any:
            found = await self._store.load(chat, scope='ada')
            assert found is not None
            return found.messages

    return Ours()


# --- what is asked of the store -------------------------------------------------------------------


@asynccontextmanager
async def _counted(store: Store) -> AsyncGenerator[Counter[str]]:
    """Counts what is asked of the database of a store."""
    counts: Counter[str] = Counter()
    whole = {name: getattr(store, name) for name in _CALLS}

    async def call(name: str, *args: Any) -> Any:
        counts[name] += 1
        return await whole[name](*args)

    for name in _CALLS:
        setattr(store, name, partial(call, name))
    try:
        yield counts
    finally:
        for name in _CALLS:
            delattr(store, name)


async def _calls_of_a_save(bench: Bench, name: str, url: str, store: Store) -> list[Line]:
    side = _side(name, url, store)
    chat, saves = f'counted-{bench.number()}', 10
    await side.save(chat, turn(chat, 1))
    transactions = transactions_of(bench, name, url)
    async with _counted(store) as counts:
        before = transactions()
        for number in range(saves):
            await side.save(chat, turn(chat, number))
        made = transactions() - before
    calls = counts.total()
    # Redis counts scripts that only read, too.
    what, due = ('scripts', 2) if name == 'redis' else ('write transactions', 1)
    return [
        Line(
            what=f'{NAMES[name]}: calls of the store by a save',
            measured=f'{calls} by {saves} saves',
            baseline='1 read, 1 write',
            figure=calls / saves,
            unit='',
            target=exactly(2),
            raw={'calls': calls, 'writes': counts[_WRITE], 'saves': saves},
        ),
        Line(
            what=f'{NAMES[name]}: {what} of a save',
            measured=f'{made} by {saves} saves',
            figure=made / saves,
            unit='',
            target=exactly(due),
            raw={'transactions': made, 'saves': saves},
        ),
    ]


# --- runs of agents -------------------------------------------------------------------------------


async def _runs(bench: Bench, name: str, store: Store) -> list[Line]:
    """A run that is kept step by step, against one that is saved when it has ended."""
    new = partial(next, (f'run-{bench.number()}' for _ in itertools.count()))
    known = f'known-{bench.number()}'
    turns = bench.n(1_000, 20)
    await _side(name, '', store).save(
        known, [message for number in range(turns) for message in turn(known, number)]
    )
    return [
        await _keeping(name, store, new, 'a new conversation', bench.n(20, 1)),
        # Upstream looks at the whole history before each request: that takes most of the time.
        await _keeping(name, store, lambda: known, f'behind {turns:,} turns', bench.n(5, 1)),
    ]


async def _keeping(
    name: str, store: Store, which: Callable[[], str], where: str, rounds: int
) -> Line:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.usage import UsageLimits

    from graphkeep.agents import KeepRun

    conversations = store.conversations
    # What a conversation has used counts: here there are many runs in one.
    run = partial(_agent().run, 'look!', usage_limits=UsageLimits(request_limit=None))
    keep = KeepRun(conversations, scope='ada')

    async def kept() -> None:
        result = await run(conversation_id=which(), capabilities=[keep])
        assert result.output == 'done'

    async def saved() -> None:
        name = which()
        found = await conversations.load(name, scope='ada')
        conversation = found or Conversation(conversation_id=name)
        await conversations.save(await run(conversation=conversation), scope='ada')

    async def unkept() -> None:
        await run()

    async def counted(way: Callable[[], Awaitable[None]]) -> Counter[str]:
        async with _counted(store) as counts:
            await way()
        return counts

    ways = {'kept': kept, 'saved': saved, 'unkept': unkept}
    counts = {name: await counted(way) for name, way in ways.items()}
    found = await in_turns(
        {name: one_by_one(way) for name, way in ways.items()}, rounds=rounds, each=2
    )
    writes, whole = counts['kept'][_WRITE], counts['saved'][_WRITE]
    return Line(
        what=f'{NAMES[name]}: KeepRun, three model calls, 1 + {_BATCH} tools, {where}',
        measured=f'{ms(found["kept"])}, {writes} writes',
        baseline=f'{ms(found["saved"])}  load, run, save: {whole} write',
        figure=(found['kept'] - found['saved']) * 1e6 / max(writes - whole, 1),
        unit='µs a write more',
        raw={
            **found,
            'writes': writes,
            'calls': counts['kept'].total(),
            'calls_saved': counts['saved'].total(),
        },
    )


def _agent() -> Any:
    """One tool, then four at once, then the end: nothing takes time but what is around."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1]
        returned = [part for part in last.parts if part.part_kind == 'tool-return']
        if len(returned) == _BATCH:
            return ModelResponse(parts=[TextPart('done')])
        count = _BATCH if returned else 1
        return ModelResponse(parts=[ToolCallPart('look', {'at': f'{n}'}) for n in range(count)])

    agent: Agent[None, str] = Agent(FunctionModel(model), instructions='Be brief.')

    @agent.tool_plain
    async def look(at: str) -> str:
        return f'saw {at}'

    return agent
