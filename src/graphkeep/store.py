"""The store: one database, shared by all runs of the process.

Public methods are concrete, here and in `port`; a database implements the hooks in `hooks`, whose
names begin with an underscore and which are atomic each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast, get_args

from . import owner as owners
from .answering import check_answer
from .conversation_port import ConversationPort
from .errors import RequestClosedError, RequestNotFoundError, RunBusyError, RunNotFoundError
from .handle import Handle, IfExists, Verify
from .hooks import busy, new_nonce, not_claimable, refused_claim
from .requests import Request, RequestQuery, RequestStatus
from .runs import (
    Draft,
    NewRun,
    Run,
    RunQuery,
    Snapshot,
    Status,
    check_labels,
    check_name,
    check_run_id,
)

if TYPE_CHECKING:
    from .agents import Conversations
    from .classic import StatePersistence
    from .document import Document

__all__ = ('Store', 'busy', 'new_nonce', 'not_claimable', 'refused_claim')

ENDED: tuple[Status, ...] = ('done', 'cancelled')
_PAGE = 1_000


class Store(ConversationPort):
    """One database and its connections, shared by all runs of the process.

    A store opens at its first use. `async with store:` is what closes it:

    ```python
    async with graphkeep.open_store('sqlite:///runs.db') as store:
        ...
    ```
    """

    def persistence(
        self,
        run_id: str,
        *,
        if_exists: IfExists = 'raise',
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        verify: Verify = 'changed',
    ) -> StatePersistence[Any, Any]:
        """The handle of one run: what is passed as `persistence=` to pydantic-graph.

        Args:
            run_id: The name of the run, 1 to 512 bytes of UTF-8.
            if_exists: What `PersistentGraph.run` does with a run that was started before: raise
                `RunExistsError`, or `resume` it (giving the stored output of one that is done).
            graph: The name under which the run's graph is recorded; the graph's own name if
                omitted.
            labels: Your own labels of a run that is started here, for finding it with
                `runs(labels=…)`.
            verify: Of a 1.x graph: `always` loads everything back at every step before it is
                written, instead of only what its type may lose.

        Raises:
            ValueError: `run_id`, `graph` or a label cannot be stored.
        """
        # The one place where the port knows a front end: late, because front ends stand on it.
        if find_spec('pydantic_graph.persistence') is None:
            # pydantic-graph 2 has no BaseStatePersistence to be.
            handle = Handle(
                self, run_id, if_exists=if_exists, graph=graph, labels=labels, verify=verify
            )
            return cast('StatePersistence[Any, Any]', handle)
        from .classic import StatePersistence

        return StatePersistence(
            self, run_id, if_exists=if_exists, graph=graph, labels=labels, verify=verify
        )

    @property
    def conversations(self) -> Conversations:
        """The conversations of agents in this store: a `ConversationStore` of pydantic-ai.

        `graphkeep.agents.Conversations(store, …)` is one with options.

        Raises:
            MissingDriverError: pydantic-ai 2.66 or newer is not installed.
        """
        from .agents import Conversations

        return Conversations(self)

    async def run(self, run_id: str) -> Run:
        """The header of a run.

        Raises:
            RunNotFoundError: There is no such run.
        """
        check_run_id(run_id)
        await self.open()
        found = await self._retrying(lambda: self._header(run_id))
        if found is None:
            raise RunNotFoundError(run_id=run_id)
        return found

    async def runs(
        self,
        *,
        graph: str | None = None,
        status: Status | Sequence[Status] = (),
        labels: Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
        updated_before: datetime | None = None,
        interrupted: bool | None = None,
        after: Run | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Find runs, newest first.

        Args:
            graph: Only runs of the graph recorded under this name.
            status: Only runs with this status, or any of these.
            labels: Only runs that have all of these labels.
            parent_run_id: Only forks of this run.
            updated_before: Only runs last written before this aware datetime.
            interrupted: Only (`True`), or no (`False`), runs whose worker let its lease pass.
            after: The last run of the previous page.
            limit: At most this many.
        """
        statuses = _statuses(status, Status)
        return await self.find(
            RunQuery(
                graph=graph,
                status=statuses,
                labels=check_labels(labels),
                parent_run_id=parent_run_id,
                updated_before=updated_before,
                interrupted=interrupted,
                after=None if after is None else (after.created_at, after.run_id),
                limit=limit,
            )
        )

    async def interrupted(self, *, graph: str | None = None, limit: int = 100) -> list[Run]:
        """Runs that a worker left without a word: its lease has passed, or it is proven dead on
        this machine.
        """
        left: list[Run] = []
        after: Run | None = None
        while len(left) < limit:
            page = await self.runs(graph=graph, status='running', after=after, limit=_PAGE)
            left += [r for r in page if r.interrupted or owners.is_proven_dead(r.owner)]
            if len(page) < _PAGE:
                break
            after = page[-1]
        return left[:limit]

    async def requests(
        self,
        *,
        run_id: str | None = None,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        older_than: timedelta | None = None,
        status: RequestStatus | Sequence[RequestStatus] = 'open',
        after: Request | None = None,
        limit: int = 100,
    ) -> list[Request]:
        """Find what runs wait for, longest waiting first.

        Args:
            run_id: Only requests of this run.
            graph: Only requests of runs of the graph recorded under this name.
            labels: Only requests of runs that have all of these labels.
            name: Only requests that were asked under this name.
            older_than: Only requests that were asked at least this long ago.
            status: Only requests with this status, or any of these: by default those that are open.
                `()` for all.
            after: The last request of the previous page.
            limit: At most this many.
        """
        if run_id is not None:
            check_run_id(run_id)
        return await self.find_requests(
            RequestQuery(
                run_id=run_id,
                graph=graph,
                labels=check_labels(labels),
                name=name,
                created_before=None if older_than is None else _ago(older_than),
                status=_statuses(status, RequestStatus),
                after=None if after is None else (after.created_at, after.run_id, after.request_id),
                limit=limit,
            )
        )

    async def request(self, run_id: str, request_id: str) -> Request:
        """One request of a run, whatever became of it.

        Raises:
            RunNotFoundError: There is no such run.
            RequestNotFoundError: It has no such request.
        """
        check_run_id(run_id)
        if not isinstance(request_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'request_id must be a string, <task>:<name>, got {request_id!r:.80}')
        query = RequestQuery(run_id=run_id, request_id=request_id, limit=1)
        for request in await self.find_requests(query):
            return request
        await self.run(run_id)
        raise RequestNotFoundError(run_id=run_id, request_id=request_id)

    async def answer(
        self, run_id: str, request_id: str, answer: object, *, by: str | None = None
    ) -> Request:
        """Answer a request: a run that is paused becomes ready, in the same atomic step.

        The first answer counts. The same again is accepted, so a call whose outcome is not known
        can be made again; another one is refused.

        Args:
            run_id: The run that asks.
            request_id: The request: `<task>:<name>`, as `requests` lists it.
            answer: A value of JSON, or one that pydantic makes JSON of. It has to fit the JSON
                schema that is stored with the request; the code of the graph is not needed.
            by: Who answers, for the record: 1 to 512 bytes of UTF-8.

        Returns:
            The request, answered.

        Raises:
            RunNotFoundError: There is no such run.
            RequestNotFoundError: It has no such request.
            InvalidAnswerError: The answer does not fit; says where. The request stays open.
            RequestClosedError: It was answered otherwise, its deadline has passed, or its run or
                its branch has ended.
        """
        check_name(by, 'by')
        request = await self.request(run_id, request_id)
        if request.status in ('closed', 'expired'):
            raise RequestClosedError(request)
        data = check_answer(request, answer)
        found = await self._retrying(lambda: self._answer(run_id, request_id, data, by))
        if found is None:
            raise RequestNotFoundError(run_id=run_id, request_id=request_id)
        if found.status != 'answered' or found.answer_json != data:
            raise RequestClosedError(found)
        self.notices.heard(run_id)
        return found

    async def snapshots(
        self, run_id: str, *, after: int = -1, limit: int | None = None
    ) -> list[Snapshot]:
        """The stored snapshots of a run, oldest first.

        Args:
            run_id: The run.
            after: Only snapshots with a higher `seq`.
            limit: At most this many; `None` for all.

        Raises:
            RunNotFoundError: There is no such run.
        """
        await self.run(run_id)
        found: list[Snapshot] = []
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            last = found[-1].seq if found else after
            page = await self._retrying(lambda a=last, n=size: self._history(run_id, a, n))
            found += page
            if len(page) < size:
                break
        return found

    async def document(self, run_id: str, *, at: int | None = None) -> Document:
        """The whole run as one JSON document: state, pending tasks, output.

        Args:
            run_id: The run.
            at: The snapshot to look at; the newest if omitted.

        Raises:
            RunNotFoundError: There is no such run.
            ValueError: The run has no such snapshot (any more).
            DamagedRunError: A stored snapshot cannot be read.
        """
        _, replay = await self.read(run_id, at=at)
        return replay.document

    async def fork(self, run_id: str, *, new_run_id: str, at: int | None = None) -> Run:
        """Start a new run from a snapshot of another, which stays as it is.

        Args:
            run_id: The run to start from.
            new_run_id: The id of the new run.
            at: The snapshot to start from; the newest if omitted.

        Returns:
            The new run, `ready`. Forked after the end, it has the last state and no pending node:
            name the node to go on with, `graphkeep.resume(graph, persistence, start=Node())`.

        Raises:
            RunNotFoundError: There is no such run.
            RunExistsError: There is a run named `new_run_id`.
            ValueError: The run has no such snapshot (any more).
        """
        check_run_id(new_run_id)
        parent, replay = await self.read(run_id, at=at)
        document = replay.document
        document.output = None
        fork = NewRun(
            run_id=new_run_id,
            graph=parent.graph,
            labels=parent.labels,
            parent_run_id=run_id,
            parent_seq=replay.seq,
            nonce=new_nonce(),
        )
        draft = Draft(seq=0, kind='full', event='fork', data=document.to_json())
        return await self.create(fork, draft)

    async def cancel(self, run_id: str) -> Run:
        """End a run for good. A worker that is running it finds out at its next commit, which is
        refused.

        Raises:
            RunNotFoundError: There is no such run.
            RunStatusError: The run is done.
        """
        check_run_id(run_id)
        await self.open()
        run = await self._retrying(lambda: self._cancel(run_id))
        self.notices.heard(run_id)
        return run

    async def delete(self, run_id: str, *, force: bool = False) -> None:
        """Remove a run and all its snapshots.

        Args:
            run_id: The run.
            force: Also while a worker is running it; that worker's next commit is refused.

        Raises:
            RunNotFoundError: There is no such run.
            RunBusyError: A worker is running it, and `force` is not set.
        """
        check_run_id(run_id)
        await self.open()
        tries = 0

        async def delete() -> None:
            nonlocal tries
            tries += 1
            try:
                await self._delete(run_id, force)
            except RunNotFoundError:
                # Gone at a later try: the earlier one removed it, and only its reply was lost.
                if tries == 1:
                    raise

        await self._retrying(delete)

    async def prune(
        self,
        *,
        older_than: timedelta,
        status: Status | Sequence[Status] = ENDED,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> int:
        """Delete runs that were last written long ago.

        Args:
            older_than: How long ago at least.
            status: Only runs with this status, or any of these; by default those that have
                ended. A failed run has not: it can be resumed.
            graph: Only runs of this graph.
            labels: Only runs with all of these labels.

        Returns:
            How many were deleted. A run that is being worked on is left.
        """
        before = _ago(older_than)
        deleted = 0
        after: Run | None = None
        while True:
            page = await self.runs(
                graph=graph, status=status, labels=labels, updated_before=before, after=after
            )
            for run in page:
                try:
                    await self.delete(run.run_id)
                    deleted += 1
                except (RunNotFoundError, RunBusyError):
                    continue
            if not page:
                return deleted
            after = page[-1]


def _ago(time: timedelta) -> datetime:
    """That long ago. Raises `ValueError` for what was before all time."""
    try:
        return datetime.now(tz=UTC) - time
    except OverflowError:
        raise ValueError(f'older_than={time!r} is longer ago than there are dates') from None


def _statuses(given: Any, kind: Any) -> tuple[Any, ...]:
    """One status or several, as a tuple. Raises `ValueError` for what is none."""
    statuses = (given,) if isinstance(given, str) else tuple(given)
    known = get_args(kind)
    for status in statuses:
        if status not in known:
            raise ValueError(f'there is no status {status!r}: it is one of {", ".join(known)}')
    return statuses
