"""Commits without a graph: the same payload again and again, into runs of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from time import perf_counter

from graphkeep import Store
from graphkeep import owner as owners
from graphkeep.requests import NewRequest
from graphkeep.runs import Claim, Commit, Draft, NewRun, Status
from graphkeep.store import new_nonce

__all__ = ('Committer', 'pausing')

_DOCUMENT = (
    b'{"format":1,"state":{},"tasks":{},"joins":{},"next":{"task":1,"fork":1}}'  # is never read
)


class Committer:
    """A claimed run, to which one payload is committed as often as one likes."""

    def __init__(self, store: Store, claim: Claim, payload: bytes) -> None:
        self._store = store
        self._claim = claim
        self._payload = payload
        self._seq = 0

    @classmethod
    async def start(
        cls, store: Store, run_id: str, payload: bytes, *, graph: str | None = None
    ) -> Committer:
        """Create and claim the run."""
        owner = owners.current()
        new = NewRun(run_id=run_id, graph=graph, owner=owner, ttl=3600, nonce=new_nonce())
        draft = Draft(seq=0, kind='full', event='start', data=_DOCUMENT)
        return cls(store, (await store.create(new, draft)).claim(), payload)

    async def times(self, count: int) -> list[float]:
        """Make commits, and give how long each took."""
        taken: list[float] = []
        for _ in range(count):
            commit = self.next()
            started = perf_counter()
            ending = await self._store.append(commit)
            taken.append(perf_counter() - started)
            ending.unwrap()
        return taken

    def next(self, *, status: Status = 'running', asks: tuple[NewRequest, ...] = ()) -> Commit:
        """The next commit, not written yet."""
        self._seq += 1
        draft = Draft(
            seq=self._seq,
            kind='delta',
            event='step',
            data=self._payload,
            node='Tick',
            task=str(self._seq),
            started_at=datetime.now(tz=UTC),
            duration=0.001,
        )
        return Commit(
            claim=self._claim,
            draft=draft,
            status=status,
            ttl=3600,
            nonce=new_nonce(),
            asks=asks,
        )


async def pausing(store: Store, run_id: str, payload: bytes, *, graph: str | None = None) -> float:
    """Create a run, have a commit of it ask and pause, and give how long that commit took."""
    committer = await Committer.start(store, run_id, payload, graph=graph)
    commit = committer.next(status='paused', asks=(_ASKED,))
    started = perf_counter()
    ending = await store.append(commit)
    taken = perf_counter() - started
    ending.unwrap()
    return taken


_ASKED = NewRequest(
    request_id='1:manager',
    task='1',
    node='Tick',
    name='manager',
    prompt='May order 7 be refunded?',
    payload=b'{"order":7,"customer":"ACME Ltd.","amount":"129.90","currency":"EUR"}',
    schema=(
        b'{"properties":{"approved":{"title":"Approved","type":"boolean"},"comment":{"default":"",'
        b'"title":"Comment","type":"string"}},"required":["approved"],"title":"Approval",'
        b'"type":"object"}'
    ),
    timeout=604_800.0,
)
