"""Anything that a caller may do with a run, in any order, against a model of it."""

from __future__ import annotations

import asyncio
import contextlib
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.exceptions import GraphNodeStatusError, GraphRuntimeError
from pydantic_graph.graph import Graph, GraphRun

import graphkeep
from graphkeep.stores.memory import MemoryStore
from tests.classic.graphs import nodes


@dataclass
class Account:
    total: int = 0
    log: Annotated[list[int], graphkeep.AppendOnly] = field(default_factory=list[int])


class BoomError(Exception):
    pass


@dataclass
class Step(BaseNode[Account, list[str], int]):
    """Does what the last word of `deps` says, after it has changed the state."""

    n: int

    async def run(self, ctx: GraphRunContext[Account, list[str]]) -> Step | End[int]:
        ctx.state.total += self.n
        ctx.state.log.append(self.n)
        what = ctx.deps.pop()
        if what == 'fail':
            raise BoomError
        if what == 'cancel':
            raise asyncio.CancelledError
        if what == 'nonsense':
            return 5  # type: ignore[return-value]
        if what == 'end':
            return End(ctx.state.total)
        if what == 'self':
            self.n += 1
            return self
        return Step(self.n + 1)


steps = Graph[Account, list[str], int](nodes=(Step,), name='steps')

WHAT = st.sampled_from(['next', 'self', 'fail', 'cancel', 'nonsense', 'end'])
NUMBER = st.integers(-3, 3)


@dataclass
class Execution:
    n: int
    state: Account
    status: str = 'created'


class Runs(RuleBasedStateMachine):
    """One run. `stored` is what the database has to hold, `session` what a caller has in hand."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.deps: list[str] = []
        self.number = 0

    def teardown(self) -> None:
        self.close()
        self.runner.run(self.store.close())
        self.runner.close()

    def do(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self.runner.run(wait())

    @initialize(n=NUMBER)
    def start(self, n: int) -> None:
        self.store = MemoryStore()
        self.run_id = 'run'
        self.state = Account()
        self.executions = [Execution(n, Account())]
        self.events = ['start']
        self.status = 'ready'
        self.output: int | None = None
        self.session: GraphRun[Account, list[str], int] | None = None
        self.stack = contextlib.AsyncExitStack()
        self.begun = False
        """Whether the pending node has run in this session, in vain."""
        self.do(steps.initialize(Step(n), self.store.persistence(self.run_id), state=Account()))

    def close(self) -> None:
        self.do(self.stack.aclose())
        self.session = None
        self.begun = False

    def opened(self) -> GraphRun[Account, list[str], int]:
        """What the caller has in hand, or loads now."""
        if self.session is None:
            self.open()
        assert self.session is not None
        return self.session

    # --- what callers do --------------------------------------------------------------------------

    @precondition(lambda self: self.session is None or len(self.events) % 4 == 0)
    @rule()
    def open(self) -> None:
        """Leave what was opened, and load the run with another handle."""
        self.close()
        opening = self.stack.enter_async_context(
            steps.iter_from_persistence(self.store.persistence(self.run_id), deps=self.deps)
        )
        if self.status in ('failed', 'done'):
            with pytest.raises(GraphRuntimeError, match='Unable to restore'):
                self.do(opening)
            return
        self.session = self.do(opening)
        assert self.session is not None
        assert self.session.state == self.state
        assert self.session.next_node == Step(self.executions[-1].n)

    @precondition(lambda self: self.output is None and (self.session or self.status == 'ready'))
    @rule(by=NUMBER)
    def edit_state(self, by: int) -> None:
        self.opened().state.total += by

    @precondition(lambda self: self.output is None and (self.session or self.status == 'ready'))
    @rule(by=NUMBER)
    def edit_node(self, by: int) -> None:
        node = self.opened().next_node
        if isinstance(node, Step) and not self.begun:
            node.n += by

    @precondition(lambda self: self.output is None and (self.session or self.status == 'ready'))
    @rule(what=WHAT)
    def step(self, what: str) -> None:
        session = self.opened()
        if self.begun:
            node = self.ran
            with pytest.raises(GraphNodeStatusError):
                self.do(session.next(node))
            return
        assert isinstance(session.next_node, Step)
        self._edited(session.next_node.n, session.state)
        self._run(session.next(), session.next_node, what)

    @precondition(lambda self: self.output is None and (self.session or self.status == 'ready'))
    @rule(n=NUMBER, what=WHAT)
    def put(self, n: int, what: str) -> None:
        """Run another node in the place of the pending one."""
        session, node = self.opened(), Step(n)
        self.executions.append(Execution(n, deepcopy(session.state)))
        self.events.append('replace')
        self.state = deepcopy(session.state)
        self._run(session.next(node), node, what)

    @precondition(lambda self: self.status != 'done' and len(self.events) > 6)
    @rule(what=st.lists(st.sampled_from(['next', 'self']), max_size=3))
    def resume(self, what: list[str]) -> None:
        self.close()
        self.deps[:] = ['end', *what]
        pending = self.executions[-1]
        expected = deepcopy(self.state)
        n = pending.n
        for each in reversed(self.deps):
            expected.total += n
            expected.log.append(n)
            self.executions[-1].status = 'success'
            self.events.append('end' if each == 'end' else 'step')
            if each != 'end':
                n += 1
                self.executions.append(Execution(n, deepcopy(expected)))
        handle = self.store.persistence(self.run_id)
        result = self.do(graphkeep.resume(steps, handle, deps=self.deps))
        self.state, self.status, self.output = expected, 'done', expected.total
        assert (result.output, result.state) == (self.output, self.state)

    @precondition(lambda self: self.status == 'done')
    @rule(n=NUMBER, what=st.sampled_from(['fail', 'cancel']))
    def fork_and_go_on(self, n: int, what: str) -> None:
        """From the end: the new run takes the place of the old."""
        self.close()
        self.number += 1
        new = f'run {self.number}'
        self.do(self.store.fork(self.run_id, new_run_id=new))
        self.run_id = new
        self.deps[:] = [what]
        handle = self.store.persistence(new)
        with pytest.raises(BoomError if what == 'fail' else asyncio.CancelledError):
            self.do(graphkeep.resume(steps, handle, deps=self.deps, start=Step(n)))
        failed = what == 'fail'
        self.executions = [Execution(n, deepcopy(self.state), 'error' if failed else 'created')]
        self.events = ['fork', 'replace', *(['error'] if failed else [])]
        self.status, self.output = 'failed' if failed else 'ready', None

    @precondition(lambda self: len(self.events) % 4 == 3)
    @rule(data=st.data())
    def fork_in_the_middle(self, data: st.DataObject) -> None:
        """And leave the fork alone: nothing of it may reach the run."""
        self.number += 1
        at = data.draw(st.integers(0, len(self.events) - 1))
        fork = self.do(self.store.fork(self.run_id, new_run_id=f'run {self.number}', at=at))
        assert (fork.status, fork.parent_seq) == ('ready', at)

    # --- what it does to the model ----------------------------------------------------------------

    def _edited(self, n: int, state: Account) -> None:
        pending = self.executions[-1]
        if (pending.n, self.state) != (n, state):
            self.events.append('edit')
            self.state = deepcopy(state)
            pending.n, pending.state = n, deepcopy(state)

    def _run(self, running: Any, node: Step, what: str) -> None:
        assert self.session is not None
        self.deps.append(what)
        self.ran = node
        pending, n = self.executions[-1], node.n
        errors: dict[str, type[BaseException]] = {
            'fail': BoomError,
            'cancel': asyncio.CancelledError,
            'nonsense': GraphRuntimeError,
        }
        if what in errors:
            with pytest.raises(errors[what]):
                self.do(running)
            self.begun = True
            self.status = 'failed' if what == 'fail' else 'ready'
            if what == 'fail':
                self.events.append('error')
                pending.status = 'error'
            else:
                pending.status = 'created'
            return
        self.do(running)
        self.begun = False
        self.state = deepcopy(self.session.state)
        pending.status = 'success'
        if what == 'end':
            self.status, self.output = 'done', self.state.total
            self.events.append('end')
            return
        self.status = 'ready'
        self.events.append('step')
        self.executions.append(Execution(n + 1, deepcopy(self.state)))

    # --- what has to hold -------------------------------------------------------------------------

    @invariant()
    def the_database_holds_the_model(self) -> None:
        run = self.do(self.store.run(self.run_id))
        # A claim of ours that is idle shows as running.
        assert run.status == self.status or (run.status, self.status) == ('running', 'ready')
        assert (run.error is None) == (self.status != 'failed')
        snapshots = self.do(self.store.snapshots(self.run_id))
        assert [each.event for each in snapshots] == self.events
        assert [each.seq for each in snapshots] == list(range(len(self.events)))

    @invariant()
    def the_history_is_the_models(self) -> None:
        handle = self.store.persistence(self.run_id)
        handle.set_graph_types(steps)
        history: Any = self.do(handle.load_all())
        end = ['end'] if self.output is not None else []
        assert nodes(history) == [f'Step {each.status}' for each in self.executions] + end
        for found, each in zip(history, self.executions, strict=False):
            assert (found.node.n, found.state) == (each.n, each.state)
        if self.output is not None:
            assert (history[-1].node, history[-1].state) == (End(self.output), self.state)


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
