"""Several writers of one conversation at once, and writers that die: all or nothing, never both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationEntry
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage

from graphkeep import Store
from graphkeep.agents import Conversations
from tests.builder.dying import Dead, Death, Moment, mortal
from tests.classic.conftest import MakeStore, every_store

from .talking import ask, branches, conversation, load, messages, new_id, say, turns

pytestmark = every_store

ROUNDS = 12


class Interrupted(Conversations):
    """Something else happens between what an operation reads and what it writes."""

    between: Callable[[], Awaitable[Any]] | None = None

    async def meanwhile(self) -> None:
        between, self.between = self.between, None
        if between is not None:
            await between()

    async def write_record(self, *args: Any, **options: Any) -> None:
        await self.meanwhile()
        await super().write_record(*args, **options)


class InterruptedReading(Conversations):
    """Something else happens between what a reader reads of a conversation, and its history."""

    between: Callable[[], Awaitable[Any]] | None = None

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        between, self.between = self.between, None
        if between is not None:
            await between()
        return await super().read_history(head_id, limit=limit)


@pytest.fixture
def kept(store: Store) -> Conversations:
    return store.conversations


async def outcome(doing: Awaitable[Any]) -> str:
    try:
        await doing
    except UserError as e:
        return type(e).__name__
    return 'done'


async def has(kept: Conversations, entry_id: str) -> bool:
    try:
        await kept.read_entry(entry_id)
    except LookupError:
        return False
    return True


# --- at once --------------------------------------------------------------------------------------


async def test_one_of_two_writers_wins_and_nothing_of_the_other_stays(
    make_store: MakeStore,
) -> None:
    writers = [make_store().conversations for _ in range(2)]
    talk = conversation(*turns(0))
    name = talk.conversation_id
    await writers[0].save(talk)
    for _ in range(ROUNDS):
        record = await writers[0].read_record(name)
        assert record is not None
        entries = [
            ConversationEntry(parent_id=record.head_id, message=ask(f'from {n}')) for n in range(2)
        ]
        before = await messages(writers[0], name)
        loaded = [await load(writer, name) for writer in writers]
        for own, entry in zip(loaded, entries, strict=True):
            own.messages.append(entry.message)
        done = [
            await outcome(each)
            for each in [
                asyncio.ensure_future(writer.save(own))
                for writer, own in zip(writers, loaded, strict=True)
            ]
        ]
        assert sorted(done) == ['ConversationConflict', 'done']
        won = done.index('done')
        assert await messages(writers[0], name) == [*before, entries[won].message]


async def test_the_entries_of_a_loser_are_not_stored(make_store: MakeStore) -> None:
    writers = [make_store().conversations for _ in range(5)]
    name = new_id()
    await writers[0].save(conversation(*turns(0), name=name))
    for _ in range(ROUNDS):
        record = await writers[0].read_record(name)
        assert record is not None
        entries = [
            ConversationEntry(parent_id=record.head_id, message=ask(f'from {n}'))
            for n in range(len(writers))
        ]

        async def write(
            writer: Conversations, entry: ConversationEntry, now: str = record.revision
        ) -> str:
            own = await writer.read_record(name)
            assert own is not None
            own.head_id, own.revision = entry.id, new_id()
            return await outcome(
                writer.write_record(own, new_entries=[entry], expected_revision=now)
            )

        done = await asyncio.gather(*map(write, writers, entries))
        assert sorted(done) == ['ConversationConflict'] * 4 + ['done']
        assert [await has(writers[0], entry.id) for entry in entries] == [
            each == 'done' for each in done
        ]


async def test_writers_that_try_again_all_come_through(make_store: MakeStore) -> None:
    name, conflicts = new_id(), 0
    all_have_loaded = asyncio.Barrier(4)

    async def write(kept: Conversations, number: int) -> None:
        nonlocal conflicts
        for turn in range(3):
            for attempt in count():
                talk = await kept.load(name) or Conversation(conversation_id=name)
                talk.messages.append(ask(f'{number} {turn}'))
                if turn == attempt == 0:
                    await all_have_loaded.wait()
                if await outcome(kept.save(talk)) == 'done':
                    break
                conflicts += 1

    stores = [make_store().conversations for _ in range(4)]
    await asyncio.gather(*(write(kept, n) for n, kept in enumerate(stores)))
    said = [part.content for m in await messages(stores[0], name) for part in m.parts]
    assert sorted(str(each) for each in said) == sorted(
        f'{n} {turn}' for n in range(4) for turn in range(3)
    )
    for n in range(4):
        assert [each for each in said if str(each).startswith(str(n))] == [
            f'{n} {turn}' for turn in range(3)
        ]
    assert conflicts >= 3
    assert await branches(stores[0], name) == []


async def test_a_fork_or_its_origin_is_first(make_store: MakeStore) -> None:
    one, two = (make_store().conversations for _ in range(2))
    for _ in range(ROUNDS):
        talk = conversation(*turns(1, 2))
        await one.save(talk)
        fork = new_id()
        forked, _ = await asyncio.gather(
            outcome(two.fork(talk.conversation_id, at=3, new_conversation_id=fork)),
            outcome(one.delete(talk.conversation_id)),
        )
        assert await one.load(talk.conversation_id) is None
        if forked == 'done':
            assert await messages(one, fork) == talk.messages[:3]
        else:
            assert forked in ('ConversationConflict', 'UserError')
            assert await one.load(fork) is None


async def test_a_deletion_and_a_save_at_once_leave_nothing(make_store: MakeStore) -> None:
    one, two = (make_store().conversations for _ in range(2))
    for _ in range(ROUNDS):
        talk = conversation(*turns(1))
        entries = await one.save(talk)
        talk.messages += turns(2)
        await asyncio.gather(outcome(one.save(talk)), outcome(two.delete(talk.conversation_id)))
        assert await one.load(talk.conversation_id) is None
        assert not await has(one, entries[0].id)


async def test_a_branch_and_a_save_at_once(make_store: MakeStore) -> None:
    one, two = (make_store().conversations for _ in range(2))
    for _ in range(ROUNDS):
        talk = conversation(*turns(1))
        await one.save(talk)
        name, old, now = talk.conversation_id, talk.messages[:], talk.revision
        talk.messages += turns(2)
        done = await asyncio.gather(
            outcome(one.save(talk)), outcome(two.branch(name, at=1, expected_revision=now))
        )
        assert sorted(done) == ['ConversationConflict', 'done']
        if done[0] == 'done':
            assert await messages(one, name) == talk.messages
            assert await branches(one, name) == []
        else:
            assert await messages(one, name) == old[:1]
            assert await branches(one, name) == [old]


# --- in between -----------------------------------------------------------------------------------


async def change(kept: Conversations, name: str, how: str) -> None:
    talk = await load(kept, name)
    if how == 'delete':
        await kept.delete(name)
    elif how == 'clear':
        await kept.clear(name)
    elif how == 'branch':
        await kept.branch(name, at=1, expected_revision=talk.revision)
    elif how == 'replace':
        await kept.delete(name)
        await kept.save(conversation(*turns(8), name=name))
    else:
        talk.messages += turns(9)
        await kept.save(talk)


CHANGES = pytest.mark.parametrize('how', ['delete', 'clear', 'branch', 'replace', 'save'])


@CHANGES
async def test_what_changes_between_reading_and_writing_is_a_conflict(
    how: str, store: Store, kept: Conversations
) -> None:
    other = Interrupted(store)
    for operation in ('save', 'rewrite', 'branch'):
        talk = conversation(*turns(1))
        name = talk.conversation_id
        await kept.save(talk)
        now = talk.revision
        other.between = lambda name=name: change(kept, name, how)
        if operation == 'branch':
            doing = other.branch(name, at=1, expected_revision=now)
        else:
            talk.messages[2 if operation == 'save' else 0 :] = turns(3)
            doing = other.save(talk)
        assert await outcome(doing) == 'ConversationConflict'
        assert talk.revision == now
        found = await kept.load(name)
        if how == 'delete':
            assert found is None
        else:
            assert found is not None
            assert found.revision != now
            assert not {str(m.parts) for m in turns(3)} & {str(m.parts) for m in found.messages}


@CHANGES
async def test_a_fork_of_what_changes_is_what_was_there_or_a_conflict(
    how: str, store: Store, kept: Conversations
) -> None:
    other, talk = Interrupted(store), conversation(*turns(1))
    await kept.save(talk)
    other.between = lambda: change(kept, talk.conversation_id, how)
    fork = new_id()
    done = await outcome(other.fork(talk.conversation_id, new_conversation_id=fork))
    if how in ('save', 'branch'):
        assert done == 'done'
        assert await messages(kept, fork) == talk.messages
    else:  # its entries are gone
        assert done == 'ConversationConflict'
        assert await kept.load(fork) is None


@CHANGES
async def test_a_deletion_takes_what_came_in_between(
    how: str, store: Store, kept: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, talk = Interrupted(store), conversation(*turns(1))
    entries = await kept.save(talk, scope='ada')
    other.between = lambda: change(kept, talk.conversation_id, how)
    delete = store.delete_conversation

    async def late(*args: Any, **options: Any) -> bool:
        await other.meanwhile()
        return await delete(*args, **options)

    monkeypatch.setattr(store, 'delete_conversation', late)
    await other.delete(talk.conversation_id, scope='ada')
    assert other.between is None
    found = await kept.read_record(talk.conversation_id)
    if how == 'replace':  # the new one has another scope
        assert found is not None
    else:
        assert found is None
    assert not await has(kept, entries[0].id)


@CHANGES
async def test_a_reader_sees_one_state(how: str, store: Store, kept: Conversations) -> None:
    talk = conversation(*turns(1))
    name = talk.conversation_id
    await kept.save(talk)
    reader = InterruptedReading(store)
    reader.between = lambda: change(kept, name, how)
    loaded = await reader.load(name)
    after = await kept.load(name)
    if how in ('save', 'branch'):  # what was there can still be read
        assert loaded == talk
    else:
        assert loaded == after


# --- writers that die -----------------------------------------------------------------------------


@dataclass
class Scene:
    """A conversation with a branch that was left and a fork, and an operation on it."""

    kept: Conversations
    operation: str

    def __post_init__(self) -> None:
        self.name, self.fork, self.new = new_id(), new_id(), new_id()

    async def set(self) -> None:
        talk = conversation(*turns(1, 2), name=self.name)
        await self.kept.save(talk, scope='ada')
        self.left = talk.messages[:]
        talk = await self.kept.branch(self.name, at=3, expected_revision=talk.revision)
        talk.messages.append(say('other'))
        await self.kept.save(talk)
        forked = await self.kept.fork(self.name, at=2, new_conversation_id=self.fork)
        forked.messages += turns(5)
        await self.kept.save(forked)
        self.talk, self.now, self.more = talk, talk.revision, turns(6)
        self.forked = forked.messages[:]

    async def act(self, kept: Conversations) -> None:
        """Do it, by what the caller knew before."""
        if self.operation in ('save', 'rewrite'):
            start = 4 if self.operation == 'save' else 1
            talk = Conversation(
                messages=[*self.talk.messages[:start], *self.more],
                conversation_id=self.name,
                revision=self.now,
            )
            await kept.save(talk)
        elif self.operation == 'branch':
            await kept.branch(self.name, at=1, expected_revision=self.now)
        elif self.operation == 'fork':
            await kept.fork(self.name, at=3, new_conversation_id=self.new)
        elif self.operation == 'clear':
            await kept.clear(self.name)
        else:
            await kept.delete(self.name)

    async def seen(self) -> list[list[list[ModelMessage]] | None]:
        """The history and the branches of each conversation; the state of all."""
        state: list[list[list[ModelMessage]] | None] = []
        for name in (self.name, self.fork, self.new):
            found = await self.kept.load(name)
            lines = None if found is None else [found.messages, *await branches(self.kept, name)]
            state.append(lines)
        return state

    def expected(self) -> list[list[list[ModelMessage]] | None]:
        here = self.talk.messages
        fork: list[list[ModelMessage]] = [self.forked]
        if self.operation == 'save':
            return [[[*here, *self.more], self.left], fork, None]
        if self.operation == 'rewrite':
            return [[[*here[:1], *self.more], self.left, here], fork, None]
        if self.operation == 'branch':
            return [[here[:1], self.left, here], fork, None]
        if self.operation == 'fork':
            return [[here, self.left], fork, [here[:3]]]
        if self.operation == 'clear':
            return [[[]], fork, None]
        return [None, fork, None]


async def die_and_do_again(scene: Scene, open_again: MakeStore, death: Death) -> bool:
    """Whether the process died before the operation was over."""
    await scene.set()
    old = await scene.seen()
    assert old == [[scene.talk.messages, scene.left], [scene.forked], None]
    died = False
    async with mortal(open_again, death) as store:
        try:
            await scene.act(store.conversations)
        except Dead:
            died = True
    new = scene.expected()
    after = await scene.seen()
    assert after in ((old, new) if died else (new,))
    again = open_again(retry=0.0)
    try:
        # Who does not know that it went through is told so, and no other.
        conflict = after == new and scene.operation not in ('clear', 'delete')
        done = await outcome(scene.act(again.conversations))
        assert done == ('ConversationConflict' if conflict else 'done')
    finally:
        await again.close()
    assert await scene.seen() == new
    return died


@pytest.mark.parametrize('operation', ['save', 'rewrite', 'branch', 'fork', 'clear', 'delete'])
@pytest.mark.parametrize('moment', ['before', 'during', 'after'])
async def test_a_writer_dies_at_any_call_of_the_store(
    operation: str, moment: Moment, kept: Conversations, open_again: MakeStore
) -> None:
    for number in count(1):
        if not await die_and_do_again(Scene(kept, operation), open_again, Death(number, moment)):
            break
    assert number > 2
