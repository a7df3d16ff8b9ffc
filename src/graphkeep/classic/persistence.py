"""`StatePersistence`: upstream's `BaseStatePersistence`, on a store.

Upstream calls, for each node: `snapshot_node` (or `snapshot_node_if_new` for the first, and for a
node of the caller's), then `record_run` around it. What `record_run` saw is committed together with
what follows the node, by the next `snapshot_node` or `snapshot_end`: N nodes make N + 1 commits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from pydantic_graph import BaseNode, End
from pydantic_graph.exceptions import GraphNodeStatusError, GraphRuntimeError
from pydantic_graph.persistence import (
    BaseStatePersistence,
    NodeSnapshot,
    RunEndT,
    Snapshot,
    SnapshotStatus,
    StateT,
)

from .. import owner as owners
from ..errors import GraphChangedError, RunBusyError
from ..handle import Handle, IfExists, Verify
from ..namespaces import caller_namespace
from ..runs import Run, Status
from ..scope import Scope
from .binding import Binding, bind
from .cursor import Cursor, Pending
from .record import load_all

if TYPE_CHECKING:
    from pydantic_graph.graph import Graph

    from ..store import Store

__all__ = ('StatePersistence',)


class StatePersistence(Handle, BaseStatePersistence[StateT, RunEndT]):
    """One run in one store, wherever upstream takes a `BaseStatePersistence`.

    ```python
    persistence = store.persistence('order-42')
    result = await graph.run(FirstNode(), state=State(), persistence=persistence)
    ```

    A handle runs one node at a time. Several handles of one run may exist, in any number of
    processes: the database decides who may run it.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        if_exists: IfExists = 'raise',
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        verify: Verify = 'changed',
    ) -> None:
        """Make a handle; nothing is read or written.

        Args:
            store: Where the run is kept.
            run_id: The name of the run, 1 to 512 bytes of UTF-8.
            if_exists: What `PersistentGraph.run` does with a run that was started before.
                Upstream's own `graph.run` cannot continue one: there `graphkeep.resume` does.
            graph: The name the graph is recorded under; its own name if omitted.
            labels: Your own labels of a run that is started with this handle.
            verify: `always` loads everything back at every step before it is written, instead of
                only what its type may lose.

        Raises:
            ValueError: `run_id`, `graph` or a label cannot be stored.
        """
        super().__init__(
            store, run_id, if_exists=if_exists, graph=graph, labels=labels, verify=verify
        )
        self._binding: Binding | None = None
        self._cursor: Cursor | None = None
        self._left: Cursor | None = None
        """Where an earlier session of this handle stopped: its pending node may still go on."""
        self._past: dict[str, SnapshotStatus] = {}
        """The snapshot ids that upstream used since `set_graph_types`, but the pending one's."""
        self._failed_too = False
        """Whether a failed node may run again."""
        self._reopened: Run | None = None
        """What `reopened` has loaded for the next `load_next`."""
        self.has_run = False
        """Whether a node has run since `reopened`."""

    # --- types ------------------------------------------------------------------------------------

    def set_graph_types(self, graph: Graph[StateT, Any, RunEndT]) -> None:
        """Bind the graph. Upstream calls this whenever it starts to run a graph or to load one.

        Raises:
            UnstorableTypeError: The state, a node or the end of the graph cannot be stored; names
                the field.
            RunBusyError: This handle is running a node.
        """
        self._check_idle()
        binding = bind(graph, verify=self.verify, namespace=caller_namespace)
        if binding is not self._binding:
            self._binding, self._cursor, self._left = binding, None, None
        self.graph_name = self.graph_name or graph.name
        self._past = {}
        self._set_aside()

    def should_set_types(self) -> bool:
        """Whether no graph has been bound yet."""
        return self._binding is None

    # --- upstream's calls, in the order they come -------------------------------------------------

    async def snapshot_node_if_new(
        self, snapshot_id: str, state: StateT, next_node: BaseNode[StateT, Any, RunEndT]
    ) -> None:
        """Start the run with `next_node`, or put it in the place of the pending node.

        Raises:
            RunExistsError: The run was started before; `graphkeep.resume` continues it.
        """
        if not self._belongs(next_node):
            return  # upstream's own error follows, and nothing is to be written before it
        cursor = self._at(snapshot_id, next_node)
        if cursor is not None and cursor.pending is not None:
            cursor.pending.state = state
            return
        if snapshot_id in self._past:
            return  # it ran before: upstream's `GraphNodeStatusError` follows
        await self._put(state, next_node, claimed=True)

    async def snapshot_node(self, state: StateT, next_node: BaseNode[StateT, Any, RunEndT]) -> None:
        """Commit what the node that just ran did, with the node to run next; or initialise the run.

        Raises:
            GraphRuntimeError: The node to run next is not in the graph. The run has failed.
            LossyStateError: The state or the node would not come back as it is. The run has failed.
            LeaseLostError: Another process has taken the run over. Nothing was written.
        """
        cursor = self._cursor
        pending = None if cursor is None else cursor.pending
        if cursor is None or pending is None or pending.status != 'success':
            self._check_belongs(next_node)
            await self._put(state, next_node, claimed=False)
            return
        if not self._belongs(next_node):
            # As upstream says it, when it comes to run that node.
            e = GraphRuntimeError(f'Node `{next_node}` is not in the graph.')
            await cursor.fail(pending, e)
            raise e
        try:
            await cursor.step(pending, state, next_node)
        finally:
            self._remember(pending)

    async def snapshot_end(self, state: StateT, end: End[RunEndT]) -> None:
        """Commit what the last node did, and the output. Errors as for `snapshot_node`."""
        cursor = self._cursor
        pending = None if cursor is None else cursor.pending
        if cursor is None or pending is None or pending.status != 'success':
            raise LookupError(f'run {self.run_id!r} cannot end: none of its nodes has just run')
        try:
            await cursor.end(pending, state, end.data)
        finally:
            self._remember(pending)
        self._past[end.get_snapshot_id()] = 'success'
        self._cursor = self._left = None

    def record_run(self, snapshot_id: str) -> AbstractAsyncContextManager[None]:
        """Around the run of a node: claims the run if need be, and commits what the caller changed.

        Entering it raises:
            LookupError: There is no such snapshot.
            GraphNodeStatusError: The node is running or has run; `graphkeep.resume` runs a failed
                node again.
            RunBusyError: Another process is running the run.
            RunMovedError: Another process has run it since it was loaded.
        """
        return _NodeRun(partial(self._begin, snapshot_id), self._finish)

    async def _begin(self, snapshot_id: str) -> tuple[Cursor, Pending, Scope]:
        cursor = self._at(snapshot_id)
        pending = None if cursor is None else cursor.pending
        if cursor is None or pending is None:
            raise await self._unknown(snapshot_id)
        GraphNodeStatusError.check(pending.status)
        was, pending.status = pending.status, 'running'
        try:
            await cursor.enter(pending, allow=self._claimable())
        except BaseException:
            pending.status = was
            raise
        self._left = None
        self.has_run = True
        pending.begins()
        return cursor, pending, cursor.scope(pending)

    async def _finish(self, cursor: Cursor, pending: Pending, error: BaseException | None) -> None:
        if error is None:
            pending.ended('success')
            cursor.rest()
            return
        pending.ended('error')
        self._remember(pending)
        if isinstance(error, Exception):
            await cursor.fail(pending, error)
        elif isinstance(error, GeneratorExit):
            # Who closes a coroutine does not wait for it.
            cursor.rest()
        else:
            await cursor.leave()

    async def load_next(self) -> NodeSnapshot[StateT, RunEndT] | None:
        """The pending node and its state, or `None` if the run is not there, has ended or failed.

        Claims and changes nothing: the run is claimed when the node runs.

        Raises:
            RunPausedError: It waits for an answer.
            RunBusyError: Another process, which may be alive, is running the run.
            GraphChangedError: What is stored does not fit the graph any more.
            DamagedRunError: What is stored cannot be read.
        """
        run, self._reopened = self._reopened, None
        if run is None:
            run = await self._load()
        pending = None if self._cursor is None else self._cursor.pending
        if run is None:
            return None
        if pending is None or (run.status == 'failed' and not self._failed_too):
            if run.status != 'ready':
                # A fork from an end waits for a node of the caller's; no other run does.
                self._cursor = None
            return None
        return NodeSnapshot(
            state=pending.state,
            node=pending.node,
            status='pending',
            id=f'{pending.node_id}:{pending.task}',
        )

    async def load_all(self) -> list[Snapshot[StateT, RunEndT]]:
        """The history of the run: a snapshot for each execution of a node, and one for the end.

        The snapshots are copies: changing them changes nothing.
        """
        return await load_all(self.store, self.run_id, self._bound(), self._cursor)

    # --- for graphkeep.resume ---------------------------------------------------------------------

    @asynccontextmanager
    async def reopened(self) -> AsyncGenerator[tuple[Run, Cursor] | None]:
        """Load the run, failed or not, to go on with it inside; `None` if it does not exist.

        The next `load_next` gives what was loaded here. Errors as for `load_next`.
        """
        self._failed_too = True
        self.has_run = False
        try:
            self._reopened = await self._load()
            cursor = self._cursor
            yield None if self._reopened is None or cursor is None else (self._reopened, cursor)
        finally:
            self._failed_too = False
            self._reopened = None

    # --- what this handle knows -------------------------------------------------------------------

    async def _load(self) -> Run | None:
        self._check_idle()
        self._set_aside()
        self._cursor = None
        loaded = await Cursor.load(self.store, self.run_id, self._bound())
        if loaded is None:
            return None
        run, self._cursor = loaded
        return run

    def _set_aside(self) -> None:
        if self._cursor is not None and not self._cursor.fresh:
            self._left, self._cursor = self._cursor, None

    def _at(self, snapshot_id: str, node: object = None) -> Cursor | None:
        """The cursor, if upstream means its pending task; or else the one that was set aside."""
        if self._cursor is not None and self._cursor.is_meant(snapshot_id, node):
            return self._cursor
        left = self._left
        if left is not None and left.waits and left.is_meant(snapshot_id, node):
            self._check_idle()
            self._cursor, self._left = left, None
            return left
        return None

    async def _put(self, state: Any, node: Any, *, claimed: bool) -> None:
        """Start the run at `node`, or go on with it instead of the pending node."""
        if self._cursor is not None:
            failed = self._cursor.pending is not None and self._cursor.pending.status == 'error'
            allow = (*self._claimable(failed=failed), cast('Status', 'paused'))
            await self._cursor.replace(state, node, allow=allow)
            if not claimed:
                await self._cursor.leave()
            return
        cursor = await Cursor.start(
            self.store,
            self.run_id,
            self._bound(),
            state=state,
            node=node,
            graph=self.graph_name,
            labels=self.labels,
            claimed=claimed,
        )
        self._cursor, self._left = cursor, None

    async def _unknown(self, snapshot_id: str) -> Exception:
        """What upstream raises for a snapshot that is not the pending one."""
        status = self._past.get(snapshot_id)
        if status is None:
            for snapshot in await self.load_all():
                if snapshot.id == snapshot_id and isinstance(snapshot, NodeSnapshot):
                    status = snapshot.status
        if status is None:
            return LookupError(f'No snapshot found with id={snapshot_id!r}')
        return GraphNodeStatusError(status)

    def _remember(self, pending: Pending) -> None:
        for snapshot_id in pending.snapshot_ids:
            self._past[snapshot_id] = pending.status

    def _claimable(self, *, failed: bool = False) -> tuple[Status, ...]:
        return ('ready', 'failed') if failed or self._failed_too else ('ready',)

    def _bound(self) -> Binding:
        if self._binding is None:
            raise RuntimeError(
                f'No graph is bound to {self!r}. Call persistence.set_graph_types(graph) first.'
            )
        return self._binding

    def _check_idle(self) -> None:
        if self._cursor is not None and self._cursor.busy:
            raise RunBusyError(
                run_id=self.run_id, owner=owners.current(), lease_until=None, epoch=-1
            )

    def _belongs(self, node: object) -> bool:
        binding = self._bound()
        if binding.nodes.has(node):
            return True
        if not isinstance(node, BaseNode):
            return False
        return cast('BaseNode[Any, Any, Any]', node).get_node_id() in binding.node_ids

    def _check_belongs(self, node: BaseNode[Any, Any, Any]) -> None:
        if not isinstance(node, BaseNode):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'expected a node, got {node!r}')
        if not self._belongs(node):
            known = ', '.join(sorted(self._bound().node_ids))
            raise GraphChangedError(
                f'Node {node.get_node_id()!r} is not in the graph of run {self.run_id!r} '
                f'(it has {known}).',
                run_id=self.run_id,
                node=node.get_node_id(),
            )


class _NodeRun(AbstractAsyncContextManager[None]):
    """What `record_run` gives. A class, as a generator takes longer at every step."""

    __slots__ = ('_begin', '_finish', '_run')

    _run: tuple[Cursor, Pending, Scope]

    def __init__(
        self,
        begin: Callable[[], Awaitable[tuple[Cursor, Pending, Scope]]],
        finish: Callable[[Cursor, Pending, BaseException | None], Awaitable[None]],
    ) -> None:
        self._begin = begin
        self._finish = finish

    async def __aenter__(self) -> None:
        self._run = await self._begin()
        self._run[2].__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        cursor, pending, scope = self._run
        scope.__exit__(exc_type, exc, tb)
        asking = scope.asking
        if asking is None:
            await self._finish(cursor, pending, exc)
            return
        if scope.is_pausing:
            await scope.quiet()
        error = asking.outcome(exc)
        if exc is not None and error is None:
            await cursor.pause(pending, asking)
        await self._finish(cursor, pending, error)
        if error is not None and error is not exc:
            raise error
