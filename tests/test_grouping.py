"""Commits of many runs share writes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from graphkeep.errors import LeaseLostError, StoreUnavailableError, StoreWriteError
from graphkeep.grouping import CommitQueue
from graphkeep.runs import Claim, Commit, Draft
from graphkeep.shielding import Ending


def commit(name: str, data: bytes = b'{}') -> Commit:
    return Commit(
        claim=Claim(run_id=name, owner='me', epoch=1),
        draft=Draft(seq=1, kind='delta', event='step', data=data),
        status='running',
        ttl=30.0,
        nonce=name,
    )


class Database:
    """Remembers the batches, and writes each when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.open = asyncio.Event()
        self.open.set()
        self.fails: dict[str, BaseException] = {}
        self.breaks: BaseException | None = None

    @property
    def written(self) -> list[str]:
        return [name for batch in self.batches for name in batch]

    async def write(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        names = [commit.claim.run_id for commit in commits]
        self.batches.append(names)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            await self.open.wait()
        finally:
            self.in_flight -= 1
        if self.breaks is not None:
            raise self.breaks
        return [self.fails.get(name) for name in names]

    def queue(self, **options: Any) -> CommitQueue:
        options = {
            'max_commits': 500,
            'max_bytes': 8_000_000,
            'parallel': 1,
            'bound': 60.0,
            **options,
        }
        return CommitQueue(self.write, **options)


async def put_all(queue: CommitQueue, *commits: Commit) -> list[Ending[None]]:
    return list(await asyncio.gather(*(queue.put(commit) for commit in commits)))


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_commit_alone_is_written_alone() -> None:
    database = Database()
    ending = await database.queue().put(commit('a'))
    assert (ending.error, ending.cancelled) == (None, None)
    assert database.batches == [['a']]


async def test_commits_of_one_turn_go_together_in_their_order() -> None:
    database = Database()
    endings = await put_all(database.queue(), *(commit(name) for name in 'cab'))
    assert [ending.error for ending in endings] == [None, None, None]
    assert database.batches == [['c', 'a', 'b']]


async def test_while_one_write_is_in_flight_the_next_gathers() -> None:
    database = Database()
    queue = database.queue()
    database.open.clear()
    waiters = []
    for name in 'abcd':
        waiters.append(asyncio.create_task(queue.put(commit(name))))
        await turns()
    database.open.set()
    await asyncio.gather(*waiters)
    assert database.batches == [['a'], ['b', 'c', 'd']]
    assert database.most_in_flight == 1


async def test_a_batch_has_at_most_so_many_commits() -> None:
    database = Database()
    await put_all(database.queue(max_commits=3), *(commit(str(n)) for n in range(8)))
    assert [len(batch) for batch in database.batches] == [3, 3, 2]
    assert database.written == [str(n) for n in range(8)]


async def test_one_at_a_time() -> None:
    database = Database()
    await put_all(database.queue(max_commits=1), *(commit(name) for name in 'abc'))
    assert database.batches == [['a'], ['b'], ['c']]


async def test_a_batch_has_at_most_so_many_bytes() -> None:
    database = Database()
    sizes = [40, 50, 20, 100, 101, 1, 99, 1]
    commits = [commit(str(size), b'x' * size) for size in sizes]
    await put_all(database.queue(max_bytes=100), *commits)
    assert database.batches == [['40', '50'], ['20'], ['100'], ['101'], ['1', '99'], ['1']]


async def test_a_commit_larger_than_a_batch_goes_alone() -> None:
    database = Database()
    endings = await put_all(database.queue(max_bytes=0), commit('a'), commit('b'))
    assert [ending.error for ending in endings] == [None, None]
    assert database.batches == [['a'], ['b']]


async def test_several_batches_may_be_in_flight() -> None:
    database = Database()
    queue = database.queue(max_commits=2, parallel=3)
    await put_all(queue, *(commit(str(n)) for n in range(20)))
    assert database.most_in_flight == 3
    assert sorted(database.written, key=int) == [str(n) for n in range(20)]
    assert all(len(batch) <= 2 for batch in database.batches)


async def test_each_commit_gets_its_own_error() -> None:
    database = Database()
    database.fails = {'b': LeaseLostError(run_id='b', epoch=1)}
    endings = await put_all(database.queue(), *(commit(name) for name in 'abc'))
    assert [ending.error for ending in endings] == [None, database.fails['b'], None]


async def test_a_write_that_breaks_is_told_to_all_and_the_next_goes_on() -> None:
    database = Database()
    queue = database.queue(max_commits=2)
    database.breaks = StoreWriteError('full')
    endings = await put_all(queue, *(commit(name) for name in 'abc'))
    errors = [ending.error for ending in endings]
    assert [(type(e), str(e)) for e in errors] == [(StoreWriteError, str(database.breaks))] * 3
    # Each an object of its own: whoever raises one adds to its traceback.
    assert errors[0] is not errors[1]
    database.breaks = None
    assert (await queue.put(commit('d'))).error is None
    assert database.batches == [['a', 'b'], ['c'], ['d']]


async def test_a_store_that_miscounts_is_told_so() -> None:
    async def write(commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        return [None]

    queue = CommitQueue(write, max_commits=9, max_bytes=9_999, parallel=1, bound=1.0)
    endings = await put_all(queue, commit('a'), commit('b'))
    for ending in endings:
        assert isinstance(ending.error, RuntimeError)
        assert '1 results for 2 commits' in str(ending.error)
    assert (await queue.put(commit('c'))).error is None


@pytest.mark.parametrize('in_flight', [True, False])
async def test_what_was_handed_in_is_written_when_its_waiter_is_cancelled(in_flight: bool) -> None:
    database = Database()
    queue = database.queue()
    database.open.clear()
    first = asyncio.create_task(queue.put(commit('a')))
    await turns()
    second = asyncio.create_task(queue.put(commit('b')))
    await turns()
    assert database.batches == [['a']]
    cancelled = first if in_flight else second
    cancelled.cancel()
    await turns()
    cancelled.cancel()
    await turns()
    assert not cancelled.done()
    database.open.set()
    endings = await asyncio.gather(first, second)
    assert [ending.error for ending in endings] == [None, None]
    assert (cancelled.result()).cancelled is not None
    assert database.batches == [['a'], ['b']]


async def test_a_cancelled_waiter_leaves_beyond_the_bound() -> None:
    database = Database()
    queue = database.queue(bound=0.02)
    database.open.clear()
    waiter = asyncio.create_task(queue.put(commit('a')))
    await turns()
    waiter.cancel()
    ending = await waiter
    assert isinstance(ending.error, StoreUnavailableError)
    assert ending.cancelled is not None
    database.open.set()
    await queue.flush()
    assert database.batches == [['a']]
    assert (await queue.put(commit('b'))).error is None


async def test_a_waiter_that_left_does_not_learn_of_the_error() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append(context))
    database = Database()
    queue = database.queue(bound=0.0)
    database.open.clear()
    waiter = asyncio.create_task(queue.put(commit('a')))
    await turns()
    waiter.cancel()
    await waiter
    database.breaks = StoreWriteError('full')
    database.open.set()
    await queue.flush()
    del waiter
    gc.collect()
    await turns()
    assert complaints == []


async def test_flush_waits_for_all_that_was_handed_in() -> None:
    database = Database()
    queue = database.queue(max_commits=1)
    await queue.flush()
    database.open.clear()
    waiters = [asyncio.create_task(queue.put(commit(name))) for name in 'abc']
    await turns()
    flush = asyncio.create_task(queue.flush())
    await turns()
    assert not flush.done()
    database.open.set()
    await flush
    assert database.batches == [['a'], ['b'], ['c']]
    await asyncio.gather(*waiters)


def test_a_loop_that_goes_down_leaves_nobody_waiting() -> None:
    endings: list[Ending[None]] = []

    async def main() -> None:
        database = Database()
        database.open.clear()
        queue = database.queue(max_commits=1, bound=0.05)

        async def put(name: str) -> None:
            endings.append(await queue.put(commit(name)))

        for name in 'abc':
            asyncio.get_running_loop().create_task(put(name), name=name)
        await turns()

    asyncio.run(main())
    assert len(endings) == 3
    assert all(ending.error is not None for ending in endings)
    assert all(ending.cancelled is not None for ending in endings)


async def test_a_commit_that_comes_as_the_writer_ends_is_written() -> None:
    """Who waits for a commit goes on before the writer's task is gone, and hands in the next."""
    written: list[Commit] = []

    async def write(batch: Sequence[Commit]) -> Sequence[BaseException | None]:
        await asyncio.sleep(0)
        written.extend(batch)
        return [None] * len(batch)

    queue = CommitQueue(write, max_commits=9, max_bytes=9_999, parallel=1, bound=1.0)
    async with asyncio.timeout(5):
        for number in range(50):
            ending = await queue.put(commit(f'run-{number}'))
            assert ending.error is None
    assert len(written) == 50
