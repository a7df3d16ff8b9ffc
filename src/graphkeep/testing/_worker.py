"""A run that a test writes by hand, through the port, as a journal would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from ..document import Change, Document
from ..requests import NewRequest
from ..runs import Claim, Claimed, Commit, Draft, Event, NewRun, Run, SnapshotKind, Status
from ..store import Store, new_nonce
from ._calls import ELSEWHERE, take, text_at

__all__ = ('STARTED', 'Worker', 'asks', 'encoded', 'task_json')

STARTED = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def encoded(value: object) -> bytes:
    """`value` as compact JSON; bytes are JSON already."""
    if isinstance(value, bytes):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(',', ':')).encode()


def task_json(node: str, inputs: object = None) -> bytes:
    """A pending task, in the stored form."""
    return b'{"node":%b,"inputs":%b,"forks":[["__start__","0",0]],"born":1764489600000001}' % (
        encoded(node),
        encoded({} if inputs is None else inputs),
    )


def asks(
    name: str = 'manager', *, task: str = '0', timeout: float | None = None, **fields: Any
) -> NewRequest:
    """A request of a task, in the stored form."""
    given: dict[str, Any] = {
        'prompt': 'Is “this” all right?',
        'payload': encoded({'amount': 12, 'nul': '\0', 'lone': '\ud800'}),
        'schema': encoded({'type': 'object', 'required': ['ok']}),
        **fields,
    }
    return NewRequest(f'{task}:{name}', task, f'Node{task}', name, timeout=timeout, **given)


class Worker:
    """Whoever claims one run and writes it: keeps the document, drafts snapshots, commits them.

    It remembers the document at every seq in `texts`, which is what a store has to give back.
    """

    def __init__(
        self,
        store: Store,
        run_id: str = 'run-1',
        *,
        owner: str = ELSEWHERE,
        ttl: float = 30.0,
        always_full: bool = False,
        reclaims: bool = False,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.owner = owner
        self.ttl = ttl
        self.always_full = always_full
        self.reclaims = reclaims
        self.seq = -1
        self.document = Document(state={})
        self.texts: dict[int, bytes] = {}
        self.kinds: dict[int, SnapshotKind] = {}
        self._claim: Claim | None = None
        self._drafted: dict[str, tuple[int, Change]] = {}

    @property
    def claim(self) -> Claim:
        """The claim it was given last, valid or not."""
        assert self._claim is not None, f'nobody claimed {self.run_id!r}'
        return self._claim

    def successor(self, store: Store | None = None, *, owner: str = f'{ELSEWHERE}-2') -> Worker:
        """Another worker for the same run: it knows what this one wrote, and has no claim."""
        other = Worker(
            store or self.store,
            self.run_id,
            owner=owner,
            ttl=self.ttl,
            always_full=self.always_full,
            reclaims=self.reclaims,
        )
        other.seq = self.seq
        other.document = Document.from_json(self.texts[self.seq])
        other.texts, other.kinds = dict(self.texts), dict(self.kinds)
        return other

    async def create(
        self,
        *,
        claimed: bool = True,
        nonce: str | None = None,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        state: Mapping[str, object] | bytes | None = None,
    ) -> Run:
        """Create the run, `running` for this worker or `ready`."""
        self.document = Document(
            state=state
            if isinstance(state, bytes)
            else {'seq': b'0', **{key: encoded(part) for key, part in (state or {}).items()}},
            tasks={'0': task_json('Node0')},
            next=b'{"task":1,"fork":1}',
        )
        new = NewRun(
            run_id=self.run_id,
            graph=graph,
            labels=labels or {},
            owner=self.owner if claimed else None,
            ttl=self.ttl,
            nonce=nonce or new_nonce(),
        )
        text = self.document.to_json()
        run = await self.store.create(new, Draft(seq=0, kind='full', event='start', data=text))
        self.seq = 0
        self.texts, self.kinds = {0: text}, {0: 'full'}
        if claimed:
            self._claim = run.claim()
        return run

    async def take(
        self,
        *,
        allow: tuple[Status, ...] = ('ready',),
        expected_epoch: int | None = None,
        expected_seq: int | None = None,
        nonce: str | None = None,
    ) -> Claimed:
        """Claim the run for this worker's owner."""
        claimed = await take(
            self.store,
            self.run_id,
            owner=self.owner,
            ttl=self.ttl,
            allow=allow,
            expected_epoch=expected_epoch,
            expected_seq=expected_seq,
            nonce=nonce,
        )
        self._claim = claimed.claim
        return claimed

    def draft(
        self,
        *,
        kind: SnapshotKind = 'delta',
        event: Event = 'step',
        seq: int | None = None,
        state: Mapping[str, object] | None = None,
        output: object = None,
        node: str | None = None,
        task: str | None = None,
        started_at: datetime | None = None,
        duration: float | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> tuple[Draft, Change]:
        """The next snapshot: `state` has the members that change, `output` ends the run."""
        number = self.seq + 1 if seq is None else seq
        parts = self.document.state
        change = Change(next=b'{"task":%d,"fork":1}' % (number + 1))
        if isinstance(parts, dict):
            new = {key: encoded(part) for key, part in (state or {}).items()}
            old = {key: bytes(part) for key, part in parts.items()}
            change.state = {**old, 'seq': b'%d' % number, **new}
        for key in self.document.tasks:
            change.tasks[key] = None
        if output is None:
            change.tasks[str(number)] = task_json(f'Node{number}')
        else:
            change.output = encoded(output)
        if self.always_full:
            kind = 'full'
        data = self.document.to_json(change) if kind == 'full' else self.document.delta(change)
        draft = Draft(
            seq=number,
            kind=kind,
            event=event,
            data=data,
            node=node,
            task=task,
            started_at=started_at,
            duration=duration,
            error=error,
        )
        return draft, change

    def commit(
        self,
        *,
        status: Status = 'running',
        claim: Claim | None = None,
        nonce: str | None = None,
        ttl: float | None = None,
        history: Literal['all', 'latest'] = 'all',
        asks: Sequence[NewRequest] = (),
        closes: Sequence[str] = (),
        answered: int = 0,
        wake_at: datetime | None = None,
        **draft: Any,
    ) -> Commit:
        """The next commit, not written yet. `draft` is as for `draft()`."""
        drafted, change = self.draft(**draft)
        commit = Commit(
            claim=claim or self.claim,
            draft=drafted,
            status=status,
            ttl=self.ttl if ttl is None else ttl,
            nonce=nonce or new_nonce(),
            history=history,
            asks=tuple(asks),
            closes=tuple(closes),
            answered=answered,
            wake_at=wake_at,
        )
        self._drafted[commit.nonce] = drafted.seq, change
        return commit

    def written(self, commit: Commit) -> None:
        """Go on from a commit that the store has acknowledged."""
        seq, change = self._drafted.pop(commit.nonce)
        self.document.advance(change)
        self.seq = seq
        self.texts[seq] = self.document.to_json()
        self.kinds[seq] = commit.draft.kind

    async def append(self, commit: Commit) -> None:
        """Write a commit and go on from it. Raises what the store says."""
        (await self.store.append(commit)).unwrap()
        self.written(commit)

    async def step(self, **options: Any) -> Commit:
        """Draft the next commit and write it. `options` are as for `commit()`."""
        if self.reclaims:
            await self.store.release(self.claim)
            await self.take()
        commit = self.commit(**options)
        await self.append(commit)
        return commit

    async def pauses(self, *asks: NewRequest, **options: Any) -> Commit:
        """Ask, and pause the run."""
        return await self.step(event='pause', status='paused', asks=asks, **options)

    async def ends_as(self, status: Status) -> None:
        """Bring a run that this worker holds to any status."""
        if status == 'ready':
            await self.store.release(self.claim)
        elif status == 'cancelled':
            await self.store.cancel(self.run_id)
        elif status == 'failed':
            await self.step(status='failed', event='error', error={'type': 'ValueError'})
        elif status == 'done':
            await self.step(status='done', event='end', output='the end')
        elif status == 'paused':
            await self.step(status='paused')

    async def check(self, *, store: Store | None = None, first: int = 0) -> None:
        """Assert that the store gives back what was written, from snapshot `first` on."""
        store = store or self.store
        run = await store.run(self.run_id)
        assert run.seq == self.seq
        assert run.full_seq == max(s for s, kind in self.kinds.items() if kind == 'full')
        snapshots = await store.snapshots(self.run_id)
        assert [s.seq for s in snapshots] == list(range(first, self.seq + 1))
        assert [s.kind for s in snapshots] == [self.kinds[s.seq] for s in snapshots]
        for seq in range(first, self.seq + 1):
            assert await text_at(store, self.run_id, seq) == self.texts[seq], f'snapshot {seq}'
        assert await text_at(store, self.run_id) == self.texts[self.seq]
