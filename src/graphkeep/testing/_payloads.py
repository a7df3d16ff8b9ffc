"""Contract: what was written comes back, byte for byte; any text may name a run."""

from __future__ import annotations

import hashlib
import random

import pytest

from ..runs import Draft, NewRun
from ..store import Store, new_nonce
from ._base import Contract
from ._calls import text_at
from ._finding import HOSTILE_TEXTS

__all__ = ('Payloads',)

PARTS: dict[str, bytes] = {
    'NUL': rb'"\u0000 and \\u0000 and \\\u0000"',
    'a lone high surrogate': rb'"\ud800"',
    'a lone low surrogate': rb'["\udfff","a\udc00b"]',
    'a pair of escapes': rb'"\ud83c\udf89"',
    'a key with NUL and a surrogate': rb'{"\u0000":{"\ud800":1}}',
    'an escape that need not be one': rb'["\u00e9","\/","\u0041"]',
    'both spellings of a letter': '{"é":1,"e\u0301":2,"\\u00e9":3}'.encode(),
    'keys that differ by case and space': b'{"a":1,"A":2," a":3,"":4}',
    'the order of keys': b'{"b":1,"a":2,"10":3,"9":4}',
    'a key that comes twice': b'{"deep":{"a":1,"a":2}}',
    'numbers that are equal': b'[1,1.0,1.00,1e0,10E-1,true]',
    'zeros': b'[0,-0,0.0,-0.0,0e10]',
    'a large integer': b'1' * 400,
    'numbers that no float holds': b'[1e400,-1e-400,0.1000000000000000055511151231257827]',
    'multibyte text': '"Zürich 漢字 🎉 \u2028\u2029 \u202eabc שלום"'.encode(),
    'control characters': rb'"\b\f\n\r\t\u001f\u007f"',
    'quotes': rb"""["'","\"","\\","`","$$","$1","{}","%s","--",";"]""",
    'nothing': b'[null,{},[],"",{"":null}]',
    'deep arrays': b'[' * 900 + b']' * 900,
    'deep objects': b'{"a":' * 900 + b'1' + b'}' * 900,
}


class Payloads(Contract):
    """No store interprets what it keeps."""

    async def test_a_state_comes_back_byte_for_byte(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            for name, part in PARTS.items():
                worker = await self.started(store, name, state={'first': part})
                assert part in worker.texts[0]
                await worker.step(state={'second': part})
                await worker.step(state={'second': b'[%b,%b]' % (part, part)})
                await worker.step(kind='full', state={'third': b'[1,%b]' % part})
                await worker.step(state={'third': b'[1,%b,2]' % part})
                await worker.step(status='done', event='end', output=b'{"o":%b}' % part)
                await worker.check(store=other)
                stored = {s.seq: s.data for s in await other.snapshots(name)}
                assert [stored[0], stored[3]] == [worker.texts[0], worker.texts[3]], name
                await store.fork(name, new_run_id=f'fork of {name}', at=4)
                assert await text_at(other, f'fork of {name}') == worker.texts[4], name

    async def test_a_state_may_be_any_json(self) -> None:
        async with self.make_store() as store:
            for state in (b'null', b'[1,2]', b'"text"', b'1e400', b'{}'):
                worker = await self.started(store, state.decode(), state=state)
                assert b'"state":%b,' % state in worker.texts[0]
                await worker.append(worker.commit())
                await worker.check()

    async def test_deltas_come_back_byte_for_byte(self) -> None:
        async with self.make_store() as store:
            worker = await self.started(store, state={'items': []})
            written: list[bytes] = [worker.texts[0]]
            for number in range(1, 10):
                commit = worker.commit(state={'items': ['\0\ud800"\\' * n for n in range(number)]})
                await worker.append(commit)
                written.append(commit.draft.data)
            assert [s.data for s in await store.snapshots('run-1')] == written

    @pytest.mark.parametrize('megabytes', [1, 20])
    async def test_a_large_document(self, megabytes: int) -> None:
        async with self.make_store() as store:
            noise = random.Random(megabytes)
            text = noise.randbytes(megabytes * 250_000).hex() * 2
            worker = await self.started(store, state={'large': text, 'small': 1})
            assert len(worker.texts[0]) > megabytes * 1_000_000
            await worker.step(state={'small': 2})
            await worker.step(state={'large': text[::-1]})
            await worker.step(kind='full', state={'small': 3})
            read = hashlib.sha256(await text_at(store, 'run-1'))
            assert read.digest() == hashlib.sha256(worker.texts[3]).digest()
            sizes = {s.seq: len(s.data) for s in await store.snapshots('run-1')}
            if not self.always_full:
                assert sizes[1] < 1_000

    async def test_any_text_names_a_run_of_its_own(self) -> None:
        async with self.make_store() as store, self.make_store() as other:
            workers = [self.worker(store, run_id) for run_id in HOSTILE_TEXTS]
            for worker in workers:
                await worker.create(state={'id': worker.run_id})
            for worker in workers:
                await worker.step(state={'again': worker.run_id})
            for worker in workers:
                await worker.check(store=other)
                assert (await other.run(worker.run_id)).run_id == worker.run_id
            assert {run.run_id for run in await other.runs()} == set(HOSTILE_TEXTS)

            # Each is ended in its own way, and no other with it.
            for worker in workers[::2]:
                await store.delete(worker.run_id, force=True)
            for worker in workers[1::2]:
                assert (await other.run(worker.run_id)).status == 'running'
                await worker.step(status='done', event='end', output=worker.run_id)
                await worker.check(store=other)
                fork = await store.fork(worker.run_id, new_run_id=f'{worker.run_id[:100]} fork')
                assert fork.parent_run_id == worker.run_id
            assert len(await other.runs(status='done')) == len(workers[1::2])

    async def test_what_cannot_name_a_run_is_refused(self) -> None:
        async with self.make_store() as store:
            for run_id in ('', 'a\0b', '\0', '\ud800', 'x' * 513, 'é' * 257, '🎉' * 129):
                await self._refuses(store, run_id, ValueError)
            for other in (None, 5, b'run-1', ('run-1',)):
                await self._refuses(store, other, TypeError)

    async def _refuses(self, store: Store, run_id: object, error: type[Exception]) -> None:
        worker = self.worker(store, ttl=30.0)
        await worker.create()
        before = await store.run('run-1')
        bad: str = run_id  # pyright: ignore[reportAssignmentType]
        draft = Draft(seq=0, kind='full', event='start', data=worker.texts[0])
        calls = [
            store.create(NewRun(run_id=bad, nonce=new_nonce()), draft),
            store.run(bad),
            store.snapshots(bad),
            store.document(bad),
            store.read(bad),
            store.claim(bad),
            store.fork(bad, new_run_id='fork'),
            store.fork('run-1', new_run_id=bad),
            store.cancel(bad),
            store.delete(bad, force=True),
        ]
        for call in calls:
            with pytest.raises(error):
                await call
        assert await store.runs() == [before]
        await store.delete('run-1', force=True)

    async def test_what_cannot_be_a_label_is_refused(self) -> None:
        async with self.make_store() as store:
            for labels in (
                {'': 'v'},
                {'a\0': 'v'},
                {'k': '\0'},
                {'k': '\ud800'},
                {'k': 'x' * 513},
            ):
                with pytest.raises(ValueError, match='label'):
                    await self.started(store, labels=labels)
                with pytest.raises(ValueError, match='label'):
                    await store.runs(labels=labels)
            assert await store.runs() == []
