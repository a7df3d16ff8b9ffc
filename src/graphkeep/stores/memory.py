"""Runs in the memory of this process: for tests and for trying things out. Nothing outlives the
process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from ..errors import LeaseLostError, RunExistsError, RunNotFoundError
from ..requests import Request, RequestQuery
from ..runs import Claim, Claimed, ClaimRequest, Commit, Draft, NewRun, Run, RunQuery, Snapshot
from ..store import Store, busy, not_claimable, refused_claim
from .memory_conversations import Conversations

__all__ = ('MemoryStore',)


@dataclass(kw_only=True, slots=True)
class _Row:
    header: Run
    """The header, but for `stepped`."""
    nonce: str
    seq: int
    snapshots: list[Snapshot]
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    stepped: dict[str, Any] | None = None
    """What the commits of a running run have changed in it: many, between two that look at it."""

    @property
    def run(self) -> Run:
        """The header as it is."""
        if self.stepped is not None:
            self.header, self.stepped = replace(self.header, **self.stepped), None
        return self.header

    @run.setter
    def run(self, run: Run) -> None:
        self.header, self.stepped = run, None


@dataclass(kw_only=True, slots=True, weakref_slot=True)
class _Data:
    rows: dict[str, _Row] = field(default_factory=dict[str, _Row])
    conversations: Conversations = field(default_factory=Conversations)


_named: WeakValueDictionary[str, _Data] = WeakValueDictionary()


def _now() -> datetime:
    return datetime.now(tz=UTC)


class MemoryStore(Store):
    """A store in this process's memory.

    Stores with the same name share their runs for as long as one of them exists; without a name a
    store is alone.
    """

    def __init__(
        self, name: str | None = None, *, clock: Callable[[], datetime] = _now, **options: Any
    ) -> None:
        """Make a store.

        Args:
            name: Share runs with the other memory stores of this name.
            clock: Tells the time, as an aware datetime: stands in for the database's clock.
            **options: As for every store: `lease`, `heartbeat`, `history`, `retry`.
        """
        super().__init__(**options)
        # A subclass may wait in `_append`: then the commit must outlive its waiter.
        self.grouped = type(self) is not MemoryStore
        self._clock = clock
        self._data = _Data() if name is None else _named.setdefault(name, _Data())

    def __repr__(self) -> str:
        return f'<MemoryStore of {len(self._data.rows)} runs>'

    async def _open(self) -> None:
        pass

    async def _close(self) -> None:
        pass

    async def _create(self, run: NewRun, draft: Draft) -> Run:
        row = self._data.rows.get(run.run_id)
        if row is not None:
            if row.nonce == run.nonce:
                return row.run
            raise RunExistsError(run_id=run.run_id, status=row.run.status)
        now = self._clock()
        header = Run(
            run_id=run.run_id,
            graph=run.graph,
            status='ready' if run.owner is None else 'running',
            seq=0,
            full_seq=0,
            epoch=int(now.timestamp() * 1_000_000),
            owner=run.owner,
            lease_until=None if run.owner is None else now + timedelta(seconds=run.ttl),
            labels=dict(run.labels),
            parent_run_id=run.parent_run_id,
            parent_seq=run.parent_seq,
            created_at=now,
            updated_at=now,
        )
        self._data.rows[run.run_id] = _Row(
            header=header, nonce=run.nonce, seq=0, snapshots=[_snapshot(draft, now)]
        )
        return header

    async def _claim(self, request: ClaimRequest) -> Claimed:
        row = self._data.rows.get(request.run_id)
        if row is None:
            raise RunNotFoundError(run_id=request.run_id)
        run, now = self._seen(row.run), self._clock()
        if run.status != 'running' or row.nonce != request.nonce:
            moved = request.expected_seq is not None and run.seq != request.expected_seq
            free = run.interrupted or run.due
            free = free or (run.status == 'running' and request.expected_epoch == run.epoch)
            if moved or not (free or (run.status != 'running' and run.status in request.allow)):
                raise refused_claim(request, run)
            row.nonce = request.nonce
            run = row.run = replace(
                run,
                status='running',
                epoch=run.epoch + 1,
                owner=request.owner,
                lease_until=now + timedelta(seconds=request.ttl),
                interrupted=False,
                wake_at=None,
                due=False,
                updated_at=now,
            )
        snapshots = () if request.expected_seq is not None else tuple(_since_full(row.snapshots))
        claim = Claim(run_id=run.run_id, owner=request.owner, epoch=run.epoch)
        return Claimed(claim=claim, run=run, snapshots=snapshots)

    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        return [self._append_one(commit) for commit in commits]

    def _append_one(self, commit: Commit) -> BaseException | None:
        claim, draft = commit.claim, commit.draft
        row = self._data.rows.get(claim.run_id)
        if row is not None and row.nonce == commit.nonce:
            return None
        # Neither epoch nor status is among what a step changes.
        if row is None or not _owned(row.header, claim) or row.seq != draft.seq - 1:
            return LeaseLostError(run_id=claim.run_id, epoch=claim.epoch)
        now = self._clock()
        row.nonce, row.seq = commit.nonce, draft.seq
        changes = {} if row.stepped is None else row.stepped
        changes['seq'], changes['error'], changes['updated_at'] = draft.seq, draft.error, now
        if draft.kind == 'full':
            changes['full_seq'] = draft.seq
        if commit.status == 'running':
            changes['lease_until'] = now + timedelta(seconds=commit.ttl)
            row.stepped = changes
        else:
            ended = {'status': commit.status, 'owner': None, 'lease_until': None}
            row.run = replace(row.header, **{**changes, **ended})
        if not commit.plain:
            self._ask(row, commit, now)
        if commit.history == 'latest' and draft.kind == 'full':
            row.snapshots.clear()
        row.snapshots.append(_snapshot(draft, now))
        return None

    def _ask(self, row: _Row, commit: Commit, now: datetime) -> None:
        """Store and close the requests of a commit, and pause the run."""
        wakes = [] if commit.wake_at is None else [commit.wake_at]
        for new in commit.asks:
            known = row.requests.get(new.request_id)
            if known is not None and new.error is None:
                continue
            header = row.header
            request = row.requests[new.request_id] = (
                new.opened(header.run_id, at=now, graph=header.graph, labels=header.labels)
                if known is None
                else new.opened_again(known)
            )
            wakes += [] if request.deadline is None else [request.deadline]
        for request_id in commit.closes:
            known = row.requests.get(request_id)
            if known is not None and known.closed_at is None:
                row.requests[request_id] = _closed(known, now)
        if commit.status == 'paused':
            if row.run.answered > commit.answered:
                row.run = replace(row.run, status='ready')
            elif wakes:
                row.run = replace(row.run, wake_at=min(wakes))

    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        until = self._clock() + timedelta(seconds=ttl)
        results: list[BaseException | None] = []
        for claim in claims:
            row = self._data.rows.get(claim.run_id)
            if row is None or not _owned(row.run, claim):
                results.append(LeaseLostError(run_id=claim.run_id, epoch=claim.epoch))
            else:
                row.run = replace(row.run, lease_until=until)
                results.append(None)
        return results

    async def _release(self, claim: Claim) -> None:
        row = self._data.rows.get(claim.run_id)
        if row is not None and _owned(row.run, claim):
            row.run = replace(
                row.run, status='ready', owner=None, lease_until=None, updated_at=self._clock()
            )

    async def _header(self, run_id: str) -> Run | None:
        row = self._data.rows.get(run_id)
        return None if row is None else self._seen(row.run)

    async def _read(self, run_id: str, at: int | None) -> tuple[Run, tuple[Snapshot, ...]] | None:
        row = self._data.rows.get(run_id)
        if row is None:
            return None
        upto = [s for s in row.snapshots if at is None or s.seq <= at]
        return self._seen(row.run), tuple(_since_full(upto))

    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        row = self._data.rows.get(run_id)
        return [] if row is None else [s for s in row.snapshots if s.seq > after][:limit]

    async def _find(self, query: RunQuery) -> Sequence[Run]:
        found = [self._seen(row.run) for row in self._data.rows.values()]
        found = [run for run in found if _matches(run, query)]
        found.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
        return found[: query.limit]

    async def _cancel(self, run_id: str) -> Run:
        row = self._data.rows.get(run_id)
        if row is None:
            raise RunNotFoundError(run_id=run_id)
        if row.run.status == 'done':
            raise not_claimable(row.run)
        if row.run.status != 'cancelled':
            row.run = replace(
                row.run,
                status='cancelled',
                epoch=row.run.epoch + 1,
                owner=None,
                lease_until=None,
                wake_at=None,
                updated_at=self._clock(),
            )
            for request_id, request in row.requests.items():
                if request.closed_at is None:
                    row.requests[request_id] = _closed(request, self._clock())
        return row.run

    async def _delete(self, run_id: str, force: bool) -> None:
        row = self._data.rows.get(run_id)
        if row is None:
            raise RunNotFoundError(run_id=run_id)
        run = self._seen(row.run)
        if run.status == 'running' and not run.interrupted and not force:
            raise busy(run)
        del self._data.rows[run_id]

    async def _candidates(self, graphs: Sequence[str], limit: int) -> Sequence[Run]:
        runs = [self._seen(row.run) for row in self._data.rows.values()]
        free = [run for run in runs if run.status == 'ready' or run.interrupted or run.due]
        free = [run for run in free if run.graph in graphs]
        return sorted(free, key=lambda run: (run.updated_at, run.run_id))[:limit]

    async def _requests(self, query: RequestQuery) -> Sequence[Request]:
        rows = self._data.rows
        if query.run_id is not None:
            rows = {query.run_id: rows[query.run_id]} if query.run_id in rows else {}
        found = [r for row in rows.values() for r in row.requests.values() if _asked(r, query)]
        found.sort(key=lambda r: (r.created_at, r.run_id, r.request_id))
        return found[: query.limit]

    async def _answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        row = self._data.rows.get(run_id)
        request = None if row is None else row.requests.get(request_id)
        if row is None or request is None or request.status != 'open':
            return request
        now = self._clock()
        if request.deadline is not None and request.deadline <= now:
            request = row.requests[request_id] = replace(request, status='expired')
            return request
        request = row.requests[request_id] = replace(
            request, status='answered', answer_json=answer, answered_by=by, answered_at=now
        )
        row.run = replace(row.run, answered=row.run.answered + 1)
        if row.run.status == 'paused':
            row.run = replace(row.run, status='ready', wake_at=None, updated_at=now)
        return request

    async def _expire(self, run_id: str) -> None:
        row, now = self._data.rows.get(run_id), self._clock()
        for request_id, request in () if row is None else tuple(row.requests.items()):
            passed = request.deadline is not None and request.deadline <= now
            if row is not None and passed and request.status == 'open':
                row.requests[request_id] = replace(request, status='expired')

    async def _write_conversation(self, write: ConversationWrite) -> bool:
        return self._data.conversations.write(write, self._clock())

    async def _delete_conversation(self, conversation_id: str, revision: str) -> bool:
        return self._data.conversations.delete(conversation_id, revision)

    async def _conversations(self, query: ConversationQuery) -> Sequence[StoredConversation]:
        return self._data.conversations.find(query, self._clock())

    async def _entries(self, query: EntriesQuery) -> StoredEntries | None:
        return self._data.conversations.entries(query)

    def _seen(self, run: Run) -> Run:
        """The header as a reader sees it now."""
        if run.status == 'running' and run.lease_until is not None:
            return replace(run, interrupted=True) if run.lease_until <= self._clock() else run
        if run.status == 'paused' and run.wake_at is not None:
            return replace(run, due=True) if run.wake_at <= self._clock() else run
        return run


def _owned(run: Run, claim: Claim) -> bool:
    return run.status == 'running' and run.epoch == claim.epoch


def _snapshot(draft: Draft, now: datetime) -> Snapshot:
    return Snapshot(
        seq=draft.seq,
        kind=draft.kind,
        event=draft.event,
        data=draft.data,
        node=draft.node,
        task=draft.task,
        started_at=None if draft.started_at is None else draft.started_at.astimezone(UTC),
        duration=draft.duration,
        error=draft.error,
        created_at=now,
    )


def _since_full(snapshots: Sequence[Snapshot]) -> Sequence[Snapshot]:
    for index in range(len(snapshots) - 1, -1, -1):
        if snapshots[index].kind == 'full':
            return snapshots[index:]
    return ()


def _closed(request: Request, now: datetime) -> Request:
    """A request whose task has ended."""
    status = 'closed' if request.status == 'open' else request.status
    return replace(request, status=status, closed_at=now)


def _asked(request: Request, query: RequestQuery) -> bool:
    place = request.created_at, request.run_id, request.request_id
    return (
        (query.request_id is None or request.request_id == query.request_id)
        and (query.graph is None or request.graph == query.graph)
        and (query.name is None or request.name == query.name)
        and (not query.status or request.status in query.status)
        and (not query.unused or request.closed_at is None)
        and all(request.labels.get(key) == value for key, value in query.labels.items())
        and (query.created_before is None or request.created_at < query.created_before)
        and (query.after is None or place > query.after)
    )


def _matches(run: Run, query: RunQuery) -> bool:
    return (
        (query.graph is None or run.graph == query.graph)
        and (not query.status or run.status in query.status)
        and (query.interrupted is None or run.interrupted == query.interrupted)
        and all(run.labels.get(key) == value for key, value in query.labels.items())
        and (query.parent_run_id is None or run.parent_run_id == query.parent_run_id)
        and (query.updated_before is None or run.updated_at < query.updated_before)
        and (query.after is None or (run.created_at, run.run_id) < query.after)
    )
