"""Runs the tasks of a kept graph, and commits what they did.

A step can be followed in four hops: `Execution.advance` → `Journal.commit` → `Store.append` → the
statement `append` of the database. The commit lies between a step's end and its successors' start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

from ..document import Change
from ..errors import GraphkeepError, StoreUnavailableError
from ..failures import describe
from ..journal import Journal
from ..runs import Status
from ..scope import Scope, in_context
from ..shielding import Ending
from ..tasks import Task, counters, encode_task
from .completions import Completion, StepState
from .frontier import Buffer, Frontier, JoinKey
from .plan import Plan
from .state import StateKeeper
from .stored import encode_buffer, join_name, new_items
from .walk import Walk, is_stream

__all__ = ('Execution',)

_Failed = tuple[Completion, BaseException]
"""What failed a run, and its error."""


class Execution:
    """One run of a kept graph, in this process."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        frontier: Frontier,
        keeper: StateKeeper,
        *,
        deps: Any,
        max_parallel: int | None,
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._frontier = frontier
        self._keeper = keeper
        self._deps = deps
        self._most = max_parallel
        self._running: dict[str, asyncio.Task[None]] = {}
        self._completed: deque[Completion] = deque()
        self._moved: set[JoinKey] = set()
        """The buffers that what was settled since the last commit has changed."""
        self._unstored: list[Buffer] = []
        self.unseen: list[Walk] = []
        """What a commit has settled whose caller was cancelled meanwhile: for the next one."""
        self._committing = asyncio.Lock()
        """Held while completions are settled and committed, and while `once` commits."""
        self._wake: asyncio.Future[None] | None = None
        self._broken: BaseException | None = None
        """What the run failed with: only a resume runs the step again."""
        self.watched = False
        """Somebody sees the live state between two steps, and may change it."""
        self.ended = False
        """Whether the graph has ended, and `output` is its output."""
        self.output: Any = None

    @property
    def state(self) -> Any:
        """The live state: what was settled last."""
        return self._keeper.live

    @property
    def pending(self) -> list[Task]:
        """The tasks that are pending or running, oldest first."""
        return sorted(self._frontier.tasks.values(), key=lambda task: int(task.id))

    # --- running ----------------------------------------------------------------------------------

    async def advance(self) -> list[Walk]:
        """Run until at least one step has ended, commit it, and give what followed each.

        Raises:
            Exception: What a step raised. The run is `failed` then, what had ended before
                committed.
            LeaseLostError: Another process has taken the run over.
        """
        if self._broken is not None:
            raise self._broken
        if self.unseen:
            walks, self.unseen = self.unseen, []
            return walks
        if not self._journal.claimed:
            await self.claim()
        if self.watched:
            await self._commit_edits()
        tasks = self._frontier.tasks
        if not tasks:
            await self._fail_run(None, RuntimeError(_NO_RESULT))
        self._journal.step_begins()
        if len(tasks) == 1 and not self._running and not self._completed:
            (task,) = tasks.values()
            if self._plan.step(task.node).stream_fork is None:
                done = await self._run_alone(task)
                async with self._committing:
                    return await self._settle([done])
        self._launch()
        while not self._completed:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        async with self._committing:
            return await self._settle(self._take())

    async def claim(self) -> None:
        """Get the right to write the run. Errors as for `Journal.claim`."""
        await self._journal.claim(allow=('ready', 'failed'))

    async def _commit_edits(self) -> None:
        """Commit what the caller has changed in the state between two events.

        It counts as a change of its own: parallel steps that change the same are merged with it.
        """
        async with self._committing:
            if not self._keeper.settle_live('the caller'):
                return
            ending = await self._journal.commit(
                Change(state=self._keeper.change), event='edit', status='running'
            )
            if ending.error is None:
                self._keeper.committed()
            ending.unwrap()

    async def end_at_start(self, walk: Walk) -> None:
        """The graph goes from its start straight to its end."""
        change = Change()
        self._end(change, walk)
        self._journal.step_begins()
        ending = await self._journal.commit(change, event='end', status='done')
        ending.unwrap()

    async def close(self) -> None:
        """End what still runs, and give the claim up: the run can go on at once."""
        running, self._running = self._running, {}
        cancelled = await _stop(running)
        if not self.ended:
            self._keeper.restore_committed()
        self._journal.step_ends()
        ending = await self._journal.release()
        if cancelled is not None:
            raise cancelled
        ending.unwrap()

    def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        for task in self.pending:
            if self._most is not None and len(self._running) >= self._most:
                return
            if task.id not in self._running:
                name = f'graphkeep-{task.node}-{task.id}'
                self._running[task.id] = loop.create_task(self._run_parallel(task), name=name)

    async def _run_alone(self, task: Task) -> Completion:
        """Run a step beside which nothing else is: here, and on the live state."""
        done = Completion(task=task, state=StepState(self._keeper, alone=True))
        done.begins()
        try:
            done.value = await in_context(copy_context(), self._call(done, self._scope(task)))
            if is_stream(done.value):
                raise self._plan.misplaced_stream(task.node)
        except Exception as e:  # noqa: BLE001 - settled as the step's error
            done.error = e
        except BaseException:
            # Whoever watches may go on: half a step must not be taken for an edit of theirs.
            self._keeper.restore_committed()
            raise
        done.ends()
        return done

    async def _run_parallel(self, task: Task) -> None:
        """Run a step beside others: in an asyncio task and on a copy of the state, of its own."""
        done = Completion(task=task, state=StepState(self._keeper, alone=False))
        done.begins()
        try:
            scope = self._scope(task)
            value = done.value = await self._call(done, scope)
            if is_stream(value):
                # The body of a stream runs here, and not in the call that made it.
                with scope:
                    await self._stream(done, value)
                done.streamed = True
        except asyncio.CancelledError as e:
            if task.id not in self._running:
                raise  # by us: nobody waits for it any more
            done.error = e
        except BaseException as e:  # noqa: BLE001 - settled as the step's error
            done.error = e
        done.ends()
        if done.error is None:
            try:
                done.state.ends()
            except Exception as e:  # noqa: BLE001 - settled as the step's error
                done.error = e
        self._complete(done)

    def _scope(self, task: Task) -> Scope:
        return Scope(self._journal, task, keep=partial(self._keep, task.id))

    async def _call(self, done: Completion, scope: Scope) -> Any:
        step = self._plan.step(done.task.node)
        inputs = step.decode(done.task.inputs)
        with scope, self._plan.span(step):
            return await step.call(done.state, self._deps, inputs)

    async def _stream(self, done: Completion, items: AsyncIterable[Any]) -> None:
        """Send a stream's items on, one commit after the other; skip what was sent before."""
        task = done.task
        if self._plan.step(task.node).stream_fork is None:
            raise self._plan.misplaced_stream(task.node)
        index = 0
        try:
            async for item in items:
                if index >= (self._frontier.tasks[task.id].sent or 0):
                    settled = asyncio.get_running_loop().create_future()
                    self._complete(
                        Completion(
                            task=task, state=done.state, value=item, item=index, settled=settled
                        )
                    )
                    await settled
                index += 1
        finally:
            # A stream that is cancelled between two items would be left to the garbage collector.
            if isinstance(items, AsyncGenerator):
                await cast('AsyncGenerator[Any]', items).aclose()

    async def _keep(self, task_id: str, name: str, value: bytes) -> None:
        """Commit what `once` has got, and nothing else of the step that is half done."""
        # Looked at before, too: who holds the lock may be waiting for this very step to end.
        self._refuse_late(task_id)
        async with self._committing:
            self._refuse_late(task_id)
            task = self._frontier.tasks[task_id]
            kept = replace(task, memo={**task.memo, name: value})
            change = Change(tasks={task_id: encode_task(kept)})
            ending = await self._journal.commit(change, event='once')
            if ending.error is None:
                task.memo[name] = value
            ending.unwrap()

    def _refuse_late(self, task_id: str) -> None:
        """What a step keeps that nobody waits for any more is of no use."""
        gone = task_id not in self._frontier.tasks
        if gone or self.ended or self._broken is not None:
            raise asyncio.CancelledError

    def _complete(self, done: Completion) -> None:
        self._completed.append(done)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- settling ---------------------------------------------------------------------------------

    def _take(self) -> list[Completion]:
        batch = list(self._completed)
        self._completed.clear()
        return batch

    async def _settle(self, batch: list[Completion]) -> list[Walk]:
        """Settle completions, commit them together, and give what followed each.

        Each is atomic: what it raises belongs to the step that ended and is taken back. The others
        are committed before the run fails, and so is what has ended until then.
        """
        walks, failed, cancelled = await self._settle_batch(batch, None)
        while failed is not None and self._completed:
            _, failed, again = await self._settle_batch(self._take(), failed)
            cancelled = again or cancelled
        if failed is not None:
            await self._fail_run(*failed, cancelled=cancelled)
        if not self._running:
            self._journal.step_ends()
        if cancelled is not None:
            self.unseen = walks
            raise cancelled
        return walks

    async def _settle_batch(
        self, batch: list[Completion], failed: _Failed | None
    ) -> tuple[list[Walk], _Failed | None, BaseException | None]:
        """Settle and commit; gives what followed, what failed first, a cancellation meanwhile."""
        change = Change()
        walks: list[Walk] = []
        last: Completion | None = None
        stopped: dict[str, asyncio.Task[None]] = {}
        for done in batch:
            if done.item is None:
                self._running.pop(done.task.id, None)
            if done.task.id not in self._frontier.tasks:
                continue  # a reducer has cancelled it meanwhile
            walk = done.error
            if walk is None:
                walk = self._settle_one(done, may_end=failed is None)
            if isinstance(walk, BaseException):
                failed = failed or (done, walk)
            if not isinstance(walk, Walk):
                continue
            last = done
            self._collect(change, walk)
            walks.append(walk)
            for gone in walk.cancelled:
                if gone.id in self._running:
                    stopped[gone.id] = self._running.pop(gone.id)
            if walk.output is not None:
                self._end(change, walk)
                stopped.update(self._running)
                self._running.clear()
                break
        cancelled = await _stop(stopped) if stopped else None
        if last is not None:
            status = 'done' if self.ended else 'running'
            cancelled = await self._commit(change, last, status=status) or cancelled
        for done in batch:
            if done.settled is not None and not done.settled.done():
                done.settled.set_result(None)
        return walks, failed, cancelled

    def _settle_one(self, done: Completion, *, may_end: bool) -> Walk | Exception | None:
        """Settle one completion in memory.

        Args:
            done: What has ended.
            may_end: Whether the run may end with it: not beside a failure that came first.

        Returns:
            What followed; or what it raised, or `None` if it may not end, everything taken back.
        """
        task, keeper = done.task, self._keeper
        mark = keeper.mark()
        self._frontier.begin()
        # What runs in a settlement works on the live state, which is settled at its end.
        live = done.state if done.state.alone else StepState(keeper, alone=True)
        walk = Walk(self._plan, self._frontier, live, self._deps, born=self._journal.epoch)
        try:
            if done.item is None and done.state.left is not None:
                keeper.settle_left(done.state.left, task.node)
            if done.item is not None:
                fork = self._plan.step(task.node).stream_fork
                walk.follow_item(task.id, cast('Any', fork), done.item, done.value)
            elif done.streamed:
                fork = self._plan.step(task.node).stream_fork
                walk.end_stream(task.id, cast('Any', fork))
            else:
                self._frontier.remove_task(task.id)
                walk.follow(task.node, done.value, task.forks)
            if live.touched:
                keeper.settle_live(task.node)
            failed = None
        except Exception as e:  # noqa: BLE001 - belongs to the step that ended
            failed = e
        if failed is not None or (walk.output is not None and not may_end):
            self._frontier.undo()
            keeper.restore(mark)
            return failed
        done.value = None  # thousands may end together: what they gave is encoded now
        return walk

    def _collect(self, change: Change, walk: Walk) -> None:
        """Add what a settlement moved to what the next commit changes."""
        frontier, document = self._frontier, self._journal.document
        tasks, buffers = frontier.changes()
        for task_id in tasks:
            task = frontier.tasks.get(task_id)
            if task is not None:
                change.tasks[task_id] = encode_task(task)
            elif task_id in document.tasks:
                change.tasks[task_id] = None
            else:
                change.tasks.pop(task_id, None)
        self._moved.update(buffers)

    def _collect_buffers(self, change: Change) -> None:
        """Add the buffers that have changed."""
        # Once a commit, not once a settlement: thousands of items may share one.
        for key in self._moved:
            name = join_name(key)
            buffer = self._frontier.buffers.get(key)
            if buffer is None:
                if name in self._journal.document.joins:
                    change.joins[name] = None
                continue
            self._unstored.append(buffer)
            if buffer.stored is not None and buffer.accumulator is None:
                change.joins[name] = new_items(buffer)
            else:
                change.joins[name] = encode_buffer(buffer, self._plan.join(key[0]).fingerprint)

    def _end(self, change: Change, walk: Walk) -> None:
        """The graph has ended: whatever is left of it is of no more use."""
        document = self._journal.document
        change.tasks = dict.fromkeys(document.tasks)
        change.joins = dict.fromkeys(document.joins)
        change.output = walk.output
        self.output, self.ended = walk.end, True

    async def _commit(
        self, change: Change, last: Completion, *, status: Status
    ) -> BaseException | None:
        """Commit what was settled; gives the cancellation that arrived meanwhile."""
        frontier = self._frontier
        if not self.ended:
            self._collect_buffers(change)
        self._moved.clear()
        change.state = self._keeper.change
        change.next = counters(frontier.next_task, frontier.next_fork)
        try:
            ending = await self._journal.commit(
                change,
                event='end' if self.ended else 'step',
                status=status,
                node=last.task.node,
                task=last.task.id,
                started_at=last.started_at,
                duration=last.duration,
            )
        except GraphkeepError as e:
            # A refused renewal has told it before, or the store was closed: nothing was tried.
            ending = Ending[None](error=e)
        if ending.error is not None:
            # In memory it is settled: nobody may go on from here.
            self.ended = False
            await self._fail_run(last, ending.error, cancelled=ending.cancelled)
        self._keeper.committed()
        for buffer in self._unstored:
            buffer.stored = len(buffer.items)
        self._unstored.clear()
        return ending.cancelled

    async def _fail_run(
        self,
        done: Completion | None,
        error: BaseException,
        *,
        cancelled: BaseException | None = None,
    ) -> NoReturn:
        """Mark the run failed, if it still can be, end what runs, and raise `error`."""
        self._broken = error
        running, self._running = self._running, {}
        cancelled = await _stop(running) or cancelled
        self._keeper.restore_committed()
        self._journal.step_ends()
        if isinstance(error, StoreUnavailableError):
            self._journal.abandon()
        elif isinstance(error, Exception) and self._journal.claimed:
            ending = await self._journal.fail(
                describe(error, None if done is None else done.task.node),
                node=None if done is None else done.task.node,
                task=None if done is None else done.task.id,
                started_at=None if done is None else done.started_at,
                duration=None if done is None else done.duration,
            )
            if ending.error is not None:
                error.add_note(f'The failure of the run could not be stored: {ending.error}')
            cancelled = ending.cancelled or cancelled
        if cancelled is not None:
            raise cancelled from error
        raise error


async def _stop(tasks: Mapping[str, asyncio.Task[None]]) -> asyncio.CancelledError | None:
    """Cancel steps and wait until they have ended. What they still return or raise is of no use.

    Returns:
        The cancellation that arrived meanwhile, which the caller must raise when it has cleaned
        up. An anyio scope cancels again at every turn of the loop.
    """
    cancelled: asyncio.CancelledError | None = None
    for task in tasks.values():
        task.cancel()
    while not all(task.done() for task in tasks.values()):
        try:
            await asyncio.wait(tasks.values())
        except asyncio.CancelledError as e:
            cancelled = e
    return cancelled


_NO_RESULT = (
    'Graph run completed, but no result was produced. This is either a bug in the graph or a bug '
    'in the graph runner.'
)
"""Upstream's words."""
