"""Starting a run of a builder graph, and taking up one that is stored."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from pydantic_graph.node import StartNode

from ..document import Document
from ..errors import (
    CodecError,
    DamagedRunError,
    GraphChangedError,
    RunMovedError,
    RunNotFoundError,
    RunStatusError,
)
from ..handle import Handle
from ..hooks import not_claimable
from ..journal import Journal, check_not_held
from ..parts import Part, split, text_of
from ..runs import Run
from ..tasks import START, counters, encode_task, read_counters, read_tasks
from ..waits import Waits, paused_error
from .executor import Execution
from .frontier import Buffer, Frontier
from .plan import JoinPlan, Plan
from .state import StateKeeper, assume
from .stored import encode_buffer, join_name, read_buffers
from .walk import Walk

__all__ = ('load', 'start')


async def start(
    plan: Plan,
    handle: Handle,
    *,
    state: Any,
    deps: Any,
    inputs: Any,
    graph: str | None,
    max_parallel: int | None,
    claimed: bool = True,
) -> Execution:
    """Create a run and stand before its first steps.

    Not `claimed`, it is `ready`: for whoever comes to run it.

    Raises:
        RunExistsError: There is a run with this id.
        LossyStateError: The state or the inputs would not come back as they are.
    """
    plan.state.encode(state)  # refused before any of the graph's own code runs
    frontier = Frontier(plan.structure, next_fork=1)
    walk = Walk(plan, frontier, lambda: state, deps, born=0)
    walk.follow(StartNode.id, inputs, START)
    document = Document(
        state=cast('bytes | dict[str, Part]', split(text_of(plan.state.encode(state).parts))),
        tasks={task.id: encode_task(task) for task in frontier.tasks.values()},
        joins={
            join_name(buffer.key): encode_buffer(buffer, plan.join(buffer.join).fingerprint)
            for buffer in frontier.buffers.values()
        },
        next=counters(frontier.next_task, frontier.next_fork),
    )
    for buffer in frontier.buffers.values():
        buffer.stored = len(buffer.items)
    journal = await Journal.start(
        handle.store, handle.run_id, document, graph=graph, labels=handle.labels, claimed=claimed
    )
    keeper = StateKeeper(plan.state, plan.merger, journal.document, state)
    waits = Waits(handle.store, handle.run_id, answered=0)
    execution = Execution(
        plan, journal, frontier, keeper, waits, deps=deps, max_parallel=max_parallel
    )
    if walk.output is not None:
        if not claimed:
            await execution.claim()
        await execution.end_at_start(walk)
    return execution


async def load(
    plan: Plan, handle: Handle, *, deps: Any, max_parallel: int | None, into: Any = None
) -> Execution | None:
    """Take a stored run up where it stopped, claimed, or its end; `None` if it does not exist.

    `into` is the caller's state object, if there is one: it becomes what is stored.

    Raises:
        RunPausedError: It waits for an answer.
        RunBusyError: Another process, which may be alive, is running it.
        RunStatusError: It was cancelled, or was forked from an end.
        GraphChangedError: What is stored does not fit the graph any more.
        DamagedRunError: What is stored cannot be read.
    """
    while True:
        execution = await _look(plan, handle, deps=deps, max_parallel=max_parallel, into=into)
        if execution is None or execution.ended:
            return execution
        try:
            await execution.claim()
        except RunMovedError:
            continue  # somebody was faster between look and claim: look again
        return execution


async def _look(
    plan: Plan, handle: Handle, *, deps: Any, max_parallel: int | None, into: Any
) -> Execution | None:
    """Read a run, and stand where it stopped. Claims nothing."""
    try:
        run, journal = await Journal.load(handle.store, handle.run_id)
    except RunNotFoundError:
        return None
    if run.status == 'cancelled':
        raise not_claimable(run)
    check_not_held(run)
    if run.status == 'paused' and not run.due:
        raise await paused_error(handle.store, run.run_id)
    document = journal.document
    live = _decoded(run, 'state', lambda: plan.state.decode(document.state))
    keeper = StateKeeper(plan.state, plan.merger, document, live)
    if into is not None:
        keeper.live = into
        assume(keeper, live)
    frontier = _frontier(plan, run, document)
    waits = Waits(handle.store, run.run_id, answered=run.answered)
    await waits.load(frontier.tasks.values())
    execution = Execution(
        plan, journal, frontier, keeper, waits, deps=deps, max_parallel=max_parallel
    )
    if document.output is not None:
        output = document.output
        execution.output = _decoded(run, 'output', lambda: plan.decode_output(output))
        execution.ended = True
    elif not frontier.tasks and not frontier.buffers:
        raise _nothing_left(run)
    return execution


def _nothing_left(run: Run) -> RunStatusError:
    """Why a run that has not ended cannot go on."""
    if run.status == 'failed':
        message = (
            f'Run {run.run_id!r} has failed without a result, and nothing of it is left to run. '
            'Did it map over nothing, with no join behind? Mend the graph, and start a new run.'
        )
    else:
        message = (
            f'Run {run.run_id!r} has no pending step: it was forked from the end of '
            f'{run.parent_run_id!r}. Fork it at an earlier snapshot, or start a new run with its '
            'state.'
        )
    return RunStatusError(message, run_id=run.run_id, status=run.status)


def _frontier(plan: Plan, run: Run, document: Document) -> Frontier:
    """The stored frontier, checked against the graph as it is now."""
    try:
        next_task, next_fork = read_counters(document)
        tasks, buffers = read_tasks(document), read_buffers(document)
    except ValueError as e:
        raise DamagedRunError(run_id=run.run_id, seq=run.seq, reason=str(e)) from e
    frontier = Frontier(plan.structure, next_task=next_task, next_fork=next_fork)
    for task in tasks:
        task.node = _renamed(plan, run, task.node, 'step')
        if not plan.has_step(task.node):
            raise _changed(
                run,
                f'waits for step {task.node!r} (task {task.id}), which is not in the graph. Put it '
                f'back, or say what it is called now: persist(aliases={{{task.node!r}: …}})',
                node=task.node,
            )
        step, data = plan.step(task.node), task.inputs
        where = f'inputs of task {task.id} (step {task.node!r})'
        _decoded(run, where, lambda step=step, data=data: step.decode(data), node=task.node)
        if not plan.may_have_forks(task.fingerprint, task.forks):
            raise _changed(
                run,
                f'has task {task.id} (step {task.node!r}) inside of forks that are not in the '
                'graph any more, or have other neighbours',
                node=task.node,
            )
        frontier.restore_task(task)
    for buffer, fingerprint in buffers:
        buffer.join = _renamed(plan, run, buffer.join, 'join')
        if not plan.has_join(buffer.join) or fingerprint not in plan.fingerprints(buffer.join):
            raise _changed(
                run,
                f'has items waiting at join {buffer.join!r}, which is not in the graph any more, '
                'or has another reducer, fork or other neighbours',
                node=buffer.join,
            )
        join = plan.join(buffer.join)
        where = f'items waiting at join {buffer.join!r}'
        _decoded(run, where, partial(_read_buffer, join, buffer), node=buffer.join)
        frontier.restore_buffer(buffer)
    return frontier


def _read_buffer(join: JoinPlan, buffer: Buffer) -> None:
    """See that what waits at a join can be read. Nothing is reduced: that is the user's code."""
    if buffer.accumulator is not None:
        join.decode_accumulator(buffer.accumulator)
    for item in buffer.items:
        join.decode_item(item)


def _renamed(plan: Plan, run: Run, stored: str, kind: str) -> str:
    """What a node is called now."""
    name = plan.aliases.get(stored, stored)
    if name != stored and plan.kind(name) != kind:
        raise _changed(
            run,
            f'waits at {kind} {stored!r}, which persist(aliases={{{stored!r}: {name!r}}}) maps to '
            f'a {plan.kind(name)}. Map it to a {kind}',
            node=stored,
        )
    return name


def _decoded(run: Run, what: str, decode: Any, *, node: str | None = None) -> Any:
    try:
        return decode()
    except (CodecError, ValueError) as e:
        path = getattr(e, 'path', None)
        raise _changed(
            run,
            f'has stored {what}, which the graph cannot read any more: {str(e).rstrip(".")}. Put '
            'the old type back, or one that reads both',
            node=node,
            path=path,
        ) from e


def _changed(
    run: Run, what: str, *, node: str | None = None, path: str | None = None
) -> GraphChangedError:
    return GraphChangedError(
        f'Run {run.run_id!r} {what}. The run was left as it is.',
        run_id=run.run_id,
        node=node,
        path=path,
    )
