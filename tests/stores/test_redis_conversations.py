"""Conversations in Redis: the stored form, what a save writes, and reading in parts."""

# pyright: reportOptionalSubscript=false, reportOptionalIterable=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false, reportCallIssue=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
import redis

from graphkeep import StoreWriteError
from graphkeep.conversations import (
    ConversationQuery,
    EntriesQuery,
    places_json,
)
from graphkeep.stores import redis_conversations
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.redis_client import Link
from graphkeep.stores.redis_keys import Layout
from graphkeep.testing import Worker
from graphkeep.testing._talks import entry, ids, line, row, write
from tests.servers import RedisCluster, RedisServer
from tests.stores.redis_talks_tool import (
    BLOBS,
    ENTRIES,
    EXPIRING,
    HASH,
    LONG,
    REFS,
    ROWS,
    SCOPED,
    USES,
    WRITTEN,
    contents,
    kept,
    long_line,
    only_one,
    talk_keys,
)
from tests.stores.redis_tool import asks, keys, only, paused

pytestmark = pytest.mark.redis


def members(cli: redis.Redis, key: bytes) -> list[bytes]:
    return cli.zrange(key, 0, -1)


# --- the stored form ------------------------------------------------------------------------------


async def test_a_conversation_as_it_is_stored(redis_url: str, cli: redis.Redis) -> None:
    first, second = '0192f0c1-7e5b-7cc3-9a1b-0123456789ab', 'second'
    packed = bytes.fromhex('0192f0c17e5b7cc39a1b0123456789ab')
    new = row('chat', 'r1', second, scope='ada', at=1.000001, data=b'{"n": 1.0}')
    data = b'{"blob":"","n":1E2}'
    entries = [entry(first, data=data, blob=b'picture'), entry(second, first, data=b'{}')]
    async with only(redis_url) as store:
        await store.write_conversation(write(new, entries, blobs=[b'picture'], ttl=3600))
        [kept_row] = cli.hgetall(ROWS).values()
        expires = kept_row.split(b' ')[1]
        assert cli.hgetall(ROWS) == {
            b'chat': b'2026-11-30T00:00:01.000001 %b 2 3 7\nr1ada\xffsecond{"n": 1.0}' % expires
        }
        assert len(expires) == 18
        assert 3500e6 < int(expires) - cli.time()[0] * 1e6 < 3700e6
        places = (places_json(entries[0].places) or '').encode()
        assert places.startswith(b'[["%b","base64",' % HASH.encode())
        assert cli.hgetall(ENTRIES) == {
            packed: b'0 - 0 6 64 %d\n2.68.0%b%b%b' % (len(places), HASH.encode(), places, data),
            b'\xffsecond': b'1 - 16 6 0 0\n' + packed + b'2.68.0{}',
        }
        assert cli.hgetall(BLOBS) == {HASH.encode(): b'picture'}
        assert members(cli, WRITTEN) == [b'2026-11-30T00:00:01.000001chat']
        assert members(cli, SCOPED) == [b'ada\x002026-11-30T00:00:01.000001chat']
        assert members(cli, EXPIRING) == [expires + b'chat']
        # Counts of one are not stored.
        assert talk_keys(cli) == {ROWS, ENTRIES, BLOBS, WRITTEN, SCOPED, EXPIRING}

        fork = [entry('third', first, data=b'{"blob":""}', blob=b'picture')]
        await store.write_conversation(write(row('fork', 'r1', 'third'), fork, blobs=[b'picture']))
        assert cli.hgetall(REFS) == {packed: b'2'}
        assert cli.hgetall(USES) == {HASH.encode(): b'2'}
        await store.delete_conversation('chat', revision='r1')
        assert talk_keys(cli) == {ROWS, ENTRIES, BLOBS, USES, WRITTEN}
        await store.delete_conversation('fork', revision='r1')
        assert talk_keys(cli) == set()


async def test_a_long_message_lies_apart(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        entries = long_line('a', 'b')
        await store.write_conversation(write(row('c', 'r1', 'b'), entries))
        assert cli.hgetall(LONG) == {kept(e.entry_id): e.data for e in entries}
        assert max(map(len, cli.hgetall(ENTRIES).values())) < 100
        assert await store.write_conversation(write(row('d', 'r1', 'b'), entries))
        other = [entries[1]._replace(data=entries[1].data + b' ')]
        assert not await store.write_conversation(write(row('e', 'r1', 'b'), other))
        found = await store.find_entries(EntriesQuery(head_id='b'))
        assert [e.data for e in found.entries] == [e.data for e in entries]
        for name in 'cd':
            assert await store.delete_conversation(name, revision='r1')
    assert talk_keys(cli) == set()


async def test_a_message_of_ten_megabytes(redis_url: str) -> None:
    data = b'"' + bytes(range(256)) * 40_000 + b'"'
    async with only(redis_url) as store:
        await store.write_conversation(write(row('c', 'r1', 'a'), [entry('a', data=data)]))
        found = await store.find_entries(EntriesQuery(head_id='a'))
        assert found.entries[0].data == data


async def test_a_save_is_one_command_that_writes_only_what_is_new(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        names = [f'e{n}' for n in range(100)]
        await store.write_conversation(write(row('c', 'r1', 'e99'), line(*names)))
        await store.write_conversation(
            write(row('c', 'r2', 'x'), line('x', after='e99'), expects='r1')
        )
        before = cli.hgetall(ENTRIES)
        cli.config_resetstat()
        await store.write_conversation(
            write(row('c', 'r3', 'z'), line('y', 'z', after='x'), expects='r2')
        )
        stats = {name: stat['calls'] for name, stat in cli.info('commandstats').items()}
        assert stats['cmdstat_evalsha'] == 1
        # The row and the two entries.
        assert stats['cmdstat_hset'] == 3
        assert 'cmdstat_hdel' not in stats
        after = cli.hgetall(ENTRIES)
        assert {name: after.pop(name) for name in (kept('y'), kept('z'))}
        assert after == before
        assert not cli.exists(REFS)

        cli.config_resetstat()
        assert len(await ids(store, 'z')) == 103
        stats = cli.info('commandstats')
        calls = [
            stats[name]['calls'] for name in ('cmdstat_eval', 'cmdstat_evalsha') if name in stats
        ]
        # A script that is not known yet is sent again.
        assert calls in ([1], [1, 1])


async def test_a_blob_is_stored_once_and_goes_with_the_last(
    redis_url: str, cli: redis.Redis
) -> None:
    blob = b'picture'
    async with only(redis_url) as store:
        parent, revision = None, None
        for n in range(4):
            new = [entry(f'e{n}', parent, blob=blob)]
            cli.config_resetstat()
            await store.write_conversation(
                write(row('c', f'r{n}', f'e{n}'), new, expects=revision, blobs=[blob])
            )
            calls = cli.info('commandstats')['cmdstat_hset']['calls']
            assert calls == 3  # the row, the entry, and the blob or its count
            parent, revision = f'e{n}', f'r{n}'
        assert cli.hgetall(BLOBS) == {HASH.encode(): blob}
        assert cli.hget(USES, HASH) == b'4'
        await store.write_conversation(write(row('c', 'r9', 'e1'), expects='r3'))
        assert cli.hget(USES, HASH) == b'2'
        await store.write_conversation(write(row('c', 'r10', 'e0'), expects='r9'))
        assert not cli.exists(USES)
        await store.write_conversation(write(row('c', 'r11'), expects='r10'))
        assert not cli.exists(BLOBS, ENTRIES)


async def test_what_a_message_costs(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        parent = None
        for turn in range(1_000):
            new = [entry(str(uuid4()), data=b'"%b"' % (b'x' * 798)) for _ in range(2)]
            new = [new[0]._replace(parent_id=parent), new[1]._replace(parent_id=new[0].entry_id)]
            parent = new[1].entry_id
            expects = f'r{turn - 1}' if turn else None
            await store.write_conversation(
                write(row('c', f'r{turn}', parent), new, expects=expects)
            )
    used = sum(cli.memory_usage(key, samples=0) for key in talk_keys(cli))
    print(f'{used / 2_000:.0f} bytes a message of 800')
    assert used < 1.3 * 2_000 * 800


# --- nothing else is disturbed --------------------------------------------------------------------


async def test_runs_and_conversations_do_not_disturb_each_other(
    redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store, only(redis_url, prefix='other') as other:
        worker = await paused(store, asks())
        runs = contents(cli)
        await other.write_conversation(write(row('order-42', 'r1', 'z'), line('z')))
        await store.write_conversation(write(row('order-42', 'r1', 'a'), line('a'), ttl=60))
        assert await ids(other, 'a') is None
        assert await other.delete_conversation('order-42', revision='r1')
        await store.delete('order-42', force=True)
        assert talk_keys(cli) == set(keys(cli)) - {
            b'{graphkeep:0}:meta',
            b'{other:0}:meta',
        }
        assert await ids(store, 'a') == ['a']
        assert await store.delete_conversation('order-42', revision='r1')
        await paused(store, asks())
        assert contents(cli).keys() == runs.keys()
        await worker.successor(store).take(allow=('paused',))


async def test_a_database_of_schema_2_goes_on(redis_url: str, cli: redis.Redis) -> None:
    async with only(redis_url) as store:
        await paused(store, asks())
    cli.hset('{graphkeep:0}:meta', 'schema', 2)
    before = contents(cli)
    async with only(redis_url) as store:
        after = contents(cli)
        assert cli.hget('{graphkeep:0}:meta', 'schema') == b'3'
        assert {key for key in after if after[key] != before[key]} == {b'{graphkeep:0}:meta'}
        assert (await store.run('order-42')).status == 'paused'
        assert len(await store.requests()) == 1
        assert await store.find_conversations(ConversationQuery()) == []
        assert await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))


async def test_who_may_not_write_reads_conversations(
    redis_server: RedisServer, redis_url: str, cli: redis.Redis
) -> None:
    async with only(redis_url) as store:
        await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))
    cli.hset('{graphkeep:0}:meta', 'schema', 2)
    before = contents(cli)
    rules = ('~{graphkeep:*', '+@read', '+@connection', '+@scripting', '+time', '+select')
    redis_server.command('ACL', 'SETUSER', 'reads', 'on', '>secret', *rules)
    try:
        async with only(redis_url.replace('redis://', 'redis://reads:secret@')) as store:
            assert len(await store.find_conversations(ConversationQuery())) == 1
            assert await ids(store, 'a') == ['a']
            for call in (
                store.write_conversation(write(row('d', 'r1', 'b'), line('b'))),
                store.delete_conversation('c', revision='r1'),
            ):
                with pytest.raises(StoreWriteError, match='may not do this'):
                    await call
    finally:
        redis_server.command('ACL', 'DELUSER', 'reads')
    assert contents(cli) == before


async def test_all_keys_are_declared_and_in_one_slot(
    redis_cluster: RedisCluster,
) -> None:
    # A node of a cluster refuses a key of another slot, and each key here has our prefix.
    url = redis_cluster.url.replace('redis://', 'redis+cluster://')
    names = [f'e{n}' for n in range(30)]
    async with RedisStore(url, check_server=False, prefix='shop', buckets=4) as store:
        for n, name in enumerate(names):
            new = [*long_line(name), entry(f'{name}x', name, blob=b'picture')]
            fork = write(row(name, 'r1', f'{name}x'), new, blobs=[b'picture'], ttl=60)
            assert await store.write_conversation(fork)
            assert await store.write_conversation(write(row(f'f{n}', 'r', name, scope='s')))
        assert await ids(store, 'e3x') == ['e3', 'e3x']
        assert len(await store.find_conversations(ConversationQuery())) == 60
        assert len(await store.find_conversations(ConversationQuery(scope='s'))) == 30
        assert await store.find_conversations(ConversationQuery(expired=True)) == []
        there = [
            {bytes(key) for key in node.command('KEYS', '*')} - {b'{shop:0}:meta'}
            for node in redis_cluster.nodes
        ]
        [found] = filter(None, there)
        assert found == set(Layout(prefix='shop', buckets=4).talks)
        for n, name in enumerate(names):
            assert await store.delete_conversation(name, revision='r1')
            assert await store.delete_conversation(f'f{n}', revision='r')
    left = [key for node in redis_cluster.nodes for key in node.command('KEYS', '*')]
    assert left == [b'{shop:0}:meta']


# --- in parts -------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_conversations, '_REPLY_BYTES', 200)
    monkeypatch.setattr(redis_conversations, '_STEPS', 7)
    monkeypatch.setattr(redis_conversations, '_STRETCH', 3)


@pytest.mark.usefixtures('small_parts')
async def test_what_is_read_in_parts_is_the_same(redis_url: str, cli: redis.Redis) -> None:
    names = [f'e{n}' for n in range(40)]
    blobs = [b'%d' % (n % 11) * 90 for n in range(40)]
    entries = [
        made._replace(places=entry('x', blob=blob).places, position=n)
        for n, (made, blob) in enumerate(
            zip(long_line(*names[:2]) + line(*names[2:], after='e1'), blobs, strict=True)
        )
    ]
    async with only(redis_url) as store:
        await store.write_conversation(write(row('c', 'r', 'e39'), entries, blobs=blobs))
        for part in ({}, {'limit': 25}, {'limit': 1}, {'start': 1, 'stop': 30}, {'start': 38}):
            query = EntriesQuery(head_id='e39', **part)
            found = await store.find_entries(query)
            if query.limit is None:
                expected = entries[query.start : query.stop]
            else:
                expected = entries[-query.limit :]
            assert list(found.entries) == expected
            assert {sha256(blob).hexdigest() for blob in found.blobs.values()} == set(found.blobs)
            assert set(found.blobs) == {name for e in expected for name in e.hashes}
        times = {f'c{n:02}': n // 3 for n in range(20)}
        for name, at in times.items():
            scope = 's' if int(name[1:]) % 2 else None
            ttl = 0 if name == 'c07' else 60
            await store.write_conversation(write(row(name, 'r', at=at, scope=scope), ttl=ttl))
        listed = [name for name in sorted(times, reverse=True) if name != 'c07']
        for scope, wanted in ((None, [*listed, 'c']), ('s', [n for n in listed if int(n[1:]) % 2])):
            for limit in (None, 1, 4, 100):
                query = ConversationQuery(scope=scope, limit=limit)
                found = [c.conversation_id for c in await store.find_conversations(query)]
                if scope is None:
                    assert sorted(found) == sorted(wanted) or limit is not None
                assert found[:3] == [n for n in wanted if n != 'c'][: limit or 3][:3]


@pytest.mark.usefixtures('small_parts')
async def test_what_goes_while_it_is_read_is_not_damage(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with only(redis_url) as store, only(redis_url) as other:
        await store.write_conversation(
            write(row('c', 'r', 'e9'), line(*(f'e{n}' for n in range(10))))
        )
        call = Link.call

        async def slow(link: Link, name: str, *args: Any) -> Any:
            found = await call(link, name, *args)
            if name == 'talk_entries':
                await other.delete_conversation('c', revision='r')
            return found

        monkeypatch.setattr(Link, 'call', slow)
        assert await ids(store, 'e9') is None


# --- together -------------------------------------------------------------------------------------


async def test_a_conversation_of_ten_thousand_goes_at_once(
    redis_url: str, cli: redis.Redis
) -> None:
    names = [str(uuid4()) for _ in range(10_000)]
    async with only(redis_url) as store:
        await store.write_conversation(write(row('c', 'r', names[-1]), line(*names)))
        await store.write_conversation(write(row('fork', 'r', names[4_999])))
        assert cli.hlen(ENTRIES) == 10_000
        assert await store.delete_conversation('c', revision='r')
        assert cli.hlen(ENTRIES) == 5_000
        assert await store.delete_conversation('fork', revision='r')
    assert talk_keys(cli) == set()


async def test_a_worker_goes_on_beside_a_conversation_of_its_name(redis_url: str) -> None:
    async with only(redis_url) as store:
        worker = Worker(store, 'c')
        await worker.create()
        await store.write_conversation(write(row('c', 'r1', 'a'), line('a')))
        await worker.step()
        await worker.check()
        assert await only_one(store, 'c') == row('c', 'r1', 'a')
