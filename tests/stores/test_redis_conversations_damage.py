"""Conversations in Redis that are damaged, and writes that fail: all or nothing."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false, reportCallIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import redis

from graphkeep import StoreError, StoreUnavailableError, StoreWriteError
from graphkeep.conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
)
from graphkeep.errors import DamagedConversationError
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_keys import Layout
from graphkeep.testing._talks import entry, ids, line, row, write
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.stores.redis_talks_tool import (
    BLOBS,
    ENTRIES,
    HASH,
    LONG,
    REFS,
    ROWS,
    TAG,
    USES,
    WRITTEN,
    contents,
    kept,
    long_line,
    only_one,
    talk_keys,
)
from tests.stores.redis_tool import only

pytestmark = pytest.mark.redis

MakeRedis = Callable[..., RedisServer]


# --- damage ---------------------------------------------------------------------------------------


async def told(store: RedisStore) -> None:
    """Two conversations, of which the first will be damaged."""
    entries = [entry('a'), entry('b', 'a', blob=b'picture'), *long_line('c')]
    entries[2] = entries[2]._replace(parent_id='b')
    entries.append(entry('d', 'c'))
    await store.write_conversation(write(row('one', 'r1', 'd', at=1), entries, blobs=[b'picture']))
    await store.write_conversation(write(row('two', 'r1', 'x', at=2), line('x')))


def _set(name: str, value: bytes) -> Callable[[redis.Redis], object]:
    return lambda cli: cli.hset(ENTRIES, kept(name), value)


def _gone(key: bytes, field: bytes) -> Callable[[redis.Redis], object]:
    return lambda cli: cli.hdel(key, field)


@pytest.mark.parametrize(
    ('damage', 'named', 'reason'),
    [
        (_gone(ENTRIES, kept('a')), 'b', 'before it is missing'),
        (_gone(ENTRIES, kept('c')), 'd', 'before it is missing'),
        (_gone(LONG, kept('c')), 'c', 'its message is missing'),
        (_gone(BLOBS, HASH.encode()), 'b', 'its blob .* is missing'),
        (_set('b', b''), 'b', 'not as graphkeep writes it'),
        (_set('b', b'\xff\0garbage'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'1 - 2 6 0 900\n\xffa2.68.0{}'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'1 - 2 6 0 4\n\xffa2.68.0[[1]{}'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'1 - 2 6 3 0\n\xffa2.68.0abc{}'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'1 - 2 6 0 0\n\xffa2.\xff8.0{}'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'2 - 2 6 0 0\n\xffa2.68.0{}'), 'b', 'position does not fit'),
        (_set('b', b'1 - 0 6 0 0\n2.68.0{}'), 'b', 'position does not fit'),
        (_set('b', b'9' * 15 + b' - 2 6 0 0\n\xffa2.68.0{}'), 'b', 'not as graphkeep writes it'),
        (_set('b', b'9' * 21 + b' - 2 6 0 0\n\xffa2.68.0{}'), 'b', 'not as graphkeep writes it'),
        (_set('a', b'0 - 2 6 0 0\n\xffd2.68.0{}'), 'a', 'position does not fit'),
        (_set('b', b'1 - 2 6 0 0\n\xffd2.68.0{}'), 'd', 'position does not fit'),
    ],
)
async def test_a_damaged_entry_is_named(
    damage: Callable[[redis.Redis], object],
    named: str,
    reason: str,
    redis_url: str,
    cli: redis.Redis,
) -> None:
    async with only(redis_url) as store:
        await told(store)
        damage(cli)
        with pytest.raises(DamagedConversationError, match=reason) as caught:
            await store.find_entries(EntriesQuery(head_id='d'))
        assert caught.value.entry_id == named
        # The part after it, and others, can be read.
        assert await ids(store, 'd', limit=1) == ['d']
        assert await ids(store, 'x') == ['x']
        assert len(await store.find_conversations(ConversationQuery())) == 2
        # It can be removed, which the error says.
        assert await store.delete_conversation('one', revision='r1')
        assert await store.delete_conversation('two', revision='r1')
        assert await ids(store, 'd') is None
    assert not {ROWS, LONG, WRITTEN} & talk_keys(cli)


async def test_a_damaged_entry_is_not_built_upon(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await told(store)
        cli.hset(ENTRIES, kept('d'), b'garbage')
        before = contents(cli)
        for new in (
            write(row('one', 'r2', 'e'), line('e', after='d'), expects='r1'),
            write(row('one', 'r2', 'd'), line('d', after='c'), expects='r1'),
        ):
            with pytest.raises(DamagedConversationError) as caught:
                await store.write_conversation(new)
            assert caught.value.entry_id == 'd'
        assert contents(cli) == before


@pytest.mark.parametrize('count', [b'x', b'', b'-'])
async def test_a_count_that_cannot_be_read_removes_nothing(
    count: bytes, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await told(store)
        cli.hset(REFS, kept('c'), count)
        cli.hset(USES, HASH, count)
        assert await store.delete_conversation('one', revision='r1')
        assert await ids(store, 'c') == ['a', 'b', 'c']
        assert await ids(store, 'd') is None


@pytest.mark.parametrize(
    'text',
    [
        b'',
        b'garbage',
        b'2026-11-30T00:00:00.000000 - 2 - -',
        b'2026-11-30T00:00:00.000000 - 200 - -\nr1{}',
        b'2026-11-30T00:00:00.000000 - 2 - 1,x\nr1{}',
        b'2026-11-30T00:00:00.000000 soon 2 - -\nr1{}',
        b'2026-11-30T00:00:00.000000 - 2 x -\nr1{}',
    ],
)
async def test_a_damaged_row_is_named_and_hides_no_other(
    text: bytes, redis_url: str, cli: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with only(redis_url) as store:
        await told(store)
        cli.hset(ROWS, 'one', text)
        before = contents(cli)
        for call in (
            store.find_conversations(ConversationQuery(conversation_id='one')),
            store.write_conversation(write(row('one', 'r2'), expects='r1')),
            store.delete_conversation('one', revision='r1'),
        ):
            with pytest.raises(DamagedConversationError) as caught:
                await call
            assert caught.value.conversation_id == 'one'
        found = await store.find_conversations(ConversationQuery())
        assert [c.conversation_id for c in found] == ['two']
        assert "conversation 'one' is damaged, it is left out" in caplog.text
        assert contents(cli) == before
        cli.hdel(ROWS, 'one')
        assert len(await store.find_conversations(ConversationQuery())) == 1
        assert await only_one(store, 'one') is None


@pytest.mark.parametrize('field', Layout(prefix='graphkeep', buckets=1).talks._fields)
async def test_a_key_of_another_kind_stops_a_write_before_it_begins(
    field: str, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await told(store)
        key = TAG + field.encode()
        cli.delete(key)
        cli.set(key, 'not ours')
        before = contents(cli)
        new = [*long_line('e'), entry('f', 'e', blob=b'other')]
        for call in (
            store.write_conversation(
                write(row('one', 'r2', 'f', scope='s'), new, expects='r1', blobs=[b'other'], ttl=9)
            ),
            store.delete_conversation('one', revision='r1'),
        ):
            with pytest.raises(StoreError, match='a key of another kind'):
                await call
        assert contents(cli) == before


# --- all or nothing -------------------------------------------------------------------------------


def steps() -> Iterator[tuple[ConversationWrite | str, dict[str, Any]]]:
    """Writes and a delete that do everything that can be done, and what is there after each."""
    a = [entry('a', blob=b'picture'), *line('b', 'c', after='a')]
    yield write(row('m', 'r1', 'c', scope='s'), a, blobs=[b'picture'], ttl=60), {'c': 'abc'}
    yield write(row('n', 'r1', 'b')), {'c': 'abc'}
    branch = [*line('d', after='a'), entry('e', 'd', blob=b'other')]
    yield (
        write(row('m', 'r2', 'e'), branch, expects='r1', blobs=[b'other']),
        {'c': None, 'b': 'ab', 'e': 'ade'},
    )
    yield write(row('m', 'r3', 'd'), expects='r2'), {'e': None, 'd': 'ad'}
    yield 'm', {'d': None, 'b': 'ab'}


async def do(store: RedisStore, step: ConversationWrite | str) -> bool:
    if isinstance(step, str):
        return await store.delete_conversation(step, revision='r3')
    return await store.write_conversation(step)


@pytest.mark.parametrize('fault', ['request', 'reply', 'late'])
@pytest.mark.parametrize('at', range(5))
async def test_a_cut_connection_leaves_all_or_nothing(
    fault: Literal['request', 'reply', 'late'], at: int, redis_url: str, cli: redis.Redis
) -> None:
    async with (
        Proxy(redis_url) as proxy,
        only(proxy.url, retry=0, timeout=0.5) as store,
        only(redis_url) as plain,
    ):
        for n, (step, there) in enumerate(steps()):
            if n != at:
                assert await do(plain, step)
                continue
            before = contents(cli)
            proxy.fault(fault, b'EVAL')
            with pytest.raises(StoreUnavailableError):
                await do(store, step)
            if fault == 'reply':
                assert contents(cli) != before
            else:
                assert contents(cli) == before
            if fault == 'late':
                await proxy.deliver()
            once = contents(cli)
            # The same again, as the port would do it.
            went = await do(plain, step)
            assert went == (fault == 'request' or not isinstance(step, str))
            if fault != 'request':
                assert contents(cli) == once
            for name, expected in there.items():
                found = await ids(plain, name)
                assert (found and ''.join(found)) == expected
        assert await ids(plain, 'b') == ['a', 'b']
        assert await plain.delete_conversation('n', revision='r1')
    assert talk_keys(cli) == set()


@pytest.mark.parametrize('fault', ['request', 'reply'])
async def test_a_lost_message_is_sent_again(
    fault: Literal['request', 'reply'], redis_url: str, cli: redis.Redis
) -> None:
    async with Proxy(redis_url) as proxy, only(proxy.url, retry=10) as store:
        for step, there in steps():
            proxy.fault(fault, b'EVAL')
            assert await do(store, step)
            for name, expected in there.items():
                proxy.fault(fault, b'EVAL')
                found = await ids(store, name)
                assert (found and ''.join(found)) == expected
        assert proxy.faults
        assert await store.delete_conversation('n', revision='r1')
    assert talk_keys(cli) == set()


async def test_a_full_memory_refuses_and_changes_nothing(make_redis: MakeRedis) -> None:
    server = make_redis(maxmemory_policy='noeviction')
    with redis.Redis.from_url(server.url(), protocol=2) as cli:
        async with only(server.url(), retry=0) as store:
            await store.write_conversation(write(row('c', 'r1', 'b'), line('a', 'b')))
            for name in 'de':
                await store.write_conversation(write(row(name, 'r1', 'a')))
            server.command('CONFIG', 'SET', 'maxmemory', 1)
            before = contents(cli)
            for new in (
                write(row('c', 'r2', 'x'), line('x', after='b'), expects='r1', ttl=9),
                write(row('new', 'r1', 'x'), [entry('x', blob=b'1')], blobs=[b'1']),
            ):
                with pytest.raises(StoreWriteError, match='its memory is full'):
                    await store.write_conversation(new)
            assert contents(cli) == before
            # What makes room is not refused, also where a count has to be written.
            assert await store.delete_conversation('c', revision='r1')
            assert cli.hget(REFS, kept('a')) == b'2'
            assert await ids(store, 'b') is None
            assert await ids(store, 'a') == ['a']


async def test_what_was_acknowledged_survives_a_kill(make_redis: MakeRedis) -> None:
    server = make_redis(appendonly='yes', appendfsync='always')
    async with RedisStore(server.url(), retry=60) as store:
        revision, parent = None, None
        names: list[str] = []
        for n in range(12):
            new = [entry(f'e{n}', parent)]
            saved = write(row('c', f'r{n}', f'e{n}'), new, expects=revision)
            if n % 4 == 3:
                going = asyncio.ensure_future(store.write_conversation(saved))
                await asyncio.sleep(0)
                server.kill()
                await asyncio.to_thread(server.start)
                assert await going
            else:
                assert await store.write_conversation(saved)
            revision, parent = f'r{n}', f'e{n}'
            names.append(parent)
        assert await ids(store, 'e11') == names
        assert await store.delete_conversation('c', revision='r11')
    assert server.command('KEYS', '*talk*') == []
