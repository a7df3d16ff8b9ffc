"""Contract: finding runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ..runs import Draft, NewRun, Run, RunQuery, Status
from ..store import Store, new_nonce
from ._base import Contract
from ._calls import UNSTORABLE

__all__ = ('Finding',)

HOSTILE_TEXTS: tuple[str, ...] = (
    "'",
    '"',
    "'; DROP TABLE graphkeep_runs; --",
    '" OR 1=1',
    '\\',
    '\\u0000',
    '%',
    '_',
    '*',
    '?',
    '[a-z]',
    '{}',
    '{tag}',
    '$1',
    ':name',
    '$.a',
    'a.b',
    '@>',
    'a b',
    ' a',
    'a ',
    '\n',
    '\r\n',
    '\t',
    '\x7f',
    'a',
    'A',
    'é',
    'e\u0301',
    'ß',
    'מזהה',
    '\u202eabc',
    '漢字',
    '🎉',
    '\ufffd',
    '0',
    '00',
    'null',
    'true',
    "]] redis.call('FLUSHALL') --[[",
    'x' * 512,
    'é' * 256,
    '🎉' * 128,
)
"""Texts that a careless store mixes up, cuts or executes."""


class Finding(Contract):
    """Queries: every field, together and alone, in order and in pages."""

    async def _ids(self, store: Store, **query: Any) -> set[str]:
        return {run.run_id for run in await store.runs(**query)}

    async def _created(self, store: Store, count: int) -> list[Run]:
        """Runs, newest first."""
        for number in range(count):
            await self.started(store, f'run-{number}')
        return await store.runs(limit=count)

    async def test_an_empty_store_has_no_runs(self) -> None:
        async with self.make_store() as store:
            assert await store.runs() == []
            assert await store.interrupted() == []

    async def test_by_status(self) -> None:
        async with self.make_store() as store:
            statuses: tuple[Status, ...] = ('ready', 'paused', 'failed', 'done', 'cancelled')
            for status in statuses:
                await (await self.started(store, status)).ends_as(status)
            await self.started(store, 'running')
            for status in (*statuses, 'running'):
                assert await self._ids(store, status=status) == {status}
            assert await self._ids(store, status=('done', 'failed')) == {'done', 'failed'}
            assert await self._ids(store) == await self._ids(store, status=(*statuses, 'running'))

    async def test_a_run_is_found_by_the_status_it_has_now(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            for status in ('paused', 'ready', 'failed', 'done'):
                await worker.append(worker.commit(status=status))
                assert await self._ids(store, status=status) == {'run-1'}
                others = {'ready', 'running', 'paused', 'failed', 'done'} - {status}
                assert await self._ids(store, status=sorted(others)) == set()
                if status != 'done':
                    await worker.take(allow=(status,))
                    assert await self._ids(store, status='running') == {'run-1'}
                    assert await self._ids(store, status=status) == set()

    async def test_by_graph(self) -> None:
        async with self.make_store() as store:
            names = HOSTILE_TEXTS
            for number, name in enumerate(names):
                await self.started(store, f'run-{number}', graph=name)
            await self.started(store, 'none')
            for number, name in enumerate(names):
                [run] = await store.runs(graph=name)
                assert (run.run_id, run.graph) == (f'run-{number}', name)
            for text in ('nobody', *UNSTORABLE):
                assert await self._ids(store, graph=text) == set()
                assert await self._ids(store, parent_run_id=text) == set()

    async def test_by_labels(self) -> None:
        async with self.make_store() as store:
            labels = {
                'none': {},
                'one': {'shop': 'Zürich'},
                'two': {'shop': 'Zürich', 'day': '1'},
                'other': {'shop': 'Bern', 'day': '1'},
                'swapped': {'Zürich': 'shop', '1': 'day'},
                'empty': {'shop': ''},
            }
            for run_id, given in labels.items():
                await self.started(store, run_id, labels=given)
                assert (await store.run(run_id)).labels == given
            assert await self._ids(store, labels={}) == set(labels)
            assert await self._ids(store, labels={'shop': 'Zürich'}) == {'one', 'two'}
            assert await self._ids(store, labels={'day': '1'}) == {'two', 'other'}
            assert await self._ids(store, labels={'day': '1', 'shop': 'Zürich'}) == {'two'}
            assert await self._ids(store, labels={'shop': ''}) == {'empty'}
            for nowhere in ({'shop': 'zürich'}, {'Shop': 'Bern'}, {'shop': 'B'}, {'x': ''}):
                assert await self._ids(store, labels=nowhere) == set()

    async def test_labels_may_be_any_text(self) -> None:
        async with self.make_store() as store:
            texts = HOSTILE_TEXTS
            for number, text in enumerate(texts):
                labels = {text: texts[number - 1], 'same': 'same', 'text': text}
                await self.started(store, f'run-{number}', labels=labels)
                assert (await store.run(f'run-{number}')).labels == labels
            for number, text in enumerate(texts):
                found = {f'run-{number}'}
                assert await self._ids(store, labels={text: texts[number - 1]}) == found, text
                assert await self._ids(store, labels={'text': text, 'same': 'same'}) == found
            assert len(await self._ids(store, labels={'same': 'same'})) == len(texts)

    async def test_by_parent(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store)
            for run_id, parent in (('a', 'run-1'), ('b', 'run-1'), ('c', "run-1'")):
                new = NewRun(run_id=run_id, parent_run_id=parent, parent_seq=0, nonce=new_nonce())
                draft = Draft(seq=0, kind='full', event='fork', data=worker.texts[0])
                await store.create(new, draft)
            assert await self._ids(store, parent_run_id='run-1') == {'a', 'b'}
            assert await self._ids(store, parent_run_id="run-1'") == {'c'}
            assert await self._ids(store, parent_run_id='a') == set()

    async def test_by_interruption(self) -> None:
        async with self.make_store() as store:
            for run_id, ttl in (('alive', 30.0), ('passed', 0.0)):
                await self.worker(store, run_id, ttl=ttl).create()
            statuses: tuple[Status, ...] = ('ready', 'done')
            for status in statuses:
                worker = self.worker(store, status, ttl=0.0)
                await worker.create()
                await worker.ends_as(status)
            assert await self._ids(store, interrupted=True) == {'passed'}
            assert await self._ids(store, interrupted=False) == {'alive', 'ready', 'done'}
            assert [run.run_id for run in await store.interrupted()] == ['passed']
            assert await self._ids(store, interrupted=True, status='running') == {'passed'}
            assert await self._ids(store, interrupted=False, status='running') == {'alive'}
            assert await self._ids(store, interrupted=True, status='done') == set()

    async def test_by_the_time_of_the_last_write(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, 'a')
            await self.started(store, 'b')
            await worker.step()
            times = {run.run_id: run.updated_at for run in await store.runs()}
            assert times['a'] > times['b']
            assert await self._ids(store, updated_before=times['b']) == set()
            assert await self._ids(store, updated_before=times['a']) == {'b'}
            just_after = times['a'] + timedelta(microseconds=1)
            assert await self._ids(store, updated_before=just_after) == {'a', 'b'}
            # The same moment, told in another zone.
            zoned = just_after.astimezone(timezone(timedelta(hours=-7)))
            assert await self._ids(store, updated_before=zoned) == {'a', 'b'}
            far = datetime(9999, 1, 1, tzinfo=UTC)
            assert await self._ids(store, updated_before=far) == {'a', 'b'}
            with pytest.raises(ValueError, match='aware'):
                await store.runs(updated_before=datetime(2026, 1, 1))  # noqa: DTZ001

    async def test_every_field_must_match(self) -> None:
        async with self.make_store() as store:
            for number in range(8):
                worker = await self.started(
                    store,
                    f'run-{number}',
                    graph='AB'[number & 1],
                    labels={'l': 'AB'[number >> 1 & 1]},
                )
                await worker.ends_as('done' if number & 4 else 'failed')
            assert await self._ids(store, graph='A', labels={'l': 'B'}, status='done') == {'run-6'}
            assert await self._ids(store, graph='A', labels={'l': 'B'}) == {'run-2', 'run-6'}
            assert await self._ids(store, graph='B', status='failed') == {'run-1', 'run-3'}
            assert await self._ids(store, graph='C', status='failed') == set()

    async def test_the_newest_come_first(self) -> None:
        async with self.make_store() as store:
            runs = await self._created(store, 12)
            assert _order(runs) == sorted(_order(runs), reverse=True)
            assert [run.created_at for run in runs] == sorted(
                (run.created_at for run in runs), reverse=True
            )
            assert await store.runs(limit=5) == runs[:5]
            # A write moves nothing.
            await store.cancel('run-3')
            assert [run.run_id for run in await store.runs()] == [run.run_id for run in runs]

    @pytest.mark.parametrize('limit', [1, 3, 5, 13])
    async def test_pages_hold_every_run_once(self, limit: int) -> None:
        async with self.make_store() as store:
            runs = await self._created(store, 13)
            paged: list[Run] = []
            after: Run | None = None
            while page := await store.runs(limit=limit, after=after):
                assert len(page) <= limit
                paged += page
                after = page[-1]
            assert paged == runs

    async def test_pages_of_runs_created_at_once_hold_every_run_once(self) -> None:
        async with self.make_store() as store:
            names = [
                f'{name}{number}' for name in ('a', 'B', 'é', '漢', '🎉') for number in range(6)
            ]
            await asyncio.gather(*(self.worker(store, name).create() for name in names))
            runs = await store.runs()
            assert _order(runs) == sorted(_order(runs), reverse=True)
            paged: list[Run] = []
            while page := await store.runs(limit=4, after=paged[-1] if paged else None):
                paged += page
            assert paged == runs
            assert {run.run_id for run in paged} == set(names)

    async def test_runs_of_one_moment_are_ordered_by_id_as_utf8(self) -> None:
        async with self.make_store() as store:
            # Whatever run stands before another in the order: ids decide when the time is the same.
            ids = ['B', 'a', 'a\u0301', 'b', 'é', '\ufffd', '🎉']
            assert ids == sorted(ids, key=str.encode)
            for run_id in ids:
                await self.started(store, run_id)
            for run_id in ids:
                run = await store.run(run_id)
                newer = {r.run_id for r in await store.runs() if r.created_at > run.created_at}
                older = set(ids) - newer - {run_id}
                for other in ids:
                    after = RunQuery(after=(run.created_at, other))
                    found = {r.run_id for r in await store.find(after)}
                    mine = {run_id} if run_id.encode() < other.encode() else set[str]()
                    assert found == older | mine, (run_id, other)

    async def test_after_a_run_that_is_gone_the_order_goes_on(self) -> None:
        async with self.make_store() as store:
            runs = await self._created(store, 6)
            await store.delete(runs[2].run_id, force=True)
            assert await store.runs(after=runs[2]) == runs[3:]

    async def test_a_query_and_pages_go_together(self) -> None:
        async with self.make_store() as store:
            for number in range(12):
                await self.started(store, f'run-{number}', graph='AB'[number % 2])
            paged: list[str] = []
            after: Run | None = None
            while page := await store.runs(graph='A', limit=2, after=after):
                paged += [run.run_id for run in page]
                after = page[-1]
            assert paged == [f'run-{number}' for number in (10, 8, 6, 4, 2, 0)]

    async def test_a_limit_below_one_is_refused(self) -> None:
        async with self.make_store() as store:
            with pytest.raises(ValueError, match='limit'):
                await store.runs(limit=0)


def _order(runs: Sequence[Run]) -> list[tuple[datetime, bytes]]:
    return [(run.created_at, run.run_id.encode()) for run in runs]
