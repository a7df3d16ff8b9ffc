"""Contract: finding requests and runs that can go on, and hearing of answers."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from ..requests import Request
from ._base import Contract
from ._calls import UNSTORABLE, eventually
from ._worker import asks

__all__ = ('Asking',)


class Asking(Contract):
    """Lists, over all runs."""

    async def test_requests_are_found_by_what_they_are(self) -> None:
        async with self.make_store() as store:
            for n in range(4):
                labels = {'team': 'a' if n % 2 else 'b', 'quote': '"'}
                graph = 'orders' if n < 2 else None
                worker = await self.started(store, f'run-{n}', graph=graph, labels=labels)
                await worker.pauses(asks('manager'), asks('legal' if n else 'zoë'))
            await store.answer('run-3', '0:manager', {'ok': 1})

            async def found(**query: object) -> list[tuple[str, str]]:
                requests = await store.requests(**query)  # type: ignore[arg-type]
                return [(r.run_id[-1], r.name) for r in requests]

            first = [('0', 'manager'), ('0', 'zoë'), ('1', 'legal'), ('1', 'manager')]
            rest = [('2', 'legal'), ('2', 'manager'), ('3', 'legal')]
            assert await found() == first + rest
            assert await found(status=('open', 'answered')) == [*first, *rest, ('3', 'manager')]
            assert await found(status='answered') == [('3', 'manager')]
            assert await found(graph='orders') == first
            assert await found(run_id='run-2') == [('2', 'legal'), ('2', 'manager')]
            assert await found(name='manager') == [
                ('0', 'manager'),
                ('1', 'manager'),
                ('2', 'manager'),
            ]
            assert await found(name='zoë', graph='orders') == [('0', 'zoë')]
            assert await found(labels={'team': 'b'}) == [*first[:2], *rest[:2]]
            assert await found(labels={'team': 'b', 'quote': "'"}) == []
            assert await found(labels={'team': 'a'}, name='legal') == [
                ('1', 'legal'),
                ('3', 'legal'),
            ]
            assert await found(older_than=timedelta(days=-1)) == first + rest
            assert await found(older_than=timedelta(days=1)) == []
            for hostile in ("'; DROP TABLE x; --", '%', '*', '{}', 'a"b'):
                assert await found(name=hostile, graph=hostile, labels={hostile: hostile}) == []
                assert await found(run_id=hostile) == []
            for text in UNSTORABLE:
                for status in ('open', ()):
                    assert await found(name=text, status=status) == []
                    assert await found(graph=text, status=status) == []

    async def test_requests_come_a_page_at_a_time(self) -> None:
        async with self.make_store() as store:
            for n in range(7):
                await (await self.started(store, f'run-{n}')).pauses(asks('a'), asks('b'))
            everything = await store.requests(limit=100)
            assert len(everything) == 14
            for size in (1, 3, 14):
                pages: list[Request] = []
                after: Request | None = None
                while page := await store.requests(after=after, limit=size):
                    pages += page
                    after = page[-1]
                assert pages == everything
            assert await store.requests(limit=5) == everything[:5]
            with pytest.raises(ValueError, match='limit'):
                await store.requests(limit=0)

    async def test_candidates_are_what_can_go_on(self) -> None:
        async with self.make_store() as store:
            for status in ('failed', 'done', 'cancelled', 'paused', 'ready'):
                await (await self.started(store, status, graph='g')).ends_as(status)
            await self.worker(store, 'alive', ttl=30.0).create(graph='g')
            await self.worker(store, 'other', ttl=0.0).create(graph='h')
            await self.worker(store, 'unnamed', ttl=0.0).create()
            await self.worker(store, 'left', ttl=0.0).create(graph='g')
            await (await self.started(store, 'due', graph='g')).pauses(asks(timeout=0.01))
            await (await self.started(store, 'waits', graph='g')).pauses(asks(timeout=60.0))
            await (await self.started(store, 'given', graph='g')).pauses(asks())
            await store.answer('given', '0:manager', {'ok': 1})

            async def all_due() -> bool:
                return len(await store.candidates(['g'], limit=10)) == 4

            await eventually(all_due, what='the deadline')
            found = await store.candidates(['g'], limit=10)
            # Longest untouched first.
            assert [run.run_id for run in found] == ['ready', 'left', 'due', 'given']
            assert [run.interrupted for run in found] == [False, True, False, False]
            assert [run.due for run in found] == [False, False, True, False]
            assert found == [await store.run(run.run_id) for run in found]
            both = await store.candidates(['h', 'g', "'"], limit=10)
            assert [run.run_id for run in both] == ['ready', 'other', 'left', 'due', 'given']
            assert [r.run_id for r in await store.candidates(['g'], limit=2)] == ['ready', 'left']
            assert await store.candidates([], limit=5) == []

    async def test_who_listens_hears_of_an_answer(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for n in range(3):
                await (await self.started(store, f'run-{n}')).pauses(asks())
            notices = store.notices
            with notices.listening('run-1') as mine, notices.listening(None) as anyones:
                # Until the database tells of answers, or never does.
                async def settled() -> bool:
                    return notices.watched or not notices.watching

                await eventually(settled, what='a word of the watch')
                if not notices.watched:
                    return
                mine.clear()
                anyones.clear()
                await other.answer('run-2', '0:manager', {'ok': 1})
                async with asyncio.timeout(5):
                    await anyones.wait()
                assert not mine.is_set()
                asked = time.monotonic()
                await other.answer('run-1', '0:manager', {'ok': 1})
                async with asyncio.timeout(5):
                    await mine.wait()
                assert time.monotonic() - asked < 2.0
