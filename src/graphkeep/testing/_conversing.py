"""Contract: conversations and the entries that they share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from ..conversations import ConversationQuery, EntriesQuery, StoredConversation
from ..store import Store
from ..stores.memory import MemoryStore
from ._base import Contract
from ._calls import eventually
from ._talks import Talk, entry, ids, line, row, same, write

__all__ = ('Conversing',)


async def only(store: Store, conversation_id: str) -> StoredConversation | None:
    """The conversation with this id."""
    found = await store.find_conversations(ConversationQuery(conversation_id=conversation_id))
    return found[0] if found else None


class Conversing(Contract):
    """Rows that are replaced, entries that are not."""

    async def test_a_conversation_comes_back_as_it_was(self) -> None:
        async with self.make_store() as store:
            assert await only(store, 'c') is None
            assert await store.find_entries(EntriesQuery(head_id='a')) is None
            first = row('c', 'r1', 'b', scope='ada', at=1.000001, data=b'{"a": 1.0,"b":"\\u0000"}')
            odd = b'{"blob":"","text":"\\u0000 \\ud800 \\u00e9 \xc3\xa9","n":1.0,"n2":1E2}'
            entries = [entry('a', data=odd, blob=b'\0\xff'), entry('b', 'a')]
            assert await store.write_conversation(write(first, entries, blobs=[b'\0\xff']))
        if not self.outlives_process:
            return
        async with self.make_store() as store:
            assert await only(store, 'c') == first
            found = await store.find_entries(EntriesQuery(head_id='b'))
            assert found is not None
            assert list(found.entries) == [
                each._replace(position=n) for n, each in enumerate(entries)
            ]
            assert dict(found.blobs) == {entries[0].hashes[0]: b'\0\xff'}
            alone = await store.find_entries(EntriesQuery(head_id='b', limit=1))
            assert alone is not None
            assert [list(alone.entries), dict(alone.blobs)] == [
                [entries[1]._replace(position=1)],
                {},
            ]

    async def test_a_conversation_grows_and_is_replaced(self) -> None:
        async with self.make_store() as store:
            assert await store.write_conversation(write(row('c', 'r1')))
            assert await only(store, 'c') == row('c', 'r1')
            second = row('c', 'r2', 'b', at=5, scope='x', data=b'{"n":2}')
            assert await store.write_conversation(write(second, line('a', 'b'), expects='r1'))
            third = row('c', 'r3', 'd', at=4)
            assert await store.write_conversation(
                write(third, line('c', 'd', after='b'), expects='r2')
            )
            assert await only(store, 'c') == third
            assert await ids(store, 'd') == ['a', 'b', 'c', 'd']
            assert await ids(store, 'b') == ['a', 'b']

    async def test_only_the_expected_revision_is_replaced(self) -> None:
        async with self.make_store() as store:
            assert await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))
            new = line('b', after='a')
            for expects in (None, 'r0', 'R1', "r1' OR 1=1"):
                refused = write(row('c', 'r2', 'b'), new, expects=expects, blobs=[b'x'])
                assert not await store.write_conversation(refused)
            assert not await store.write_conversation(
                write(row('other', 'r2', 'b'), new, expects='r1')
            )
            assert await only(store, 'c') == row('c', 'r1', 'a')
            assert await only(store, 'other') is None
            assert await ids(store, 'b') is None

    async def test_the_same_write_again_has_gone_through(self) -> None:
        async with self.make_store() as store:
            writes = [
                write(row('c', 'r1', 'a'), line('a')),
                write(row('c', 'r2', 'b'), line('b', after='a'), expects='r1'),
                write(row('c', 'r3', 'a', 'b'), expects='r2'),
                write(row('c', 'r4', 'a'), expects='r3'),
            ]
            for each in writes:
                assert await store.write_conversation(each)
                before = await only(store, 'c'), await ids(store, 'a'), await ids(store, 'b')
                assert await store.write_conversation(each)
                after = await only(store, 'c'), await ids(store, 'a'), await ids(store, 'b')
                assert before == after
            assert await ids(store, 'a') == ['a']
            assert await ids(store, 'b') is None
            assert await store.delete_conversation('c', revision='r4')
            assert await ids(store, 'a') is None

    async def test_a_revision_may_stay_as_it_is(self) -> None:
        async with self.make_store() as store:
            await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))
            again = row('c', 'r1', 'b', data=b'{"n":2}')
            assert await store.write_conversation(write(again, line('b', after='a'), expects='r1'))
            assert await only(store, 'c') == again
            assert await ids(store, 'b') == ['a', 'b']

    async def test_what_stands_on_nothing_is_refused(self) -> None:
        async with self.make_store() as store:
            for refused in (
                write(row('c', 'r1', 'gone')),
                write(row('c', 'r1', 'a', 'gone'), line('a')),
                write(row('c', 'r1', 'a'), line('a', after='gone')),
            ):
                assert not await store.write_conversation(refused)
                assert await only(store, 'c') is None
                assert await ids(store, 'a') is None

    async def test_an_entry_is_never_changed(self) -> None:
        async with self.make_store() as store:
            await store.write_conversation(write(row('c', 'r1', 'b'), line('a', 'b')))
            other = [entry('b', 'a', data=b'{"other":1}')]
            assert not await store.write_conversation(write(row('d', 'r1', 'b'), other))
            moved = [entry('b', None)]
            assert not await store.write_conversation(write(row('d', 'r1', 'b'), moved))
            assert await only(store, 'd') is None
            assert await store.write_conversation(write(row('d', 'r1', 'b'), [entry('b', 'a')]))
            assert await store.delete_conversation('c', revision='r1')
            assert await ids(store, 'b') == ['a', 'b']
            assert await store.delete_conversation('d', revision='r1')
            assert await ids(store, 'a') is None

    async def test_what_is_shared_stays_until_the_last_has_gone(self) -> None:
        async with self.make_store() as store:
            blob = b'picture'
            shared = [entry('a', blob=blob), entry('b', 'a'), entry('c', 'b', blob=blob)]
            await store.write_conversation(write(row('one', 'r1', 'c'), shared, blobs=[blob]))
            assert await store.write_conversation(write(row('two', 'r1', 'b')))
            more = [entry('x', 'b', blob=blob)]
            assert await store.write_conversation(
                write(row('three', 'r1', 'x'), more, blobs=[blob])
            )
            assert await store.delete_conversation('one', revision='r1')
            assert await ids(store, 'c') is None
            assert await ids(store, 'x') == ['a', 'b', 'x']
            assert await store.delete_conversation('three', revision='r1')
            assert await ids(store, 'x') is None
            found = await store.find_entries(EntriesQuery(head_id='b'))
            assert found is not None
            assert list(found.blobs.values()) == [blob]
            assert await store.delete_conversation('two', revision='r1')
            assert await ids(store, 'a') is None
            assert await ids(store, 'b') is None

    async def test_only_what_is_there_is_deleted(self) -> None:
        async with self.make_store() as store:
            await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))
            assert not await store.delete_conversation('c', revision='r0')
            assert not await store.delete_conversation('d', revision='r1')
            assert await ids(store, 'a') == ['a']
            assert await store.delete_conversation('c', revision='r1')
            assert not await store.delete_conversation('c', revision='r1')
            assert await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))

    async def test_branches_are_kept_and_released(self) -> None:
        async with self.make_store() as store:
            await store.write_conversation(write(row('c', 'r1', 'c'), line('a', 'b', 'c')))
            branch = line('x', 'y', after='a')
            assert await store.write_conversation(
                write(row('c', 'r2', 'y', 'c'), branch, expects='r1')
            )
            assert await ids(store, 'c') == ['a', 'b', 'c']
            assert await ids(store, 'y') == ['a', 'x', 'y']
            assert await store.write_conversation(write(row('c', 'r3', 'x', 'c'), expects='r2'))
            assert await ids(store, 'y') is None
            assert await store.write_conversation(write(row('c', 'r4', 'a'), expects='r3'))
            assert [await ids(store, e) for e in 'abcx'] == [['a'], None, None, None]
            assert await store.write_conversation(write(row('c', 'r5'), expects='r4'))
            assert await ids(store, 'a') is None

    async def test_a_part_of_a_history(self) -> None:
        async with self.make_store() as store:
            names = [f'e{n}' for n in range(7)]
            await store.write_conversation(write(row('c', 'r1', 'e6'), line(*names)))
            assert await ids(store, 'e6') == names
            for limit in (0, 1, 3, 7, 100):
                assert await ids(store, 'e6', limit=limit) == names[max(0, 7 - limit) :]
            assert await ids(store, 'e3', limit=2) == ['e2', 'e3']
            for start, stop in ((0, 2), (2, 5), (5, 100), (7, 9), (3, 3), (4, 2)):
                assert await ids(store, 'e6', start=start, stop=stop) == names[start:stop]
            assert await ids(store, 'e6', start=5) == names[5:]
            newest = await store.find_entries(EntriesQuery(head_id='e4', limit=1))
            assert newest is not None
            assert newest.entries[0].position == 4

    async def test_a_long_history(self) -> None:
        async with self.make_store() as store:
            names = [str(uuid4()) for _ in range(2_500)]
            assert await store.write_conversation(write(row('c', 'r1', names[-1]), line(*names)))
            assert await ids(store, names[-1]) == names
            assert await ids(store, names[-1], start=1_000, stop=1_003) == names[1_000:1_003]
            assert await store.delete_conversation('c', revision='r1')
            assert await ids(store, names[0]) is None

    async def test_conversations_are_listed_last_written_first(self) -> None:
        async with self.make_store() as store:
            times = {'a': 3, 'b': 1, 'z': 3, 'é': 3, 'd': 2}
            for n, (name, at) in enumerate(times.items()):
                scope = 'odd' if n % 2 else None
                await store.write_conversation(write(row(name, 'r', at=at, scope=scope)))

            async def found(**query: object) -> str:
                asked = ConversationQuery(**query)  # type: ignore[arg-type]
                return ''.join(
                    each.conversation_id for each in await store.find_conversations(asked)
                )

            assert await found() == 'ézadb'
            assert await found(limit=2) == 'éz'
            assert await found(scope='odd') == 'éb'
            assert await found(scope='odd', limit=1) == 'é'
            for hostile in ("'; DROP TABLE x; --", '%', '*', '{}', 'a"b', 'odd\n', 'ODD', ':odd'):
                assert await found(scope=hostile) == ''
                assert await found(conversation_id=hostile) == ''
            pages, after = '', None
            while page := await store.find_conversations(ConversationQuery(after=after, limit=2)):
                pages += ''.join(each.conversation_id for each in page)
                after = page[-1].updated_at, page[-1].conversation_id
            assert pages == 'ézadb'
            await store.write_conversation(write(row('b', 's', at=9, scope='new'), expects='r'))
            assert await found() == 'bézad'
            assert await found(scope='odd') == 'é'
            assert await found(scope='new') == 'b'
            await store.delete_conversation('b', revision='s')
            assert await found(scope='new') == ''

    async def test_any_text_can_be_a_name(self) -> None:
        async with self.make_store() as store:
            upper = '0192F0C1-7E5B-7CC3-9A1B-0123456789AB'
            hostile = (
                "'; DROP TABLE x; --", '"', '{}', '{a}:b', '\n', '%', '\\', 'é', '𝒳', ' ', '0',
                'x' * 512, 'x' * 14, 'x' * 15, 'x' * 16, 'é' * 7 + 'x', upper, upper.lower(),
            )  # fmt: skip
            for n, name in enumerate(hostile):
                new = row(name, name, name, scope=name, at=n)
                assert await store.write_conversation(write(new, [entry(name)]))
            for n, name in enumerate(hostile):
                assert await only(store, name) == row(name, name, name, scope=name, at=n)
                assert await ids(store, name) == [name]
                in_scope = await store.find_conversations(ConversationQuery(scope=name))
                assert [each.conversation_id for each in in_scope] == [name]
            for name in hostile:
                assert await store.delete_conversation(name, revision=name)
                assert await ids(store, name) is None

    async def test_what_cannot_be_a_name_is_refused(self) -> None:
        async with self.make_store() as store:
            for name in ('', '\0', 'a\0b', '\ud800', 'x' * 513):
                with pytest.raises(ValueError, match='conversation_id'):
                    await store.write_conversation(write(row(name, 'r')))
                with pytest.raises(ValueError, match='conversation_id'):
                    await only(store, name)
                with pytest.raises(ValueError, match='conversation_id'):
                    await store.delete_conversation(name, revision='r')
                with pytest.raises(ValueError, match='scope'):
                    await store.find_conversations(ConversationQuery(scope=name))
                with pytest.raises(ValueError, match='scope'):
                    await store.write_conversation(write(row('c', 'r', scope=name)))
                with pytest.raises(ValueError, match='entry_id'):
                    await store.write_conversation(write(row('c', 'r'), [entry(name)]))
                with pytest.raises(ValueError, match='entry_id'):
                    await ids(store, name)
            with pytest.raises(ValueError, match='twice'):
                await store.write_conversation(write(row('c', 'r'), [entry('a'), entry('a')]))
            with pytest.raises(ValueError, match='before the one'):
                await store.write_conversation(write(row('c', 'r'), [entry('b', 'a'), entry('a')]))
            assert await store.find_conversations(ConversationQuery()) == []

    async def test_what_has_expired_is_not_there(self) -> None:
        async with self.make_store() as store:
            await store.write_conversation(write(row('stays', 'r1', 'a'), line('a'), ttl=3600))
            shared = line('b', after='a')
            await store.write_conversation(write(row('goes', 'r1', 'b', at=1), shared, ttl=0.3))
            assert await store.write_conversation(write(row('shares', 'r1', 'a', at=2)))
            at_once = write(row('too', 'r1', at=3), ttl=0)
            assert await store.write_conversation(at_once)

            async def gone() -> bool:
                return await only(store, 'goes') is None

            await eventually(gone, what='the ttl')
            left = await store.find_conversations(ConversationQuery())
            assert [each.conversation_id for each in left] == ['shares', 'stays']
            expired = await store.find_conversations(ConversationQuery(expired=True))
            assert [each.conversation_id for each in expired] == ['too', 'goes']
            one = await store.find_conversations(ConversationQuery(expired=True, limit=1))
            assert one == expired[:1]
            stale = write(row('goes', 'r2', 'b'), expects='r1')
            assert not await store.write_conversation(stale)
            # Nothing may stand on what only it had.
            assert not await store.write_conversation(write(row('goes', 'r2', 'b')))
            assert await store.write_conversation(write(row('goes', 'r2', 'x'), line('x')))
            assert await ids(store, 'b') is None
            assert await ids(store, 'a') == ['a']
            assert await store.delete_conversation('too', revision='r1')
            assert await store.find_conversations(ConversationQuery(expired=True)) == []
            # A write says anew how long it stays.
            brief = write(row('goes', 'r3', 'x'), expects='r2', ttl=0)
            assert await store.write_conversation(brief)
            assert await only(store, 'goes') is None

    async def test_of_writers_at_once_one_wins(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            await store.write_conversation(write(row('c', 'r0', 'a'), line('a')))
            parent, current = 'a', 'r0'
            for turn in range(5):
                attempts = [
                    write(
                        row('c', f'r{turn + 1}-{n}', f'e{turn}-{n}'),
                        line(f'e{turn}-{n}', after=parent),
                        expects=current,
                    )
                    for n in range(8)
                ]
                won = await asyncio.gather(
                    *((store, other)[n % 2].write_conversation(w) for n, w in enumerate(attempts))
                )
                assert won.count(True) == 1
                winner = won.index(True)
                current, parent = f'r{turn + 1}-{winner}', f'e{turn}-{winner}'
                for n in range(8):
                    there = await ids(store, f'e{turn}-{n}')
                    assert (there is not None) == (n == winner)
            found = await ids(store, parent)
            assert found is not None
            assert len(found) == 6
            made = await asyncio.gather(
                *(
                    (store, other)[n % 2].write_conversation(write(row('new', f'r{n}')))
                    for n in range(8)
                )
            )
            assert made.count(True) == 1

    async def test_a_fork_and_a_delete_at_once(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(12):
                names = [f'{n}-{k}' for k in range(6)]
                await store.write_conversation(write(row('c', 'r', names[-1]), line(*names)))
                at = names[n % 6]
                more = line(f'{n}-x', after=at) if n % 2 else []
                tip = more[0].entry_id if more else at
                fork = write(row('fork', 'r', tip), more)
                deleted, forked = await asyncio.gather(
                    store.delete_conversation('c', revision='r'), other.write_conversation(fork)
                )
                assert deleted
                kept = names[: n % 6 + 1] + [each.entry_id for each in more]
                assert await ids(store, tip) == (kept if forked else None)
                assert (await only(store, 'fork') is not None) == forked
                for name in names[n % 6 + 1 :]:
                    assert await ids(store, name) is None
                if forked:
                    assert await store.delete_conversation('fork', revision='r')
                for name in (*names, tip):
                    assert await ids(store, name) is None

    async def test_deletes_at_once_leave_nothing(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(6):
                blob = f'{n}'.encode()
                trunk = [entry(f'{n}-a', blob=blob), *line(f'{n}-b', f'{n}-c', after=f'{n}-a')]
                await store.write_conversation(write(row('0', 'r', f'{n}-c'), trunk, blobs=[blob]))
                for k in range(1, 6):
                    at = f'{n}-{"abc"[k % 3]}'
                    own = [entry(f'{n}-{k}', at, blob=blob)]
                    assert await store.write_conversation(
                        write(row(str(k), 'r', f'{n}-{k}'), own, blobs=[blob])
                    )
                assert all(
                    await asyncio.gather(
                        *(
                            (store, other)[k % 2].delete_conversation(str(k), revision='r')
                            for k in range(6)
                        )
                    )
                )
                for name in 'abc12345':
                    assert await ids(store, f'{n}-{name}') is None

    async def test_any_sequence_comes_to_what_memory_has(self) -> None:
        for seed in range(3):
            memory, walk = MemoryStore(), Talk(seed)
            async with memory, self.make_store() as store:
                for each in await store.find_conversations(ConversationQuery()):
                    await store.delete_conversation(each.conversation_id, revision=each.revision)
                for n in range(60):
                    await walk.step(memory, store)
                    if n % 5 == 4:
                        await same(memory, store, walk.entry_ids[-40:])
                await same(memory, store, walk.entry_ids)
                for each in await memory.find_conversations(ConversationQuery()):
                    for one in (memory, store):
                        assert await one.delete_conversation(
                            each.conversation_id, revision=each.revision
                        )
                await same(memory, store, walk.entry_ids)

    async def test_the_clock_of_a_writer_may_be_odd(self) -> None:
        async with self.make_store() as store:
            early = replace(row('c', 'r'), updated_at=row('c', 'r').updated_at - timedelta(9999))
            late = replace(row('d', 'r'), updated_at=row('d', 'r').updated_at + timedelta(9999))
            assert await store.write_conversation(write(early))
            assert await store.write_conversation(write(late))
            assert await store.find_conversations(ConversationQuery()) == [late, early]
