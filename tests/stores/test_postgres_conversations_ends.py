"""What is special to Postgres about conversations: what ends half-way, many at once, pgbouncer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from graphkeep import StoreClosedError, StoreUnavailableError
from graphkeep.conversations import (
    ConversationQuery,
    packed_id,
)
from graphkeep.store import Store
from graphkeep.stores.postgres import PostgresStore
from graphkeep.testing import eventually
from graphkeep.testing._talks import Talk, entry, ids, line, row, write
from tests.stores.postgres_talks import STATEMENTS, WRONG, counts, stored
from tests.stores.postgres_tool import rows, tool

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]


@pytest.fixture
async def store(fresh_postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(fresh_postgres_url) as store:
        yield store


# --- ends, and many at once -----------------------------------------------------------------------


async def branches(store: Store) -> None:
    """`c` with two ends and blobs, `d` on its trunk."""
    trunk = [entry('a', blob=b'x'), entry('b', 'a', blob=b'y'), *line('p', 'q', after='b')]
    trunk.append(entry('z', 'b', blob=b'y'))
    await store.write_conversation(write(row('c', 'r1', 'q', 'z'), trunk, blobs=[b'x', b'y']))
    await store.write_conversation(write(row('d', 'r1', 'a')))


_CALLS: dict[str, Callable[[Store], Any]] = {
    'delete': lambda store: store._delete_conversation('c', 'r1'),
    'a save that removes': lambda store: store._write_conversation(
        write(row('c', 'r2', 'n'), [entry('n', 'a', blob=b'y')], expects='r1', blobs=[b'y'])
    ),
    'a save': lambda store: store._write_conversation(
        write(row('c', 'r2', 'n', 'z'), [entry('n', 'q', blob=b'y')], expects='r1', blobs=[b'y'])
    ),
}


@pytest.mark.parametrize('killed', [True, False], ids=['killed', 'error'])
@pytest.mark.parametrize('call', _CALLS)
async def test_what_ends_half_way_leaves_everything_or_nothing(
    fresh_postgres_url: str, monkeypatch: pytest.MonkeyPatch, call: str, killed: bool
) -> None:
    url = fresh_postgres_url
    left = -1
    real = {name: getattr(asyncpg.Connection, name) for name in ('execute', 'fetch', 'fetchrow')}

    def cut(name: str) -> Any:
        async def work(self: Any, query: str, *args: Any, **options: Any) -> Any:
            nonlocal left
            if query in STATEMENTS.values() or query in (
                'COMMIT;',
                'BEGIN ISOLATION LEVEL READ COMMITTED;',
            ):
                left -= 1
                if left == -1:
                    if killed:
                        async with tool(url) as other:
                            pid = self.get_server_pid()
                            await other.execute(f'SELECT pg_terminate_backend({pid}, 5000)')
                    else:
                        raise asyncpg.QueryCanceledError('enough')
            return await real[name](self, query, *args, **options)

        return work

    async with PostgresStore(url) as store:
        await branches(store)
        before = await stored(url)
    steps = 0
    while True:
        with monkeypatch.context() as patch:
            async with PostgresStore(url, min_size=0, max_size=1) as store:
                for name in real:
                    patch.setattr(asyncpg.Connection, name, cut(name))
                patch.setattr(
                    asyncpg.Connection,
                    'fetchval',
                    lambda self, q, *a, **o: _first(asyncpg.Connection.fetchrow(self, q, *a, **o)),
                )
                left = steps
                try:
                    assert await _CALLS[call](store)
                    break
                except StoreUnavailableError:
                    pass
                finally:
                    left = -1
        assert await stored(url) == before, steps
        steps += 1
    assert steps == 1 if call == 'a save' else steps >= 6
    assert await rows(url, WRONG) == []
    assert await stored(url) != before


async def _first(found: Any) -> Any:
    row = await found
    return None if row is None else row[0]


async def test_writers_of_the_same_conversations_leave_no_counter_wrong(
    fresh_postgres_url: str,
) -> None:
    url = fresh_postgres_url
    stores = [PostgresStore(url, retry=30) for _ in range(3)]
    for store in stores:
        await store.open()
    choose, made = random.Random(3), list[str]()

    async def works(store: Store, who: int) -> None:
        for turn in range(40):
            name = f'c{choose.randrange(5)}'
            found = await store.find_conversations(ConversationQuery(conversation_id=name))
            if found and choose.random() < 0.35:
                await store.delete_conversation(name, revision=found[0].revision)
                continue
            tips = found[0].tips if found else ()
            parent, new = choose.choice([None, *tips, *tips, *made[-6:]]), list[Any]()
            for n in range(choose.randrange(4)):
                blob = choose.choice([b'', b'1', b'2'])
                new.append(entry(f'{who}-{turn}-{n}', parent, blob=blob))
                parent = choose.choice([parent, new[-1].entry_id])
            ends = choose.sample([*tips, *made[-6:]], min(len(tips), choose.randrange(3)))
            ends += [new[-1].entry_id] if new else []
            one = write(
                row(name, f'{who}-{turn}', *dict.fromkeys(ends)),
                *(new,),
                expects=found[0].revision if found else None,
                blobs=[b'1', b'2'],
                ttl=choose.choice([None, None, 0.02]),
            )
            twice = stores[: 2 if choose.random() < 0.1 else 1]
            if any(await asyncio.gather(*(each.write_conversation(one) for each in twice))):
                made.extend(each.entry_id for each in new)

    await asyncio.gather(*(works(stores[n % 3], n) for n in range(9)))
    assert await rows(url, WRONG) == []
    for expired in (False, True):
        for each in await stores[0].find_conversations(ConversationQuery(expired=expired)):
            await stores[0].delete_conversation(each.conversation_id, revision=each.revision)
    assert await counts(url) == [0, 0, 0]
    for store in stores:
        await store.close()


async def test_a_save_that_waited_for_another_is_decided_on_what_is_there_then(
    store: PostgresStore, fresh_postgres_url: str
) -> None:
    await store.write_conversation(write(row('c', 'r1', 'b'), line('a', 'b')))

    async def waits() -> bool:
        return bool(await rows(fresh_postgres_url, 'SELECT 1 FROM pg_locks WHERE NOT granted'))

    async with tool(fresh_postgres_url) as other:
        for change, goes in (("revision = 'r9'", False), ("revision = 'r1'", True)):
            async with other.transaction():
                await other.execute(f'UPDATE graphkeep_conversations SET {change}')
                new = line('n', after='b')
                saving = asyncio.ensure_future(
                    store.write_conversation(write(row('c', 'r2', 'n'), new, expects='r1'))
                )
                await eventually(waits, what='the save waits')
            assert await saving == goes
            assert await rows(fresh_postgres_url, WRONG) == []
            if not goes:
                await other.execute("UPDATE graphkeep_conversations SET revision = 'r1'")
        # A fork that waits for the end of what it stands on.
        packed = packed_id('n')
        async with other.transaction():
            await other.execute(
                'SELECT FROM graphkeep_entries WHERE entry_id = $1 FOR UPDATE', packed
            )
            saving = asyncio.ensure_future(
                store.write_conversation(write(row('fork', 'r', 'x'), line('x', after='n')))
            )
            await eventually(waits, what='the fork waits')
            await other.execute('DELETE FROM graphkeep_entries WHERE entry_id = $1', packed)
        assert not await saving
        assert await ids(store, 'x') is None


# --- pgbouncer ------------------------------------------------------------------------------------


async def test_behind_pgbouncer_in_transaction_mode_all_works(
    bouncer: str, fresh_postgres_url: str
) -> None:
    async with (
        PostgresStore(bouncer, statement_cache_size=0) as store,
        PostgresStore(bouncer, statement_cache_size=0) as other,
    ):
        walk = Talk(1)
        for _ in range(40):
            await walk.step(store)
        await asyncio.gather(
            *(each.write_conversation(write(row('x', 'r'))) for each in (store, other))
        )
        assert await rows(fresh_postgres_url, WRONG) == []
        for each in await other.find_conversations(ConversationQuery()):
            assert await other.delete_conversation(each.conversation_id, revision=each.revision)
    assert await counts(fresh_postgres_url) == [0, 0, 0]


async def test_a_load_that_a_closing_store_ends_says_so(fresh_postgres_url: str) -> None:
    store = PostgresStore(fresh_postgres_url, max_size=1)
    await store.open()
    await store.write_conversation(
        write(row('c', 'r', 'e99'), line(*(f'e{n}' for n in range(100))))
    )

    async def reads() -> None:
        while True:
            await ids(store, 'e99')

    reading = [asyncio.create_task(reads()) for _ in range(12)]
    await asyncio.sleep(0.05)
    await store.close()
    ends = await asyncio.gather(*reading, return_exceptions=True)
    assert {type(end) for end in ends} == {StoreClosedError}
