"""A long history is read in parts, while something else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from graphkeep import DamagedConversationError, Store, UnreadableMessageError
from graphkeep.agents import Conversations, histories
from graphkeep.conversations import BlobPlace, EntriesQuery, Line, StoredEntries, StoredEntry
from tests.classic.conftest import every_store, in_memory

from .talking import ask, conversation, ids, load, messages, turns

MESSAGES = turns(*range(12))
ALL = len(MESSAGES)


class Watched:
    """Sees what is asked of a store, and does something after one of the questions."""

    def __init__(self, store: Store, *, stretch: int | None) -> None:
        self.asked: list[EntriesQuery] = []
        self.after: dict[int, Callable[[], Awaitable[Any]]] = {}
        self._store, self._entries = store, store._entries
        vars(store).update(_stretch=stretch, _entries=self.entries)

    async def entries(self, query: EntriesQuery) -> StoredEntries | None:
        self.asked.append(query)
        found = await self._entries(query)
        if doing := self.after.pop(len(self.asked), None):
            await doing()
        return found


async def saved(store: Store) -> str:
    talk = conversation(*MESSAGES)
    await store.conversations.save(talk)
    return talk.conversation_id


@every_store
@pytest.mark.parametrize('stretch', [2, 3, 8, 10, 16, 23, 24, 25, 1_000, None])
async def test_in_parts_it_is_the_same(store: Store, stretch: int | None) -> None:
    name = await saved(store)
    names = await ids(store.conversations, name)
    watched = Watched(store, stretch=stretch)
    assert await messages(store.conversations, name) == MESSAGES
    assert len(watched.asked) == (1 if stretch is None else -(-ALL // stretch))
    assert await ids(store.conversations, name) == names
    for limit in (1, 2, 7, ALL - 1, ALL, ALL + 1):
        watched.asked.clear()
        talk = await load(store.conversations, name, limit)
        assert talk.messages == MESSAGES[-limit:]
        assert sum(query.limit or ALL for query in watched.asked) <= max(ALL, limit)


@every_store
@pytest.mark.parametrize('when', range(1, 4))
async def test_a_history_that_is_deleted_while_it_is_read(store: Store, when: int) -> None:
    name = await saved(store)
    watched = Watched(store, stretch=8)
    kept = store.conversations
    watched.after[when] = lambda: kept.delete(name)
    found = await kept.load(name)
    assert (found is None) == (when < 3)
    assert await kept.load(name) is None


@every_store
async def test_a_conversation_that_is_written_anew_while_it_is_read(store: Store) -> None:
    name = await saved(store)
    watched = Watched(store, stretch=8)
    kept = store.conversations

    async def anew() -> None:
        await kept.delete(name)
        await kept.save(conversation(*MESSAGES[2:6], name=name))

    watched.after[1] = anew
    assert await messages(kept, name) == MESSAGES[2:6]


@every_store
async def test_what_is_left_out_does_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await saved(store)
    Watched(store, stretch=4)
    skipping = Conversations(store, on_unreadable='skip')
    unreadable = {(await ids(store.conversations, name))[n] for n in (3, 9, 10, 16, 23)}
    damage(monkeypatch, skipping, unreadable)
    readable = [m for n, m in enumerate(MESSAGES) if n not in (3, 9, 10, 16, 23)]
    for limit in (1, 2, 5, 11, 18, 19, 20, 100):
        assert (await load(skipping, name, limit)).messages == readable[-limit:]


def damage(monkeypatch: pytest.MonkeyPatch, kept: Conversations, unreadable: set[str]) -> None:
    """Have a codec refuse messages."""
    one, many = kept.codec.load, kept.codec.load_all

    def load_one(entry: StoredEntry, blobs: Any) -> Any:
        if entry.entry_id in unreadable:
            raise UnreadableMessageError(
                entry_id=entry.entry_id, position=entry.position, library='9', here='1', reason='?'
            )
        return one(entry, blobs)

    def load_all(line: Line, blobs: Any) -> Any:
        if unreadable.isdisjoint(line.ids):
            return many(line, blobs)
        return [load_one(entry, blobs) for entry in line]

    monkeypatch.setattr(kept.codec, 'load', load_one)
    monkeypatch.setattr(kept.codec, 'load_all', load_all)


@every_store
async def test_an_error_leaves_no_question_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await saved(store)
    Watched(store, stretch=4)
    kept = store.conversations
    [*_, last] = await ids(kept, name)
    damage(monkeypatch, kept, {last})
    before = asyncio.all_tasks()
    with pytest.raises(UnreadableMessageError, match=last):
        await kept.load(name)
    assert asyncio.all_tasks() == before
    monkeypatch.undo()
    assert await messages(kept, name) == MESSAGES


@in_memory
async def test_of_two_errors_none_is_lost_or_logged(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = await saved(store)
    watched = Watched(store, stretch=4)
    kept = store.conversations
    damage(monkeypatch, kept, {(await ids(kept, name))[-1]})
    watched.asked.clear()

    async def fails() -> None:
        raise DamagedConversationError(entry_id='x', reason='it is gone')

    monkeypatch.setattr(histories, '_SLICE', 1)
    watched.after[2] = fails
    with pytest.raises(UnreadableMessageError):
        await kept.load(name)
    watched.asked.clear()
    watched.after[3] = fails
    monkeypatch.undo()
    with pytest.raises(DamagedConversationError, match='it is gone'):
        await kept.load(name)
    assert not caplog.records


@every_store
@pytest.mark.parametrize('when', range(1, 4))
async def test_one_who_waits_may_be_cancelled(store: Store, when: int) -> None:
    name = await saved(store)
    watched = Watched(store, stretch=8)
    kept = store.conversations
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(kept.load(name))

    async def cancels() -> None:
        waiting.cancel()

    watched.after[when] = cancels
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
    assert await messages(kept, name) == MESSAGES


@in_memory
async def test_others_have_their_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, '_SLICE', 50)
    name = conversation(*(ask(f'{n}') for n in range(1_000)))
    await store.conversations.save(name)
    seen = 0

    async def ticks() -> None:
        nonlocal seen
        while True:
            seen += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(ticks())
    await load(store.conversations, name.conversation_id)
    ticking.cancel()
    assert seen >= 19


class Bent(Watched):
    """A foreign hand has bent the chain, between two parts."""

    def __init__(self, store: Store, *, stretch: int, at: str, to: str) -> None:
        super().__init__(store, stretch=stretch)
        self.at, self.to = at, to

    async def entries(self, query: EntriesQuery) -> StoredEntries | None:
        head = self.to if query.head_id == self.at else query.head_id
        return await super().entries(EntriesQuery(head_id=head, limit=query.limit))


@every_store
@pytest.mark.parametrize('to', [0, 8, 14, 16, 20, 23])
async def test_a_chain_that_is_bent_between_two_parts_is_damaged(store: Store, to: int) -> None:
    name = await saved(store)
    names = await ids(store.conversations, name)
    bent = Bent(store, stretch=8, at=names[15], to=names[to])
    with pytest.raises(DamagedConversationError, match='no entry that fits') as caught:
        await store.conversations.read_history(names[-1])
    assert caught.value.entry_id == names[16]
    assert len(bent.asked) <= 3


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_is_its_entries() -> None:
    entries = [
        StoredEntry(f'e{n}', f'e{n - 1}' if n else 'p', b'%d' % n, f'v{n // 2}', (), n + 7)
        for n in range(6)
    ]
    line = Line.of(entries)
    assert list(line) == entries
    assert line[-1] == entries[-1]
    assert line == Line(tuple(line.ids), line.messages, line.libraries, {}, 'p', 7)
    assert line != Line(line.ids, line.messages, line.libraries, {}, 'p', 8)
    assert line != line[:-1]
    assert line != entries
    assert [entry.parent_id for entry in entries] == line.parents
    for start in range(-7, 8):
        for stop in (*range(-7, 8), None):
            assert list(line[start:stop]) == entries[start:stop]
    assert list(line[2:5][1:]) == entries[3:5]
    assert list(Line.of([])) == Line.of([]).parents == []
    with pytest.raises(IndexError):
        line[6]
    [one, two] = (BlobPlace(name * 64, 'base64', 0) for name in 'ab')
    # Whatever the order in which a store has found them.
    given = {5: (two,), 4: (one, two), 1: (two,), 0: ()}
    needing = Line(line.ids, line.messages, line.libraries, given)
    assert needing.needs == {'b' * 64: 'e1', 'a' * 64: 'e4'}
    assert needing[4:].needs == {'a' * 64: 'e4', 'b' * 64: 'e4'}
    with pytest.raises(ValueError, match='no gaps'):
        line[::2]
