"""Where a handle stands in its run: the pending task, and the journal that carries it forward."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from pydantic_graph.persistence import SnapshotStatus

from ..codec import Encoded, Seen
from ..document import Change, Document
from ..errors import (
    CodecError,
    DamagedRunError,
    GraphChangedError,
    LeaseLostError,
    RunNotFoundError,
    StoreClosedError,
    StoreUnavailableError,
)
from ..failures import describe
from ..journal import Journal, check_not_held
from ..parts import Part, split, text_of
from ..requests import NewRequest
from ..runs import Run, Status
from ..scope import Scope
from ..shielding import Ending
from ..tasks import START, Task, counters, encode_task, read_counters
from ..waits import Waits, paused_error
from .binding import Binding
from .tasks import stored_task

if TYPE_CHECKING:
    from ..pausing import Asking
    from ..store import Store

__all__ = ('Cursor', 'Pending')

logger = logging.getLogger('graphkeep')

T = TypeVar('T')

_NO_FAILURE = (
    LeaseLostError,
    StoreClosedError,
    StoreUnavailableError,
    # The loop goes down and has taken the write with it.
    asyncio.CancelledError,
)
"""What a commit may end with that says nothing about the run."""

_NEXT_FORK = 1
"""A 1.x graph has no forks; the start counts as the first."""


@dataclass(kw_only=True, slots=True)
class Pending:
    """The task a cursor is at."""

    stored: Task
    """The task, with the node as it is stored."""
    node: Any
    """The node object that upstream will run. The caller may change it until then."""
    state: Any
    """The state object that upstream will hand to the node. The caller may change it until then."""
    seen: Seen | None
    """What append-only fields of the state held when it was stored."""
    snapshot_ids: frozenset[str]
    """By what upstream may name it: the node object's own id, and the one `load_all` gives."""
    status: SnapshotStatus
    started_at: datetime | None = None
    duration: float | None = None
    clock: float = 0.0

    @property
    def task(self) -> str:
        """The task's id."""
        return self.stored.id

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.stored.node

    def begins(self) -> None:
        """Its node starts to run."""
        self.started_at = datetime.now(tz=UTC)
        self.clock = perf_counter()

    def ended(self, status: SnapshotStatus) -> None:
        """Its node has run."""
        self.duration = perf_counter() - self.clock
        self.status = status


class Cursor:
    """One run as one handle works on it. Made by `start` or `load`; dropped when the run ends."""

    def __init__(self, binding: Binding, journal: Journal, *, next_task: int) -> None:
        self._binding = binding
        self._journal = journal
        self._requests = Waits(journal.store, journal.run_id, answered=journal.answered)
        self._next_task = next_task
        self._keeping = asyncio.Lock()
        self.pending: Pending | None = None
        """The task that is next, runs, or has run and is not committed; `None` at the end."""
        self.fresh = True
        """Nothing has run since it was loaded: a node given instead of the pending one takes its
        place."""

    @property
    def run_id(self) -> str:
        """The run."""
        return self._journal.run_id

    @property
    def claimed(self) -> bool:
        """Whether this handle may write the run, as far as it knows."""
        return self._journal.claimed

    @property
    def waits(self) -> bool:
        """Whether the pending node has not begun."""
        return self.pending is not None and self.pending.status in ('created', 'pending')

    @property
    def busy(self) -> bool:
        """Whether a node runs, or what it did is being committed."""
        running = self.pending is not None and self.pending.status == 'running'
        return running or self._journal.writing

    def is_meant(self, snapshot_id: str, node: object = None) -> bool:
        """Whether upstream means the pending task: by an id it has, or by its very node object, to
        which upstream gives a new id when the caller passes on what `load_next` gave.
        """
        pending = self.pending
        if pending is None:
            return False
        if node is not None and node is pending.node and self.waits:
            pending.snapshot_ids |= {snapshot_id}
        return snapshot_id in pending.snapshot_ids

    @classmethod
    async def start(
        cls,
        store: Store,
        run_id: str,
        binding: Binding,
        *,
        state: Any,
        node: Any,
        graph: str | None,
        labels: Mapping[str, str],
        claimed: bool,
    ) -> Cursor:
        """Create the run, with `node` to run first. Raises `RunExistsError` if it exists."""
        encoded = binding.state.encode(state)
        node_id, inputs = binding.nodes.encode(node)
        first = Task('0', node_id, inputs, START, born=0)
        document = Document(
            state=cast('dict[str, Part] | bytes', split(text_of(encoded.parts))),
            tasks={first.id: encode_task(first)},
            next=counters(1, _NEXT_FORK),
        )
        journal = await Journal.start(
            store, run_id, document, graph=graph, labels=labels, claimed=claimed
        )
        cursor = cls(binding, journal, next_task=1)
        cursor._go_to(first, node, state, encoded.seen)
        cursor.fresh = False
        return cursor

    @classmethod
    async def load(cls, store: Store, run_id: str, binding: Binding) -> tuple[Run, Cursor] | None:
        """Read the run and stand at its pending task. Claims and changes nothing.

        Returns:
            Header and cursor, or `None` if there is no such run.

        Raises:
            RunPausedError: It waits for an answer.
            RunBusyError: Another process, which may be alive, is running it.
            GraphChangedError: What is stored does not fit the graph any more.
            DamagedRunError: What is stored cannot be read.
        """
        try:
            run, journal = await Journal.load(store, run_id)
        except RunNotFoundError:
            return None
        check_not_held(run)
        if run.status == 'paused' and not run.due:
            raise await paused_error(store, run_id)
        try:
            stored = stored_task(run_id, journal.document)
            number, _ = read_counters(journal.document)
        except GraphChangedError:
            raise
        except ValueError as e:
            raise DamagedRunError(run_id=run_id, seq=run.seq, reason=str(e)) from e
        cursor = cls(binding, journal, next_task=number)
        if stored is None or run.status in ('done', 'cancelled'):
            return run, cursor
        if stored.node not in binding.node_ids:
            known = ', '.join(sorted(binding.node_ids))
            raise GraphChangedError(
                f'Run {run_id!r} waits for node {stored.node!r}, which is not in the graph (it has '
                f'{known}). Put the node back, under this name. The run was left as it is.',
                run_id=run_id,
                node=stored.node,
            )
        await cursor._requests.load((stored,))
        decode_node = partial(binding.nodes.decode, stored.node)
        state = cursor.stored_state()
        cursor.pending = Pending(
            stored=stored,
            node=cursor._decode(f'node {stored.node!r}', decode_node, stored.inputs),
            state=state,
            seen=binding.state.seen(state),
            snapshot_ids=frozenset((f'{stored.node}:{stored.id}',)),
            status='pending',
        )
        return run, cursor

    def stored_state(self) -> Any:
        """The state as it is stored, detached."""
        return self._decode('state', self._binding.state.decode, self._journal.document.state)

    def stored_output(self) -> Any:
        """The output of a run that is done, detached."""
        output = self._journal.document.output
        if output is None:
            raise DamagedRunError(
                run_id=self.run_id, seq=self._journal.seq, reason='it has no output'
            )
        return self._decode('output', self._binding.end.decode, output)

    async def replace(self, state: Any, node: Any, *, allow: tuple[Status, ...]) -> None:
        """Put a node of the caller's in the place of the pending one, with the state as it is."""
        journal = self._journal
        encoded = self._encode(state)
        node_id, inputs = self._binding.nodes.encode(node)
        if not journal.claimed:
            await journal.claim(allow=allow)
        task, change = self._successor(encoded, node_id, inputs)
        closes = tuple(self._requests.known)
        ending = await journal.commit(change, event='replace', closes=closes)
        if ending.error is None:
            self._requests.written((), closes)
            self._go_to(task, node, state, encoded.seen)
        await self._check(ending)

    async def enter(self, pending: Pending, *, allow: tuple[Status, ...]) -> None:
        """Before a node runs: claim the run, and commit what the caller changed meanwhile."""
        journal = self._journal
        encoded = self._encode(pending.state)
        node_id, inputs = self._binding.nodes.encode(pending.node)
        if not journal.claimed:
            await journal.claim(allow=allow)
        journal.step_begins()
        try:
            edited = inputs != pending.stored.inputs
            if edited or not journal.document.has_state(encoded.parts):
                change = Change(state=encoded.parts)
                stored = replace(pending.stored, node=node_id, inputs=inputs)
                if edited:
                    change.tasks[pending.task] = encode_task(stored)
                await self._check(await journal.commit(change, event='edit'))
                pending.stored = stored
            if self._requests.holds(pending.stored):
                # Of what it waits for, only a part was answered, or has expired.
                await self._pause(pending, Change(), ())
        except BaseException:
            journal.step_ends()
            raise
        pending.seen = encoded.seen
        self.fresh = False

    async def step(self, pending: Pending, state: Any, node: Any) -> None:
        """Commit what the node that has just run did, with the node that is next."""
        try:
            encoded = self._encode(state)
            node_id, inputs = self._binding.nodes.encode(node)
            task, change = self._successor(encoded, node_id, inputs)
        except Exception as e:  # whatever users' serializers raise fails the run
            await self.fail(pending, e)
            raise
        ending = await self._settle(pending, change, status='running')
        if ending.error is None:
            self._go_to(task, node, state, encoded.seen)
        await self._check(ending)

    async def end(self, pending: Pending, state: Any, output: Any) -> None:
        """Commit what the last node did, and the output."""
        try:
            encoded = self._encode(state)
            data = text_of(self._binding.end.encode(output).parts)
        except Exception as e:  # whatever users' serializers raise fails the run
            await self.fail(pending, e)
            raise
        change = Change(state=encoded.parts, tasks={pending.task: None}, output=data)
        await self._check(await self._settle(pending, change, status='done'))
        self.pending = None

    async def fail(self, pending: Pending, error: BaseException) -> None:
        """Mark the run failed, if it still can be, and give its claim up. The caller raises
        `error`.

        Raises:
            CancelledError: The caller was cancelled meanwhile.
        """
        ending = await self._failed(pending, error)
        if ending.cancelled is not None:
            raise ending.cancelled from error

    async def pause(self, pending: Pending, asking: Asking) -> NoReturn:
        """Commit what the node that has just run waits for. It has changed nothing.

        Raises:
            RunPausedError: Always, unless the commit fails.
        """
        stored = replace(pending.stored)
        asks, closes = self._requests.pause(stored, asking.asked, asking.used)
        pending.status = 'error'
        pending.stored = stored
        await self._pause(pending, Change(tasks={stored.id: encode_task(stored)}), asks, closes)

    async def _pause(
        self,
        pending: Pending,
        change: Change,
        asks: Sequence[NewRequest],
        closes: Sequence[str] = (),
    ) -> NoReturn:
        journal = self._journal
        journal.step_ends()
        ending = await journal.commit(
            change,
            event='pause',
            status='paused',
            node=pending.node_id,
            task=pending.task,
            started_at=pending.started_at,
            duration=pending.duration,
            asks=asks,
            closes=closes,
            answered=self._requests.answered,
            wake_at=self._requests.wake_at,
        )
        await self._check(ending)
        self._requests.written(asks, closes)
        raise await paused_error(journal.store, self.run_id)

    async def leave(self) -> None:
        """The pending node was cancelled: it has changed nothing, and the run can go on at once."""
        self._journal.step_ends()
        await self._give_up(None)

    def scope(self, pending: Pending) -> Scope:
        """What the pending node can know and keep while it runs."""
        keep = partial(self._keep, pending.stored)
        return Scope(self._journal, pending.stored, keep=keep, known=self._requests.known)

    async def _keep(self, task: Task, name: str, value: bytes) -> None:
        """Commit what `once` has got, and nothing else of the node that is half done."""
        async with self._keeping:
            if self.pending is None or self.pending.stored is not task or not self.busy:
                raise RuntimeError(
                    f'once({name!r}) finished after its node had ended: its value was not kept. '
                    'Wait for it inside of the node.'
                )
            kept = replace(task, memo={**task.memo, name: value})
            change = Change(tasks={task.id: encode_task(kept)})
            ending = await self._journal.commit(change, event='once')
            if ending.error is None:
                task.memo[name] = value
            ending.unwrap()

    def rest(self) -> None:
        """The pending node runs no more: the claim is given up soon, if nothing follows."""
        self._journal.step_ends()

    # --- commits ---------------------------------------------------------------------------------

    async def _settle(self, pending: Pending, change: Change, *, status: Status) -> Ending[None]:
        """Commit the end of a node. If that cannot be, the run fails, or is somebody else's."""
        closes = tuple(self._requests.known)
        try:
            ending = await self._journal.commit(
                change,
                event='end' if status == 'done' else 'step',
                status=status,
                node=pending.node_id,
                task=pending.task,
                started_at=pending.started_at,
                duration=pending.duration,
                closes=closes,
            )
        except (LeaseLostError, StoreClosedError) as lost:
            ending = Ending[None](error=lost)
        if isinstance(ending.error, _NO_FAILURE):
            # There is nothing to be stored any more, or no way to store it now.
            pending.status = 'error'
            self._journal.step_ends()
            await self._give_up(ending.error)
        elif ending.error is not None:
            failing = await self._failed(pending, ending.error)
            return Ending(error=ending.error, cancelled=ending.cancelled or failing.cancelled)
        else:
            self._requests.written((), closes)
        return ending

    async def _failed(self, pending: Pending, error: BaseException) -> Ending[None]:
        pending.status = 'error'
        journal = self._journal
        journal.step_ends()
        if not journal.claimed:
            return Ending()
        ending = await journal.fail(
            describe(error, pending.node_id),
            node=pending.node_id,
            task=pending.task,
            started_at=pending.started_at,
            duration=pending.duration,
        )
        if ending.error is not None:
            error.add_note(
                f'The failure of run {self.run_id!r} could not be stored: {ending.error}'
            )
            await self._give_up(ending.error)
        return ending

    async def _check(self, ending: Ending[None]) -> None:
        """Raise what a commit ended with. A claim that nobody will use is given up first."""
        if ending.error is not None or ending.cancelled is not None:
            self._journal.step_ends()
            await self._give_up(ending.error)
        ending.unwrap()

    async def _give_up(self, error: BaseException | None) -> None:
        """Give the claim up. What cannot be reached just now is left to its lease."""
        if isinstance(error, StoreUnavailableError):
            self._journal.abandon()
            return
        ending = await self._journal.release()
        if ending.error is not None:
            logger.warning('could not give up the claim on run %r: %s', self.run_id, ending.error)

    # --- values ----------------------------------------------------------------------------------

    def _go_to(self, task: Task, node: Any, state: Any, seen: Seen | None) -> None:
        self._next_task = int(task.id) + 1
        # Ids belong to executions: an object that is returned twice keeps the id it has.
        self.pending = Pending(
            stored=task,
            node=node,
            state=state,
            seen=seen,
            snapshot_ids=frozenset((node.get_snapshot_id(), f'{task.node}:{task.id}')),
            status='created',
        )

    def _successor(self, encoded: Encoded, node_id: str, inputs: bytes) -> tuple[Task, Change]:
        """A new task, and the change that puts it in the place of the pending one."""
        number = self._next_task
        task = Task(str(number), node_id, inputs, START, born=self._journal.epoch)
        tasks: dict[str, bytes | None] = dict.fromkeys(self._journal.document.tasks)
        tasks[task.id] = encode_task(task)
        following = counters(number + 1, _NEXT_FORK)
        return task, Change(state=encoded.parts, tasks=tasks, next=following)

    def _encode(self, state: Any) -> Encoded:
        seen = None if self.pending is None else self.pending.seen
        return self._binding.state.encode(state, previous=self._journal.document.state, seen=seen)

    def _decode(self, what: str, decode: Callable[[Any], T], stored: Any) -> T:
        try:
            return decode(stored)
        except (CodecError, ValueError) as e:
            raise GraphChangedError(
                f'The stored {what} of run {self.run_id!r} does not fit the graph any more: '
                f'{str(e).rstrip(".")}. '
                'The run was left as it is.',
                run_id=self.run_id,
                path=getattr(e, 'path', None),
            ) from e
