"""Running the steps of a kept graph: alone, or beside others, or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from ..journal import Journal
from ..pausing import split_waiting
from ..requests import Request
from ..scope import Scope, in_context
from ..tasks import Task
from .completions import Completion, StepState
from .frontier import Frontier
from .plan import Plan
from .state import StateKeeper
from .walk import is_stream

__all__ = ('Steps',)


class Steps:
    """Runs steps, and tells how each has ended. It commits nothing."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        frontier: Frontier,
        keeper: StateKeeper,
        *,
        deps: Any,
        known: Mapping[str, Request],
        keep: Callable[[str, str, bytes], Awaitable[None]],
        complete: Callable[[Completion], None],
        is_wanted: Callable[[str], bool],
    ) -> None:
        """Run nothing yet.

        Args:
            plan: Of the graph.
            journal: Of the run.
            frontier: Of the run.
            keeper: The state.
            deps: The dependencies.
            known: The requests of the run by id.
            keep: Commits a value of `once`, by task and name.
            complete: Takes the end of a step that ran beside others, or an item of its stream.
            is_wanted: Whether anybody waits for a task that runs beside others.
        """
        self._plan = plan
        self._journal = journal
        self._frontier = frontier
        self._keeper = keeper
        self._deps = deps
        self._known = known
        self._keep = keep
        self._complete = complete
        self._is_wanted = is_wanted

    async def run_alone(self, task: Task) -> Completion:
        """Run a step beside which nothing else is: here, and on the live state."""
        done = Completion(task=task, state=StepState(self._keeper, alone=True))
        scope = self._scope(task)
        done.begins()
        try:
            done.value = await in_context(copy_context(), self._call(done, scope))
            if is_stream(done.value):
                raise self._plan.misplaced_stream(task.node)
        except Exception as e:  # noqa: BLE001 - settled as the step's error
            done.error = e
        except BaseException as e:
            # Whoever watches may go on: half a step must not be taken for an edit of theirs.
            self._keeper.restore_committed()
            if scope.asking is None or split_waiting(e) is e:
                raise
            done.error = e
        done.ends(scope.asking)
        if scope.is_pausing:
            await scope.quiet()
        return done

    async def run_beside(self, task: Task) -> None:
        """Run a step beside others: in an asyncio task and on a copy of the state, of its own."""
        done = Completion(task=task, state=StepState(self._keeper, alone=False))
        scope = self._scope(task)
        done.begins()
        try:
            value = done.value = await self._call(done, scope)
            if is_stream(value):
                # The body of a stream runs here, and not in the call that made it.
                with scope:
                    await self._stream(done, value)
                done.streamed = True
        except asyncio.CancelledError as e:
            if not self._is_wanted(task.id):
                raise  # by us: nobody waits for it any more
            done.error = e
        except BaseException as e:  # noqa: BLE001 - settled as the step's error
            done.error = e
        done.ends(scope.asking)
        if scope.is_pausing:
            await scope.quiet()
        elif done.error is None:
            try:
                done.state.ends()
            except Exception as e:  # noqa: BLE001 - settled as the step's error
                done.error = e
        self._complete(done)

    def _scope(self, task: Task) -> Scope:
        keep = partial(self._keep, task.id)
        return Scope(self._journal, task, keep=keep, known=self._known)

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
