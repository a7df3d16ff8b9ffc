"""`StatePersistence`: upstream's `BaseStatePersistence`, on a store.

Upstream calls, for each node: `snapshot_node` (or `snapshot_node_if_new` for the first, and for a node of the caller's),
then `record_run` around it. What `record_run` saw is committed together with what follows the node, by the next
`snapshot_node` or `snapshot_end`: N nodes make N + 1 commits.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_graph import BaseNode, End
from pydantic_graph.exceptions import GraphNodeStatusError
from pydantic_graph.persistence import (
    BaseStatePersistence,
    NodeSnapshot,
    RunEndT,
    Snapshot,
    SnapshotStatus,
    StateT,
)

from .. import owner as owners
from ..codec import Encoded, Seen
from ..document import Change, Document
from ..errors import (
    CodecError,
    DamagedRunError,
    GraphChangedError,
    LeaseLostError,
    RunBusyError,
    RunNotFoundError,
    StoreUnavailableError,
)
from ..journal import Journal
from ..parts import render, split
from ..runs import Run, Status, check_labels, check_name, check_run_id
from ..shielding import Ending
from .binding import Binding, Verify, bind, caller_namespace
from .record import load_all
from .tasks import START, counters, encode_task, next_task, stored_task

if TYPE_CHECKING:
    from pydantic_graph.graph import Graph

    from ..store import Store

__all__ = ('StatePersistence',)

logger = logging.getLogger('graphkeep')

T = TypeVar('T')


@dataclass(kw_only=True, slots=True)
class _Pending:
    """The task this handle is at."""

    task: str
    node_id: str
    node: Any
    """The node object that upstream will run. The caller may change it until then."""
    state: Any
    """The state object that upstream will hand to the node. The caller may change it until then."""
    seen: Seen | None
    """What append-only fields of the state held when it was stored."""
    snapshot_ids: frozenset[str]
    """The ids by which upstream may name it: the node object's own, and the one that `load_all` gives."""
    status: SnapshotStatus
    started_at: datetime | None = None
    duration: float | None = None


class StatePersistence(BaseStatePersistence[StateT, RunEndT]):
    """One run in one store, wherever upstream takes a `BaseStatePersistence`.

    ```python
    persistence = store.persistence('order-42')
    result = await graph.run(FirstNode(), state=State(), persistence=persistence)
    ```

    A handle runs one node at a time. Several handles of one run may exist, in any number of processes: the database
    decides who may run it.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        verify: Verify = 'changed',
    ) -> None:
        """Make a handle; nothing is read or written.

        Args:
            store: Where the run is kept.
            run_id: The name of the run, 1 to 512 bytes of UTF-8.
            graph: The name the graph is recorded under; its own name if omitted.
            labels: Your own labels of a run that is started with this handle.
            verify: `always` loads back everything at every step before it is written, instead of only what its type
                may lose.

        Raises:
            ValueError: `run_id`, `graph` or a label cannot be stored.
        """
        check_run_id(run_id)
        check_name(graph, 'graph')
        self.store = store
        self.run_id = run_id
        self.graph_name = graph
        self.labels = check_labels(labels)
        self._verify: Verify = verify
        self._graph: Graph[Any, Any, Any] | None = None
        self._binding: Binding | None = None
        self._journal: Journal | None = None
        self._pending: _Pending | None = None
        self._retry_failed = False
        self._reopened: Run | None = None
        self._loaded = False
        """A pending node was loaded and not run yet: another node given instead of it replaces it."""
        self._past: dict[str, SnapshotStatus] = {}
        """The snapshot ids that upstream has used since `set_graph_types`."""

    def __repr__(self) -> str:
        return f'<StatePersistence of run {self.run_id!r} in {self.store!r}>'

    # --- types -----------------------------------------------------------------------------------

    def set_graph_types(self, graph: Graph[StateT, Any, RunEndT]) -> None:
        """Bind the graph. Upstream calls this whenever it starts to run a graph or to load one.

        Raises:
            UnstorableTypeError: The state, a node or the end of the graph cannot be stored; names the field.
            RunBusyError: This handle is running a node.
        """
        if self._pending is not None and self._pending.status == 'running':
            raise self._busy_here()
        self._binding = bind(graph, verify=self._verify, namespace=caller_namespace)
        self._graph = graph
        self._past = {}
        if not self._loaded:
            self._forget()

    def should_set_types(self) -> bool:
        """Whether no graph has been bound yet."""
        return self._binding is None

    # --- upstream's calls, in the order they come ---------------------------------------------------

    async def snapshot_node_if_new(
        self, snapshot_id: str, state: StateT, next_node: BaseNode[StateT, Any, RunEndT]
    ) -> None:
        """Start the run with `next_node`, or put it in the place of the pending node.

        Raises:
            RunExistsError: The run was started before; `graphkeep.resume` continues it.
        """
        if not self._belongs(next_node):
            return  # upstream's own error follows, and nothing is to be written before it
        pending = self._pending
        if pending is not None and snapshot_id in pending.snapshot_ids:
            return
        if snapshot_id in self._past:
            return  # it ran before: upstream's `GraphNodeStatusError` follows
        if pending is None and self._journal is None:
            await self._start(state, next_node, claimed=True)
        else:
            await self._replace(state, next_node)

    async def snapshot_node(self, state: StateT, next_node: BaseNode[StateT, Any, RunEndT]) -> None:
        """Commit what the node that just ran did, with the node to run next; or initialise the run.

        Raises:
            LossyStateError: The state or the node would not come back as it is. The run is marked failed.
            LeaseLostError: Another process has taken the run over. Nothing was written.
        """
        pending = self._pending
        if pending is not None and pending.status == 'success':
            await self._step(pending, state, next_node)
        elif pending is None and self._journal is None:
            self._check_belongs(next_node)
            await self._start(state, next_node, claimed=False)
        else:
            self._check_belongs(next_node)
            await self._replace(state, next_node)

    async def snapshot_end(self, state: StateT, end: End[RunEndT]) -> None:
        """Commit what the last node did, and the output. Errors as for `snapshot_node`."""
        pending = self._pending
        if pending is None or pending.status != 'success':
            raise LookupError(
                f'run {self.run_id!r} cannot end here: none of its nodes has just run'
            )
        binding, journal = self._bound(), self._open_journal()
        try:
            encoded = self._encode(binding, journal, state, pending.seen)
            output = _text(binding.end.encode(end.data))
        except Exception as e:
            raise await self._failed(pending, e)
        change = Change(state=encoded.parts, tasks={pending.task: None}, output=output)
        ending = await self._settle(pending, change, status='done')
        if ending.error is None:
            self._past[end.get_snapshot_id()] = 'success'
            self._forget()
        await self._check(ending)

    @asynccontextmanager
    async def record_run(self, snapshot_id: str) -> AsyncGenerator[None]:
        """Around the run of a node: claims the run if it is not claimed, and commits what the caller changed.

        Raises:
            LookupError: There is no such snapshot.
            GraphNodeStatusError: The node is running or has run; `graphkeep.resume` runs a failed node again.
            RunBusyError: Another process is running the run.
            RunMovedError: Another process has run it since it was loaded.
        """
        pending = self._pending
        if pending is None or snapshot_id not in pending.snapshot_ids:
            await self._refuse(snapshot_id)
        assert pending is not None
        GraphNodeStatusError.check(pending.status)
        was, pending.status = pending.status, 'running'
        try:
            journal = await self._enter(pending)
        except BaseException:
            pending.status = was
            raise
        pending.started_at = datetime.now(tz=UTC)
        start = perf_counter()
        try:
            yield
        except Exception as e:
            pending.duration = perf_counter() - start
            error = await self._failed(pending, e)
            journal.step_ends()
            raise error
        except BaseException:
            # Cancelled or interrupted: what died has changed nothing, and the run can go on at once.
            journal.step_ends()
            self._dead(pending)
            await self._give_up(journal)
            raise
        pending.duration = perf_counter() - start
        pending.status = 'success'
        journal.step_ends()

    async def load_next(self) -> NodeSnapshot[StateT, RunEndT] | None:
        """The pending node and its state, or `None` if the run does not exist, has ended or has failed.

        Claims and changes nothing: the run is claimed when the node runs.

        Raises:
            RunBusyError: Another process, which may be alive, is running the run.
            GraphChangedError: What is stored does not fit the graph any more.
            DamagedRunError: What is stored cannot be read.
        """
        run, self._reopened = self._reopened or await self._load(), None
        pending = self._pending
        if run is None or pending is None:
            return None
        if run.status == 'failed' and not self._retry_failed:
            self._forget()
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
        pending = self._pending
        return await load_all(
            self.store,
            self.run_id,
            self._bound(),
            None if pending is None else (pending.task, pending.status),
        )

    # --- for graphkeep.resume ---------------------------------------------------------------------

    @asynccontextmanager
    async def reopened(self) -> AsyncGenerator[Run | None]:
        """Load the run, failed or not, for going on with it inside; gives its header, or `None` if it does not exist.

        The next `load_next` gives what was loaded here. Errors as for `load_next`.
        """
        self._retry_failed = True
        try:
            self._reopened = await self._load()
            yield self._reopened
        finally:
            self._retry_failed = False
            self._reopened = None

    @property
    def has_next(self) -> bool:
        """Whether the run that was loaded has a pending node."""
        return self._pending is not None

    def stored_state(self) -> StateT:
        """The state of the run that was loaded, when it has no pending node."""
        return self._decode(
            'state', self._bound().state.decode, self._open_journal().document.state
        )

    def stored_output(self) -> RunEndT:
        """The output of the run that was loaded, when it is done."""
        output = self._open_journal().document.output
        if output is None:
            raise DamagedRunError(
                run_id=self.run_id, seq=self._open_journal().seq, reason='it has no output'
            )
        return self._decode('output', self._bound().end.decode, output)

    # --- steps -----------------------------------------------------------------------------------

    async def _start(self, state: Any, node: Any, *, claimed: bool) -> None:
        binding = self._bound()
        encoded = binding.state.encode(state)
        node_id, inputs = binding.nodes.encode(node)
        document = Document(
            state=split(_text(encoded)),
            tasks={'0': encode_task(node_id, inputs, born=START)},
            next=counters(1),
        )
        self._journal = await Journal.start(
            self.store,
            self.run_id,
            document,
            graph=self.graph_name or (self._graph.name if self._graph is not None else None),
            labels=self.labels,
            claimed=claimed,
        )
        self._await_node('0', node_id, node, state, encoded.seen)

    async def _replace(self, state: Any, node: Any) -> None:
        """Put a node of the caller's in the place of the pending one, with the state as it is now."""
        binding, journal, pending = self._bound(), self._open_journal(), self._pending
        encoded = self._encode(binding, journal, state, None if pending is None else pending.seen)
        node_id, inputs = binding.nodes.encode(node)
        if not journal.claimed:
            failed = pending is not None and pending.status == 'error'
            await journal.claim(allow=self._claimable(failed=failed))
        task, change = self._successor(journal, encoded, node_id, inputs)
        ending = await journal.commit(change, event='replace')
        if ending.error is None:
            self._await_node(task, node_id, node, state, encoded.seen)
        await self._check(ending)

    async def _enter(self, pending: _Pending) -> Journal:
        """Before a node runs: claim the run, and commit what the caller changed since it was stored."""
        binding, journal = self._bound(), self._open_journal()
        encoded = self._encode(binding, journal, pending.state, pending.seen)
        node_id, inputs = binding.nodes.encode(pending.node)
        if not journal.claimed:
            await journal.claim(allow=self._claimable())
        change = Change(state=encoded.parts)
        stored = stored_task(self.run_id, journal.document)
        if stored is None or stored.node != node_id or stored.inputs != inputs:
            change.tasks[pending.task] = encode_task(node_id, inputs, born=journal.epoch)
        journal.step_begins()
        try:
            if journal.document.delta(change):
                await self._check(await journal.commit(change, event='edit'))
        except BaseException:
            journal.step_ends()
            raise
        pending.seen = encoded.seen
        self._loaded = False
        return journal

    async def _step(self, pending: _Pending, state: Any, node: Any) -> None:
        binding, journal = self._bound(), self._open_journal()
        try:
            self._check_belongs(node)
            encoded = self._encode(binding, journal, state, pending.seen)
            node_id, inputs = binding.nodes.encode(node)
        except Exception as e:
            raise await self._failed(pending, e)
        task, change = self._successor(journal, encoded, node_id, inputs)
        ending = await self._settle(pending, change, status='running')
        if ending.error is None:
            self._await_node(task, node_id, node, state, encoded.seen)
        await self._check(ending)

    async def _settle(self, pending: _Pending, change: Change, *, status: Status) -> Ending[None]:
        """Commit the end of a node. If that cannot be, the run fails, or is somebody else's."""
        journal = self._open_journal()
        try:
            ending = await journal.commit(
                change,
                event='end' if status == 'done' else 'step',
                status=status,
                node=pending.node_id,
                task=pending.task,
                started_at=pending.started_at,
                duration=pending.duration,
            )
        except LeaseLostError as lost:
            ending = Ending[None](error=lost)
        if ending.error is None:
            self._remember(pending, 'success')
            return ending
        error = await self._failed(pending, ending.error)
        return Ending(error=error, cancelled=ending.cancelled)

    async def _check(self, ending: Ending[None]) -> None:
        """Raise what a commit ended with. A claim that nobody will use is given up first."""
        if self._journal is not None and (ending.cancelled is not None or ending.error is not None):
            await self._give_up(self._journal, ending.error)
        ending.unwrap()

    async def _failed(self, pending: _Pending, error: BaseException) -> BaseException:
        """Mark the run failed, if it still can be, and give its claim up. Gives what is to be raised."""
        self._dead(pending)
        journal = self._journal
        if journal is None:
            return error
        ending = Ending[None](error=error)
        if journal.claimed and not isinstance(error, (LeaseLostError, StoreUnavailableError)):
            ending = await journal.fail(
                _describe(error, pending.node_id),
                node=pending.node_id,
                task=pending.task,
                started_at=pending.started_at,
                duration=pending.duration,
            )
        if ending.error is not None:
            await self._give_up(journal, ending.error)
            if ending.error is not error:
                error.add_note(
                    f'The failure of run {self.run_id!r} could not be stored: {ending.error}'
                )
        if ending.cancelled is not None:
            ending.cancelled.__cause__ = error
            return ending.cancelled
        return error

    async def _give_up(self, journal: Journal, error: BaseException | None = None) -> None:
        """Give the claim up. What cannot be reached just now is left to its lease."""
        if isinstance(error, StoreUnavailableError):
            journal.abandon()
            return
        ending = await journal.release()
        if ending.error is not None:
            logger.warning('could not give up the claim on run %r: %s', self.run_id, ending.error)

    # --- what this handle knows ------------------------------------------------------------------------

    async def _load(self) -> Run | None:
        """Read the run and stand at its pending task, if it has one. Claims and changes nothing."""
        binding = self._bound()
        if self._pending is not None and self._pending.status == 'running':
            raise self._busy_here()
        self._forget()
        try:
            run, journal = await Journal.load(self.store, self.run_id)
        except RunNotFoundError:
            return None
        if run.status == 'running' and not run.interrupted:
            ours, dead = owners.is_this_process(run.owner), owners.is_proven_dead(run.owner)
            if not ours and not dead:
                raise RunBusyError(
                    run_id=run.run_id, owner=run.owner, lease_until=run.lease_until, epoch=run.epoch
                )
        try:
            stored = stored_task(self.run_id, journal.document)
            next_task(journal.document)
        except GraphChangedError:
            raise
        except ValueError as e:
            raise DamagedRunError(run_id=self.run_id, seq=run.seq, reason=str(e)) from e
        if stored is not None and run.status not in ('done', 'cancelled'):
            if stored.node not in binding.node_ids:
                known = ', '.join(sorted(binding.node_ids))
                raise GraphChangedError(
                    f'Run {self.run_id!r} waits for node {stored.node!r}, which is not in the graph (it has {known}). '
                    'Put the node back, under this name. The run was left as it is.',
                    run_id=self.run_id,
                    node=stored.node,
                )
            decode_node = partial(binding.nodes.decode, stored.node)
            state = self._decode('state', binding.state.decode, journal.document.state)
            self._pending = _Pending(
                task=stored.id,
                node_id=stored.node,
                node=self._decode(f'node {stored.node!r}', decode_node, stored.inputs),
                state=state,
                seen=binding.state.seen(state),
                snapshot_ids=frozenset((f'{stored.node}:{stored.id}',)),
                status='pending',
            )
        self._journal = journal
        self._loaded = run.status not in ('done', 'cancelled')
        return run

    def _decode(self, what: str, decode: Callable[[Any], T], stored: Any) -> T:
        try:
            return decode(stored)
        except (CodecError, ValueError) as e:
            raise GraphChangedError(
                f'The stored {what} of run {self.run_id!r} does not fit the graph any more: {e}. '
                'The run was left as it is.',
                run_id=self.run_id,
                path=getattr(e, 'path', None),
            ) from e

    def _busy_here(self) -> RunBusyError:
        return RunBusyError(run_id=self.run_id, owner=owners.current(), lease_until=None, epoch=-1)

    def _await_node(
        self, task: str, node_id: str, node: Any, state: Any, seen: Seen | None
    ) -> None:
        """From here on, this task is the pending one."""
        # The object's own id: upstream names it so. Objects that were returned twice keep their id.
        ids = frozenset((node.get_snapshot_id(), f'{node_id}:{task}'))
        self._pending = _Pending(
            task=task,
            node_id=node_id,
            node=node,
            state=state,
            seen=seen,
            snapshot_ids=ids,
            status='created',
        )

    def _successor(
        self, journal: Journal, encoded: Encoded, node_id: str, inputs: bytes
    ) -> tuple[str, Change]:
        """The change that puts a new task in the place of the pending one."""
        number = next_task(journal.document)
        tasks: dict[str, bytes | None] = dict.fromkeys(journal.document.tasks)
        tasks[str(number)] = encode_task(node_id, inputs, born=journal.epoch)
        return str(number), Change(state=encoded.parts, tasks=tasks, next=counters(number + 1))

    def _claimable(self, *, failed: bool = False) -> tuple[Status, ...]:
        return ('ready', 'failed') if failed or self._retry_failed else ('ready',)

    @staticmethod
    def _encode(binding: Binding, journal: Journal, state: Any, seen: Seen | None) -> Encoded:
        return binding.state.encode(state, previous=journal.document.state, seen=seen)

    async def _refuse(self, snapshot_id: str) -> None:
        """Raise what upstream raises for a snapshot that is not the pending one."""
        status = self._past.get(snapshot_id)
        if status is None:
            for snapshot in await self.load_all():
                if snapshot.id == snapshot_id and isinstance(snapshot, NodeSnapshot):
                    status = snapshot.status
        if status is None:
            raise LookupError(f'No snapshot found with id={snapshot_id!r}')
        raise GraphNodeStatusError(status)

    def _remember(self, pending: _Pending, status: SnapshotStatus) -> None:
        pending.status = status
        for snapshot_id in pending.snapshot_ids:
            self._past[snapshot_id] = status

    def _dead(self, pending: _Pending) -> None:
        """The pending node raised, or its end could not be committed: only `resume` runs it again."""
        self._remember(pending, 'error')
        self._loaded = False

    def _forget(self) -> None:
        self._journal = None
        self._pending = None
        self._loaded = False

    def _bound(self) -> Binding:
        if self._binding is None:
            raise RuntimeError(
                f'No graph is bound to {self!r}. Call persistence.set_graph_types(graph) first.'
            )
        return self._binding

    def _open_journal(self) -> Journal:
        if self._journal is None:
            raise LookupError(f'run {self.run_id!r} is not open here: load it again')
        return self._journal

    def _belongs(self, node: object) -> bool:
        return isinstance(node, BaseNode) and node.get_node_id() in self._bound().node_ids

    def _check_belongs(self, node: object) -> None:
        if not isinstance(node, BaseNode):
            raise TypeError(f'expected a node, got {node!r}')
        if not self._belongs(node):
            known = ', '.join(sorted(self._bound().node_ids))
            raise GraphChangedError(
                f'Node {node.get_node_id()!r} is not in the graph of run {self.run_id!r} (it has {known}).',
                run_id=self.run_id,
                node=node.get_node_id(),
            )


def _text(encoded: Encoded) -> bytes:
    """An encoded value as one JSON text."""
    if isinstance(encoded.parts, bytes):
        return encoded.parts
    pieces: list[Any] = []
    render(encoded.parts, pieces)
    return b''.join(pieces)


def _describe(error: BaseException, node: str) -> dict[str, Any]:
    """A stored error: class, message and the end of the traceback, as text."""
    cls = type(error)
    try:
        message = str(error)
    except Exception:
        message = '(its message cannot be shown)'
    lines = ''.join(traceback.format_exception(error))
    return {
        'type': f'{cls.__module__}.{cls.__qualname__}',
        'message': message[:4_000],
        'node': node,
        'traceback': lines[-8_000:],
    }
