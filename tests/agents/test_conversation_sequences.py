"""Any sequence of operations has the outcomes that it has with pydantic-ai's store in memory."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai import DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ToolCallPart
from pydantic_ai.usage import RunUsage

from graphkeep import Store
from tests.classic.conftest import every_store

from .talking import ask, new_id, say

pytestmark = every_store

SCOPES = (None, 'ada', 'bob')


class Two(NamedTuple):
    """The same thing, or the same outcome, of upstream's store and of ours."""

    theirs: Any
    ours: Any


@dataclass
class Pair:
    """Upstream's store and ours, which are told the same."""

    theirs: ConversationStore
    ours: ConversationStore
    random: random.Random
    names: list[str] = field(default_factory=lambda: [new_id() for _ in range(4)])
    spread: str = field(default_factory=new_id)
    held: list[Two] = field(default_factory=list[Two])
    """Conversations that were loaded or made, old ones too."""
    entries: list[Two] = field(default_factory=list[Two])
    """Ids of entries that were stored once."""
    numbers: Any = field(default_factory=count)
    outcomes: set[str] = field(default_factory=set[str])

    async def both(self, name: str, do: Callable[[int, ConversationStore], Awaitable[Any]]) -> Two:
        """Do the same with each: both or neither goes through."""
        done: list[Any] = []
        for number, store in enumerate((self.theirs, self.ours)):
            try:
                done.append(await do(number, store))
            except UserError as e:
                is_conflict = isinstance(e, ConversationConflict)  # ours may say more
                done.append(ConversationConflict if is_conflict else type(e))
        two = Two(*done)
        refused = [each if isinstance(each, type) else None for each in two]
        assert refused[0] == refused[1], f'{name}: {two}'
        self.outcomes.add(f'{name} {refused[0].__name__ if refused[0] else "done"}')
        return two

    def some_name(self) -> str:
        return self.random.choice(self.names)

    def scope(self, name: str | None = None) -> str | None:
        # Where it is `None` anything goes, and a wrong one now and then is not there.
        found = self.random.choice(SCOPES) if self.random.random() < 0.3 else None
        return None if found is None else f'{found} {self.spread}'

    def said(self) -> list[ModelMessage]:
        made: list[ModelMessage] = []
        for _ in range(self.random.randint(1, 3)):
            number = next(self.numbers)
            made.append(ask(f'q {number}') if self.random.random() < 0.5 else say(f'a {number}'))
        return made

    def hold(self, two: Two) -> None:
        if isinstance(two.ours, Conversation):
            assert two.ours.messages == two.theirs.messages
            assert two.ours.new_message_index == two.theirs.new_message_index
            assert two.ours.usage == two.theirs.usage
            assert two.ours.deferred_tool_requests == two.theirs.deferred_tool_requests
            assert (two.ours.revision is None) == (two.theirs.revision is None)
            self.held.append(two)
        else:
            assert two.ours == two.theirs

    # --- operations -------------------------------------------------------------------------------

    async def make(self) -> None:
        """Save one that was not loaded."""
        name, said = self.some_name(), self.said()
        await self.save(
            Two(*(Conversation(messages=list(said), conversation_id=name) for _ in range(2)))
        )

    async def save(self, two: Two) -> None:
        scope = self.scope()
        waits = self.random.random() < 0.2
        for talk in two:
            talk.usage = talk.usage + RunUsage(requests=1)
            call = ToolCallPart('pay', {}, tool_call_id='p')
            talk.deferred_tool_requests = DeferredToolRequests(calls=[call]) if waits else None
        done = await self.both('save', lambda n, store: store.save(two[n], scope=scope))
        if not isinstance(done.ours, type):
            assert [e.message for e in done.ours] == [e.message for e in done.theirs]
            self.entries += [Two(a.id, b.id) for a, b in zip(done.theirs, done.ours, strict=True)]
        self.hold(two)

    def some_held(self) -> Two:
        # The newest is most often the one whose revision is stored.
        recent = self.held[-6:] if self.random.random() < 0.8 else self.held
        return self.random.choice(recent)

    async def extend(self) -> None:
        two, said = self.some_held(), self.said()
        for talk in two:
            talk.messages += said
        await self.save(two)

    async def rewrite(self) -> None:
        two, said = self.some_held(), self.said()
        start = self.random.randint(0, len(two.ours.messages))
        stop = self.random.choice((None, start, start + 1))
        for talk in two:
            talk.messages[start:stop] = said
        await self.save(two)

    async def forget_index(self) -> None:
        for talk in self.some_held():
            talk.new_message_index = None

    async def load(self) -> None:
        name, scope = self.some_name(), self.scope()
        limit = self.random.choice((None, None, 0, 1, 2, 3))
        self.hold(
            await self.both('load', lambda _, store: store.load(name, limit=limit, scope=scope))
        )

    def place(self) -> list[dict[str, Any]]:
        if self.entries and self.random.random() < 0.6:
            entry = self.random.choice(self.entries[-12:])
            return [{'from_entry': each} for each in entry]
        return [{'at': self.random.randint(0, 8)}] * 2

    async def branch(self) -> None:
        two, place, scope = self.some_held(), self.place(), self.scope()
        self.hold(
            await self.both(
                'branch',
                lambda n, store: store.branch(
                    two[n].conversation_id,
                    expected_revision=two[n].revision,
                    scope=scope,
                    **place[n],
                ),
            )
        )

    async def fork(self) -> None:
        name, new, place = self.some_name(), self.some_name(), self.place()
        scope, source_scope = self.scope(), self.scope()
        if self.random.random() < 0.5:
            new = new_id()
            self.names.append(new)
        self.hold(
            await self.both(
                'fork',
                lambda n, store: store.fork(
                    name,
                    new_conversation_id=new,
                    scope=scope,
                    source_scope=source_scope,
                    **place[n],
                ),
            )
        )

    async def delete(self) -> None:
        name, scope = self.some_name(), self.scope()
        await self.both('delete', lambda _, store: store.delete(name, scope=scope))

    # --- looking ----------------------------------------------------------------------------------

    async def check(self) -> None:
        """What can be seen of the two is the same."""
        for name in self.names:
            records = await self.both('look', lambda _, store, n=name: store.read_record(n))
            if records.theirs is None:
                assert records.ours is None
                continue
            seen = [
                await self._seen(store, record)
                for store, record in zip((self.theirs, self.ours), records, strict=True)
            ]
            assert seen[0] == seen[1]
        for scope in (f'ada {self.spread}', f'bob {self.spread}'):
            lists = await self.both('list', lambda _, s, c=scope: s.list_conversations(scope=c))
            theirs, ours = ([record.conversation_id for record in each] for each in lists)
            assert ours == theirs
        # What nobody reaches is gone in both, and only that.
        for entry in self.entries:
            assert await _has(self.theirs, entry.theirs) == await _has(self.ours, entry.ours)

    async def _seen(self, store: ConversationStore, record: ConversationRecord) -> Any:
        lines: list[list[ConversationEntry]] = [
            await store.read_history(tip) for tip in (record.head_id, *record.branches)
        ]
        cut = None if record.forked_at is None else True
        return (
            [[entry.message for entry in line] for line in lines],
            record.usage,
            record.deferred_tool_requests,
            record.scope,
            record.forked_from,
            cut,
        )


async def _has(store: ConversationStore, entry_id: str) -> bool:
    try:
        await store.read_entry(entry_id)
    except LookupError:
        return False
    return True


async def test_any_sequence_of_operations(store: Store) -> None:
    outcomes: set[str] = set()
    for seed in range(8):
        pair = Pair(InMemoryConversationStore(), store.conversations, random.Random(seed))
        await pair.make()
        operations = [pair.extend] * 6 + [pair.load] * 4
        operations += [pair.branch, pair.fork, pair.rewrite] * 2
        operations += [pair.make, pair.delete, pair.forget_index]
        for step in range(100):
            await pair.random.choice(operations)()
            if step % 10 == 0:
                await pair.check()
        await pair.check()
        outcomes |= pair.outcomes
    for operation in ('branch', 'fork'):
        for outcome in ('done', 'ConversationConflict', 'UserError'):
            assert f'{operation} {outcome}' in outcomes
    assert {'save done', 'save ConversationConflict'} <= outcomes
