"""Random histories of many workers, against a dict: no store loses, invents or mixes up anything.

Workers claim, write, ask, pause, crash, come back as zombies and try again after lost replies,
while others answer, cancel, delete, fork and prune, and leases and deadlines pass. After every step
each store has to be what a few dicts say.
"""

# pyright: reportAttributeAccessIssue=false
# hypothesis makes the machine of each store from the class: its store is set there.

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from graphkeep.document import Change, Document
from graphkeep.errors import (
    LeaseLostError,
    RequestClosedError,
    RequestNotFoundError,
    RunBusyError,
    RunExistsError,
    RunMovedError,
    RunNotFoundError,
    RunStatusError,
)
from graphkeep.requests import NewRequest
from graphkeep.runs import Claim, ClaimRequest, Commit, Draft, NewRun, Status
from graphkeep.store import Store, new_nonce
from graphkeep.stores.memory import MemoryStore
from graphkeep.stores.postgres import PostgresStore
from graphkeep.stores.redis import RedisStore
from graphkeep.stores.sqlite import SQLiteStore

RUN_IDS = ('a', 'b', "c'{}%")
OWNERS = ('one', 'two', 'three')
LEASE = 60.0
NAMES = ('0:x', '0:y', '1:z')
FAR = datetime(2199, 1, 1, tzinfo=UTC)


Timeout = Literal['none', 'far', 'past']
SECONDS: dict[Timeout, float | None] = {'none': None, 'far': 1000.0, 'past': -1.0}
TIMEOUTS: dict[float | None, Timeout] = {seconds: name for name, seconds in SECONDS.items()}


@dataclass
class Asked:
    """What the model knows of one request."""

    timeout: Timeout
    status: str = 'open'
    answer: int | None = None
    error: str | None = None
    closed: bool = False


@dataclass
class Known:
    """What the model knows of one run."""

    status: Status
    epoch: int
    owner: str | None
    alive: bool
    """Whether the lease of a running run has not passed."""
    nonce: str
    texts: list[bytes]
    """The document at every seq."""
    fulls: list[bool]
    first: int = 0
    """The oldest snapshot that is kept."""
    error: dict[str, Any] | None = None
    parent: tuple[str, int] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    answered: int = 0
    wake: Timeout = 'none'
    requests: dict[str, Asked] = field(default_factory=dict)

    @property
    def due(self) -> bool:
        return self.status == 'paused' and self.wake == 'past'

    def close(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.closed:
            request.closed = True
            request.status = 'closed' if request.status == 'open' else request.status

    @property
    def seq(self) -> int:
        return len(self.texts) - 1

    @property
    def full_seq(self) -> int:
        return max(seq for seq, full in enumerate(self.fulls) if full)


@dataclass
class Held:
    """A claim that somebody got once, and may still believe in."""

    claim: Claim
    seq: int
    """The snapshot its holder believes the run to be at."""
    text: bytes
    """The document its holder believes the run to have."""
    sent: list[Commit] = field(default_factory=list)


def stepped(text: bytes, value: str) -> tuple[bytes, bytes]:
    """The document after a step, and the delta to it: the state counts, and remembers a value."""
    document = Document.from_json(text)
    assert isinstance(document.state, dict)
    count = int(document.state['count']) + 1
    change = Change(
        state={
            'count': b'%d' % count,
            'values': bytes(document.state['values'])[:-1]
            + (b',' if count > 1 else b'')
            + json.dumps(value).encode()
            + b']',
        }
    )
    delta = document.delta(change)
    document.advance(change)
    return document.to_json(), delta


START = Document(state={'count': b'0', 'values': b'[]'}).to_json()


class Histories(RuleBasedStateMachine):
    """What can happen to the runs of one store."""

    make_store: Callable[[], tuple[Store, Callable[[], None]]]
    history: Literal['all', 'latest'] = 'all'

    held = Bundle('held')

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store, self.forget = type(self).make_store()
        self.runs: dict[str, Known] = {}
        self.ended_epochs: dict[str, int] = {}
        self.forks = 0

    @initialize()
    def open(self) -> None:
        self.do(self.store.open())

    def teardown(self) -> None:
        try:
            self.do(self.store.close())
        finally:
            self.runner.close()
            self.forget()

    def do(self, call: Any) -> Any:
        return self.runner.run(call)

    def raises(self, error: type[Exception], call: Any) -> None:
        with pytest.raises(error) as caught:
            self.do(call)
        assert caught.type is error

    # --- writing ---------------------------------------------------------------------------------

    @rule(
        target=held,
        run_id=st.sampled_from(RUN_IDS),
        owner=st.sampled_from((None, *OWNERS)),
        retried=st.booleans(),
    )
    def create(self, run_id: str, owner: str | None, retried: bool) -> Any:
        labels = {'owner': owner or 'nobody'}
        new = NewRun(
            run_id=run_id, graph='g', labels=labels, owner=owner, ttl=LEASE, nonce=new_nonce()
        )
        draft = Draft(seq=0, kind='full', event='start', data=START)
        if run_id in self.runs:
            self.raises(RunExistsError, self.store.create(new, draft))
            return multiple()
        run = self.do(self.store.create(new, draft))
        if retried:
            assert self.do(self.store.create(new, draft)).epoch == run.epoch
        assert run.epoch > self.ended_epochs.get(run_id, 0)
        self.runs[run_id] = Known(
            status='ready' if owner is None else 'running',
            epoch=run.epoch,
            owner=owner,
            alive=owner is not None,
            nonce=new.nonce,
            texts=[START],
            fulls=[True],
            labels=labels,
        )
        return multiple() if owner is None else Held(run.claim(), 0, START)

    @rule(
        target=held,
        run_id=st.sampled_from(RUN_IDS),
        owner=st.sampled_from(OWNERS),
        allow=st.sampled_from([('ready',), ('ready', 'failed'), ('paused',), ()]),
        names_epoch=st.sampled_from([None, 0, -1]),
        names_seq=st.sampled_from([None, 0, 1]),
        retried=st.booleans(),
    )
    def claim(
        self,
        run_id: str,
        owner: str,
        allow: tuple[Status, ...],
        names_epoch: int | None,
        names_seq: int | None,
        retried: bool,
    ) -> Any:
        known = self.runs.get(run_id)
        epoch, seq = (known.epoch, known.seq) if known else (1, 0)
        request = ClaimRequest(
            run_id=run_id,
            owner=owner,
            ttl=LEASE,
            allow=allow,
            expected_epoch=None if names_epoch is None else epoch + names_epoch,
            expected_seq=None if names_seq is None else seq + names_seq,
            nonce=new_nonce(),
        )
        if known is None:
            self.raises(RunNotFoundError, self.store._claim(request))
            return multiple()
        if names_seq == 1:
            self.raises(RunMovedError, self.store._claim(request))
            return multiple()
        if known.status == 'running' and known.alive and names_epoch != 0:
            self.raises(RunBusyError, self.store._claim(request))
            return multiple()
        if known.status != 'running' and known.status not in allow and not known.due:
            self.raises(RunStatusError, self.store._claim(request))
            return multiple()
        claimed = self.do(self.store._claim(request))
        if retried:
            again = self.do(self.store._claim(request))
            assert again.claim == claimed.claim
            assert again.snapshots == claimed.snapshots
        known.epoch += 1
        known.status, known.owner, known.alive = 'running', owner, True
        known.wake = 'none'
        known.nonce = request.nonce
        assert claimed.claim == Claim(run_id=run_id, owner=owner, epoch=known.epoch)
        kept = range(known.full_seq, known.seq + 1) if names_seq is None else ()
        assert [snapshot.seq for snapshot in claimed.snapshots] == list(kept)
        return Held(claimed.claim, known.seq, known.texts[-1])

    @rule(
        held=held,
        status=st.sampled_from(['running'] * 4 + ['ready', 'paused', 'failed', 'done']),
        full=st.booleans(),
        value=st.text(max_size=3),
        lost=st.sampled_from(['nothing', 'nothing', 'request', 'reply']),
        data=st.data(),
    )
    def step(
        self, held: Held, status: Status, full: bool, value: str, lost: str, data: st.DataObject
    ) -> None:
        """Somebody writes who believes to hold the run, whether he does or not."""
        text, delta = stepped(held.text, value)
        error = {'type': 'ValueError', 'message': value} if status == 'failed' else None
        commit = Commit(
            claim=held.claim,
            draft=Draft(
                seq=held.seq + 1,
                kind='full' if full else 'delta',
                event='step',
                data=text if full else delta,
                error=error,
            ),
            status=status,
            ttl=LEASE,
            nonce=new_nonce(),
            history=self.history,
            **self.asking(held, data),
        )
        held.sent.append(commit)
        if lost == 'request':
            # He crashed, or will try again later.
            return
        known = self.runs.get(held.claim.run_id)
        valid = known is not None and (known.status, known.epoch, known.seq) == (
            'running',
            held.claim.epoch,
            held.seq,
        )
        ending = self.do(self.store.append(commit))
        if not valid:
            assert isinstance(ending.error, LeaseLostError)
            return
        assert known is not None
        assert ending.error is None
        self.written(known, commit, text)
        if lost == 'nothing':
            held.seq, held.text = held.seq + 1, text

    def asking(self, held: Held, data: st.DataObject) -> dict[str, Any]:
        """What a commit asks and closes, and how many answers its worker has seen."""
        known = self.runs.get(held.claim.run_id)
        there = {} if known is None else known.requests
        asks: list[NewRequest] = []
        for name in data.draw(st.sets(st.sampled_from(NAMES), max_size=2)):
            timeout: Timeout = data.draw(st.sampled_from(list(SECONDS)))
            again = name in there and data.draw(st.booleans())
            asks.append(
                NewRequest(
                    request_id=name,
                    task='0',
                    node='n',
                    name=name,
                    prompt=None,
                    payload=b'[1]',
                    schema=b'true',
                    timeout=SECONDS[timeout],
                    error='no' if again else None,
                )
            )
        closes = data.draw(st.sets(st.sampled_from(NAMES), max_size=2))
        seen = 0 if known is None else known.answered - data.draw(st.sampled_from([0, 0, 1]))
        return {
            'asks': tuple(asks),
            'closes': tuple(closes - {new.request_id for new in asks}),
            'answered': max(seen, 0),
            'wake_at': data.draw(st.sampled_from([None, FAR])),
        }

    def written(self, known: Known, commit: Commit, text: bytes) -> None:
        known.texts.append(text)
        known.fulls.append(commit.draft.kind == 'full')
        known.status, known.nonce = commit.status, commit.nonce
        known.error = None if commit.draft.error is None else dict(commit.draft.error)
        known.alive = commit.status == 'running'
        known.owner = commit.claim.owner if known.alive else None
        if commit.history == 'latest' and commit.draft.kind == 'full':
            known.first = known.seq
        wakes: set[Timeout] = set() if commit.wake_at is None else {'far'}
        for new in commit.asks:
            timeout = TIMEOUTS[new.timeout]
            request = known.requests.get(new.request_id)
            if request is None:
                known.requests[new.request_id] = Asked(timeout, error=new.error)
                wakes.add(timeout)
            elif new.error is not None:
                request.status, request.answer, request.error = 'open', None, new.error
                request.closed = False
                wakes.add(request.timeout)
        for request_id in commit.closes:
            known.close(request_id)
        if commit.status == 'paused':
            if known.answered > commit.answered:
                known.status = 'ready'
            else:
                known.wake = 'past' if 'past' in wakes else 'far' if 'far' in wakes else 'none'

    @rule(held=held, data=st.data())
    def step_again(self, held: Held, data: st.DataObject) -> None:
        """A commit that was sent once is sent again: the nonce tells whether it went through."""
        if not held.sent:
            return
        commit = data.draw(st.sampled_from(held.sent))
        known = self.runs.get(held.claim.run_id)
        ending = self.do(self.store.append(commit))
        if known is not None and known.nonce == commit.nonce:
            assert ending.error is None
            held.seq, held.text = known.seq, known.texts[-1]
            return
        valid = known is not None and (known.status, known.epoch, known.seq) == (
            'running',
            commit.claim.epoch,
            commit.draft.seq - 1,
        )
        if not valid:
            assert isinstance(ending.error, LeaseLostError)
            return
        assert known is not None
        assert ending.error is None
        document = Document.from_json(known.texts[-1])
        if commit.draft.kind == 'full':
            document = Document.from_json(commit.draft.data)
        else:
            document.apply(commit.draft.data)
        self.written(known, commit, document.to_json())
        held.seq, held.text = known.seq, known.texts[-1]

    # --- answers ---------------------------------------------------------------------------------

    @rule(
        run_id=st.sampled_from(RUN_IDS),
        request_id=st.sampled_from(NAMES),
        answer=st.sampled_from([1, 2]),
    )
    def answer(self, run_id: str, request_id: str, answer: int) -> None:
        known = self.runs.get(run_id)
        call = self.store.answer(run_id, request_id, answer)
        if known is None:
            self.raises(RunNotFoundError, call)
            return
        request = known.requests.get(request_id)
        if request is None:
            self.raises(RequestNotFoundError, call)
            return
        if request.status == 'open' and request.timeout == 'past':
            request.status = 'expired'
        if request.status in ('closed', 'expired') or request.answer not in (None, answer):
            self.raises(RequestClosedError, call)
            return
        given = self.do(call)
        assert (given.status, given.answer) == ('answered', answer)
        if request.status == 'open':
            request.status, request.answer = 'answered', answer
            known.answered += 1
            if known.status == 'paused':
                known.status, known.wake = 'ready', 'none'

    @rule(run_id=st.sampled_from(RUN_IDS))
    def expire_requests(self, run_id: str) -> None:
        self.do(self.store.expire(run_id))
        known = self.runs.get(run_id)
        for request in () if known is None else known.requests.values():
            if request.status == 'open' and request.timeout == 'past':
                request.status = 'expired'

    # --- leases ----------------------------------------------------------------------------------

    @rule(held=held)
    def renew(self, held: Held) -> None:
        known = self.runs.get(held.claim.run_id)
        [error] = self.do(self.store.renew([held.claim]))
        if known and known.status == 'running' and known.epoch == held.claim.epoch:
            assert error is None
            known.alive = True
        else:
            assert isinstance(error, LeaseLostError)

    @rule(held=held)
    def release(self, held: Held) -> None:
        known = self.runs.get(held.claim.run_id)
        self.do(self.store.release(held.claim))
        if known and known.status == 'running' and known.epoch == held.claim.epoch:
            known.status, known.owner, known.alive = 'ready', None, False

    @rule(run_id=st.sampled_from(RUN_IDS))
    def expire(self, run_id: str) -> None:
        """The owner is gone, and time goes by."""
        known = self.runs.get(run_id)
        if known is None or known.status != 'running':
            return
        assert known.owner is not None
        claim = Claim(run_id=run_id, owner=known.owner, epoch=known.epoch)
        assert self.do(self.store._renew([claim], 0.0)) == [None]
        known.alive = False

    # --- ending ----------------------------------------------------------------------------------

    @rule(run_id=st.sampled_from(RUN_IDS))
    def cancel(self, run_id: str) -> None:
        known = self.runs.get(run_id)
        if known is None:
            self.raises(RunNotFoundError, self.store.cancel(run_id))
        elif known.status == 'done':
            self.raises(RunStatusError, self.store.cancel(run_id))
        else:
            run = self.do(self.store.cancel(run_id))
            if known.status != 'cancelled':
                known.epoch += 1
                known.wake = 'none'
                for request_id in known.requests:
                    known.close(request_id)
            known.status, known.owner, known.alive = 'cancelled', None, False
            assert run.status == 'cancelled'

    @rule(run_id=st.sampled_from(RUN_IDS), force=st.booleans())
    def delete(self, run_id: str, force: bool) -> None:
        known = self.runs.get(run_id)
        call = self.store.delete(run_id, force=force)
        if known is None:
            self.raises(RunNotFoundError, call)
        elif known.alive and not force:
            self.raises(RunBusyError, call)
        else:
            self.do(call)
            self.ended_epochs[run_id] = known.epoch
            del self.runs[run_id]

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.runs)))
        parent = self.runs[run_id]
        at = data.draw(st.integers(-1, parent.seq + 1))
        self.forks += 1
        call = self.store.fork(run_id, new_run_id=f'fork-{self.forks}', at=at)
        full = max((s for s in range(parent.seq + 1) if parent.fulls[s] and s <= at), default=-1)
        if not 0 <= at <= parent.seq or full < parent.first:
            self.raises(ValueError, call)
            return
        run = self.do(call)
        self.runs[run.run_id] = Known(
            status='ready',
            epoch=run.epoch,
            owner=None,
            alive=False,
            nonce='',
            texts=[parent.texts[at]],
            fulls=[True],
            parent=(run_id, at),
            labels=parent.labels,
        )

    @rule(status=st.sampled_from(['done', 'failed', 'cancelled', 'running']))
    def prune(self, status: Status) -> None:
        ended = {
            run_id
            for run_id, known in self.runs.items()
            if known.status == status and not known.alive
        }
        assert self.do(self.store.prune(older_than=timedelta(days=-1), status=status)) == len(ended)
        for run_id in ended:
            self.ended_epochs[run_id] = self.runs.pop(run_id).epoch

    # --- what must be true -----------------------------------------------------------------------

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        self.do(self.compare())

    async def compare(self) -> None:
        found = {run.run_id: run for run in await self.store.runs(limit=1000)}
        assert found.keys() == self.runs.keys()
        for run_id, known in self.runs.items():
            run = found[run_id]
            assert (run.status, run.epoch, run.owner) == (known.status, known.epoch, known.owner)
            assert (run.seq, run.full_seq) == (known.seq, known.full_seq)
            assert run.interrupted == (known.status == 'running' and not known.alive)
            assert (run.lease_until is None) == (known.status != 'running')
            assert run.error == known.error
            assert run.labels == known.labels
            assert run.parent_run_id == (known.parent[0] if known.parent else None)
            assert run.parent_seq == (known.parent[1] if known.parent else None)
            assert run.created_at <= run.updated_at
            document = await self.store.document(run_id)
            assert document.to_json() == known.texts[-1]
            assert (run.answered, run.due) == (known.answered, known.due)
            assert (run.wake_at is None) == (known.wake == 'none')
            requests = {
                r.request_id: r for r in await self.store.requests(run_id=run_id, status=())
            }
            assert requests.keys() == known.requests.keys()
            for request_id, asked in known.requests.items():
                request = requests[request_id]
                assert (request.status, request.answer) == (asked.status, asked.answer)
                assert request.error == asked.error
                assert (request.closed_at is not None) == asked.closed
                assert (request.deadline is None) == (asked.timeout == 'none')
        await self.compare_lists()

    async def compare_lists(self) -> None:
        """What is found over all runs."""
        opened = {(r.run_id, r.request_id) for r in await self.store.requests(limit=1000)}
        assert opened == {
            (run_id, request_id)
            for run_id, known in self.runs.items()
            for request_id, request in known.requests.items()
            if request.status == 'open'
        }
        free = await self.store.candidates(['g'], limit=1000)
        assert {run.run_id for run in free} == {
            run_id
            for run_id, known in self.runs.items()
            if known.status == 'ready'
            or known.due
            or (known.status == 'running' and not known.alive)
        }

    async def compare_all(self) -> None:
        """Every snapshot of every run: once, at the end."""
        await self.compare()
        for run_id, known in self.runs.items():
            snapshots = await self.store.snapshots(run_id)
            assert [s.seq for s in snapshots] == list(range(known.first, known.seq + 1))
            for seq in range(known.first, known.seq + 1):
                document = await self.store.document(run_id, at=seq)
                assert document.to_json() == known.texts[seq]
        for status in ('ready', 'running', 'paused', 'failed', 'done', 'cancelled'):
            runs = await self.store.runs(status=status)
            expected = {run_id for run_id, known in self.runs.items() if known.status == status}
            assert {run.run_id for run in runs} == expected


Made = tuple[Store, Callable[[], None]]
"""A store over an empty database, and what removes the database."""


def run(
    make_store: Callable[[], Made], *, examples: int, history: Literal['all', 'latest']
) -> None:
    class Machine(Histories):
        def teardown(self) -> None:
            try:
                self.do(self.compare_all())
            finally:
                super().teardown()

    Machine.make_store = staticmethod(make_store)
    Machine.history = history
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


both = pytest.mark.parametrize('history', ['all', 'latest'])
_numbers = count()


@both
def test_memory(history: Literal['all', 'latest']) -> None:
    run(lambda: (MemoryStore(), lambda: None), examples=75, history=history)


@both
def test_sqlite(history: Literal['all', 'latest'], tmp_path: Path) -> None:
    def make() -> Made:
        folder = TemporaryDirectory(dir=tmp_path)
        store = SQLiteStore(Path(folder.name) / 'runs.db', synchronous='NORMAL')
        return store, folder.cleanup

    run(make, examples=12, history=history)


@pytest.mark.postgres
@both
def test_postgres(history: Literal['all', 'latest'], postgres_url: str) -> None:
    def make() -> Made:
        store = PostgresStore(postgres_url, table_prefix=f'test_{next(_numbers)}')
        return store, lambda: None

    run(make, examples=8, history=history)


@pytest.mark.redis
@both
def test_redis(history: Literal['all', 'latest'], redis_url: str) -> None:
    def make() -> Made:
        return RedisStore(redis_url, prefix=f'test-{next(_numbers)}'), lambda: None

    run(make, examples=8, history=history)
