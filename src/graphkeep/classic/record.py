"""The history of a 1.x run, as upstream's snapshots, from N + 1 commits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic_graph import End
from pydantic_graph.persistence import EndSnapshot, NodeSnapshot, Snapshot, SnapshotStatus

from .. import owner as owners
from ..errors import CodecError, DamagedRunError, GraphChangedError, RunNotFoundError
from ..history import Replay
from ..leases import runs_step
from ..runs import Run
from ..runs import Snapshot as Stored
from .binding import Binding
from .tasks import stored_task

if TYPE_CHECKING:
    from ..store import Store
    from .cursor import Cursor

__all__ = ('load_all',)


@dataclass(kw_only=True, slots=True)
class _Execution:
    """One execution of a node, as far as the snapshots that were read tell."""

    task: str
    node_id: str
    node: Any
    state: Any
    status: SnapshotStatus = 'created'
    started_at: datetime | None = None
    duration: float | None = None


async def load_all(
    store: Store, run_id: str, binding: Binding, here: Cursor | None
) -> list[Snapshot[Any, Any]]:
    """Every execution of a node in the run, oldest first, and the end if it has ended; copies.

    Args:
        store: Where the run is.
        run_id: The run; one that does not exist has no history.
        binding: The codecs of its graph.
        here: Where the calling handle stands: whether a task is loaded or running is not stored.

    Raises:
        DamagedRunError: A snapshot cannot be read.
        GraphChangedError: A snapshot does not fit the graph any more.
    """
    try:
        run, stored = await _read_all(store, run_id)
    except RunNotFoundError:
        return []
    replay = Replay(run_id)
    executions: list[_Execution] = []
    end: EndSnapshot[Any, Any] | None = None
    for snapshot in stored:
        replay.apply(snapshot)
        try:
            end = _read(binding, replay, snapshot, executions) or end
        except GraphChangedError:
            raise
        except (CodecError, LookupError) as e:
            raise GraphChangedError(
                f'Snapshot {snapshot.seq} of run {run_id!r} does not fit the graph: {e}',
                run_id=run_id,
            ) from e
        except ValueError as e:
            raise DamagedRunError(run_id=run_id, seq=snapshot.seq, reason=str(e)) from e
    if executions and end is None:
        _complete(executions[-1], run, here)
    history: list[Snapshot[Any, Any]] = [
        NodeSnapshot(
            state=e.state,
            node=e.node,
            start_ts=e.started_at,
            duration=e.duration,
            status=e.status,
            id=f'{e.node_id}:{e.task}',
        )
        for e in executions
    ]
    return history if end is None else [*history, end]


async def _read_all(store: Store, run_id: str) -> tuple[Run, list[Stored]]:
    """The header, and the snapshots up to the one it names: the run may be going on meanwhile."""
    while True:
        run = await store.run(run_id)
        everything = await store.snapshots(run_id)
        stored = [snapshot for snapshot in everything if snapshot.seq <= run.seq]
        if not everything or (stored and stored[-1].seq != run.seq):
            raise DamagedRunError(run_id=run_id, seq=run.seq, reason='it is missing')
        if stored:
            return run, stored


def _read(
    binding: Binding, replay: Replay, snapshot: Stored, executions: list[_Execution]
) -> EndSnapshot[Any, Any] | None:
    """Add what one snapshot tells: how a task ended, which one is pending, what the run gave."""
    document = replay.document
    if executions and snapshot.task == executions[-1].task and snapshot.event != 'pause':
        ended = executions[-1]
        ended.status = 'error' if snapshot.event == 'error' else 'success'
        ended.started_at, ended.duration = snapshot.started_at, snapshot.duration
    pending = stored_task(replay.run_id, document)
    if pending is not None:
        new = not executions or executions[-1].task != pending.id
        if new or snapshot.event == 'edit':
            node = binding.nodes.decode(pending.node, pending.inputs)
            state = binding.state.decode(document.state)
            execution = _Execution(task=pending.id, node_id=pending.node, node=node, state=state)
            executions[len(executions) - (not new) :] = [execution]
    if document.output is None:
        return None
    return EndSnapshot(
        state=binding.state.decode(document.state),
        result=End(binding.end.decode(document.output)),
        ts=snapshot.created_at,
        id=f'end:{snapshot.seq}',
    )


def _complete(execution: _Execution, run: Run, here: Cursor | None) -> None:
    """Say how the pending task stands: the start of a step is not stored, the holder tells."""
    pending = None if here is None else here.pending
    if run.status == 'failed':
        execution.status = 'error'
    elif (
        here is not None
        and pending is not None
        and pending.task == execution.task
        and pending.status != 'error'
        and (here.claimed or run.status == 'ready')
    ):
        execution.status = pending.status
        execution.started_at, execution.duration = pending.started_at, pending.duration
    elif run.status == 'running' and not run.interrupted and _at_work(run):
        execution.status = 'running'
    else:
        execution.status = 'created'


def _at_work(run: Run) -> bool:
    """Whether the holder of a claim may be running a node now."""
    if owners.is_this_process(run.owner):
        return runs_step(run.run_id, run.epoch)
    return not owners.is_proven_dead(run.owner)
