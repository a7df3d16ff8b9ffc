"""Runs the tasks of a kept graph, and commits what they did.

A step can be followed in four hops: `Execution.advance` → `Journal.commit` → `Store.append` → the
statement `append` of the database. The commit lies between a step's end and its successors' start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn, cast

from ..document import Change
from ..errors import GraphkeepError, StoreUnavailableError
from ..failures import describe
from ..journal import Journal
from ..runs import Status
from ..shielding import Ending
from ..tasks import Task, encode_task, request_id_of
from ..waits import Waits, paused_error
from .completions import Completion, StepState
from .frontier import Frontier
from .gathering import Gathering
from .plan import Plan
from .state import StateKeeper
from .steps import Steps
from .walk import Walk

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
        waits: Waits,
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
        self._waits = waits
        self._next = Gathering(plan, journal, frontier, waits)
        self._steps = Steps(
            plan,
            journal,
            frontier,
            keeper,
            deps=deps,
            known=waits.known,
            keep=self._keep,
            complete=self._complete,
            is_wanted=lambda task_id: task_id in self._running,
        )
        self.unseen: list[Walk] = []
        """What a commit has settled whose caller was cancelled meanwhile: for the next one."""
        self._committing = asyncio.Lock()
        """Held while completions are settled and committed, and while `once` commits."""
        self._wake: asyncio.Future[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.stopping = False
        """No step is begun any more; those that run may end."""
        self.paused = False
        """Whether nothing can go on before an answer comes. The claim was given up with that."""
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

    @property
    def born(self) -> int:
        """What tells the run from another one of the same id: the epoch it was created with."""
        return self._journal.first_epoch

    @property
    def idle(self) -> bool:
        """Whether no step runs, and none has ended that is not committed."""
        return not self._running and not self._completed

    # --- running ----------------------------------------------------------------------------------

    async def advance(self) -> list[Walk]:
        """Run until at least one step has ended, commit it, and give what followed each.

        Raises:
            Exception: What a step raised. The run is `failed` then, what had ended before
                committed.
            RunPausedError: Nothing can go on before an answer comes. The run is `paused` then.
            LeaseLostError: Another process has taken the run over.
        """
        if self._broken is not None:
            raise self._broken
        if self.unseen:
            walks, self.unseen = self.unseen, []
            return walks
        if self.paused:
            await self._check_answered()
        if not self._journal.claimed:
            await self.claim()
        if self.watched:
            await self._commit_edits()
        tasks = self._frontier.tasks
        if not tasks:
            await self._fail_run(None, RuntimeError(_NO_RESULT))
        if not self._completed and self._is_stuck():
            await self._pause()
            return []
        self._journal.step_begins()
        if len(tasks) == 1 and not self._running and not self._completed:
            (task,) = tasks.values()
            if self._plan.step(task.node).stream_fork is None:
                done = await self._steps.run_alone(task)
                async with self._committing:
                    return await self._settle([done])
        self._launch()
        while not self._completed:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
            if not self._completed:
                self._launch()  # an answer has come
        async with self._committing:
            return await self._settle(self._take())

    def _is_stuck(self) -> bool:
        """Whether no task runs, and each waits for an answer."""
        tasks, waits = self._frontier.tasks.values(), self._waits
        return not self._running and bool(waits.known) and all(waits.holds(task) for task in tasks)

    async def _pause(self) -> None:
        """Nothing was settled, and nothing can go on: of what it waits for, a part was answered."""
        async with self._committing:
            ending = await self._journal.commit(
                Change(),
                event='pause',
                status='paused',
                answered=self._waits.answered,
                wake_at=self._waits.wake_at,
            )
            self.paused = ending.error is None
            ending.unwrap()

    async def _check_answered(self) -> None:
        """Go on from a pause, if an answer has come meanwhile."""
        await self._waits.look()
        if self._is_stuck():
            raise await paused_error(self._journal.store, self._journal.run_id)
        self.paused = False

    async def claim(self) -> None:
        """Get the right to write the run. Errors as for `Journal.claim`."""
        await self._journal.claim(allow=('ready', 'failed'))
        self.paused = False

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
        self._end(walk)
        self._journal.step_begins()
        ending = await self._journal.commit(self._next.change, event='end', status='done')
        ending.unwrap()

    async def close(self) -> None:
        """End what still runs, and give the claim up: the run can go on at once."""
        running, self._running = self._running, {}
        cancelled = await _stop({**running, **self._stop_listening()})
        if not self.ended:
            self._keeper.restore_committed()
        self._journal.step_ends()
        ending = await self._journal.release()
        if cancelled is not None:
            raise cancelled
        ending.unwrap()

    def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        held = False
        if self.stopping:
            return
        for task in self.pending:
            if self._most is not None and len(self._running) >= self._most:
                return
            if task.id in self._running:
                continue
            if self._waits.known and self._waits.holds(task):
                held = True
                continue
            name = f'graphkeep-{task.node}-{task.id}'
            self._running[task.id] = loop.create_task(self._steps.run_beside(task), name=name)
        if held and self._listener is None:
            self._listener = loop.create_task(self._listen(), name='graphkeep-answers')

    async def _listen(self) -> None:
        """Hear of answers while other branches go on."""
        notices, looks, this = self._journal.store.notices, 0, asyncio.current_task()
        with notices.listening(self._journal.run_id) as event:
            # A driver may swallow the cancellation that ends this (wait_for of Python 3.11 does).
            while self._waits.any_open and self._listener is this:
                await notices.pause(event, looks=looks, most=self._waits.seconds_left)
                async with self._committing:
                    # Not beside a commit that asks: what is read might not have it yet.
                    if await self._waits.looked():
                        self._nudge()
                looks += 1
        if self._listener is this:
            self._listener = None

    def _stop_listening(self) -> dict[str, asyncio.Task[None]]:
        listener, self._listener = self._listener, None
        return {} if listener is None else {'': listener}

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
        self._nudge()

    def _nudge(self) -> None:
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
        walks: list[Walk] = []
        stopped: dict[str, asyncio.Task[None]] = {}
        for done in batch:
            if done.item is None:
                self._running.pop(done.task.id, None)
            if done.task.id not in self._frontier.tasks:
                continue  # a reducer has cancelled it meanwhile
            if done.paused:
                self._frontier.begin()
                self._next.paused(done)
                continue
            walk = done.error
            if walk is None:
                walk = self._settle_one(done, may_end=failed is None)
            if isinstance(walk, BaseException):
                failed = failed or (done, walk)
            if not isinstance(walk, Walk):
                continue
            self._next.ended(done, walk)
            walks.append(walk)
            for gone in walk.cancelled:
                if gone.id in self._running:
                    stopped[gone.id] = self._running.pop(gone.id)
            if walk.output is not None:
                self._end(walk)
                stopped.update(self._running)
                self._running.clear()
                break
        cancelled = await _stop(stopped) if stopped else None
        if self._next.last is not None:
            cancelled = await self._commit(self._next.last, failed=failed) or cancelled
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

    def _end(self, walk: Walk) -> None:
        """The graph has ended."""
        assert walk.output is not None
        self._next.end(walk.output)
        self.output, self.ended = walk.end, True

    async def _commit(self, last: Completion, *, failed: _Failed | None) -> BaseException | None:
        """Commit what was settled; gives the cancellation that arrived meanwhile."""
        gathered, waits = self._next, self._waits
        change = gathered.finish(self._keeper.change)
        status: Status = 'done' if self.ended else 'running'
        if not self.ended and failed is None and not self._completed and self._stops():
            status = 'paused'
        try:
            ending = await self._journal.commit(
                change,
                event=gathered.event,
                status=status,
                node=last.task.node,
                task=last.task.id,
                started_at=last.started_at,
                duration=last.duration,
                asks=gathered.asks,
                closes=gathered.closes,
                answered=waits.answered,
                wake_at=waits.wake_at if status == 'paused' else None,
            )
        except GraphkeepError as e:
            # A refused renewal has told it before, or the store was closed: nothing was tried.
            ending = Ending[None](error=e)
        if ending.error is not None:
            # In memory it is settled: nobody may go on from here.
            self.ended = False
            await self._fail_run(last, ending.error, cancelled=ending.cancelled)
        self._keeper.committed()
        gathered.committed()
        self.paused = status == 'paused'
        return ending.cancelled

    def _stops(self) -> bool:
        """Whether nothing can go on after the next commit."""
        asked = {new.request_id for new in self._next.asks}
        if self._running or not (asked or self._waits.known):
            return False
        return all(
            self._waits.holds(task)
            or any(request_id_of(task.id, name) in asked for name in task.waits)
            for task in self._frontier.tasks.values()
        )

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
        cancelled = await _stop({**running, **self._stop_listening()}) or cancelled
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
