"""What follows the end of a step: edges, transforms, forks, decisions and joins, up to the next
steps.

Pure but for the graph's own synchronous code. A walk belongs to one settlement of a frontier: what
it raises belongs to the step that ended, and `Frontier.undo` takes back what the walk had done.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any, Literal, cast, get_args, get_origin

from pydantic_graph import BaseNode, End
from pydantic_graph.decision import Decision
from pydantic_graph.join import Join, JoinNode, JoinState
from pydantic_graph.node import EndNode, Fork
from pydantic_graph.paths import DestinationMarker, LabelMarker, Path, TransformMarker
from pydantic_graph.step import NodeStep, Step, StepNode
from pydantic_graph.util import unpack_type_expression
from typing_extensions import TypeIs

from ..tasks import ForkItem, Forks, Task
from .contexts import GetState, reducer_context, step_context
from .frontier import Buffer, Frontier, JoinKey
from .plan import Plan

__all__ = ('Walk', 'is_stream')


class _Ended(BaseException):
    """The walk has reached the end of the graph: nothing after it counts."""


def is_stream(value: object) -> TypeIs[AsyncIterable[Any]]:
    """Whether a value is an async iterable. Every step's is looked at: few get to ask the ABC."""
    return hasattr(value, '__aiter__') and isinstance(value, AsyncIterable)


class Walk:
    """One walk, from the output of a step to what is pending then."""

    def __init__(
        self, plan: Plan, frontier: Frontier, get_state: GetState, deps: Any, *, born: int
    ) -> None:
        self._plan = plan
        self._frontier = frontier
        self._get_state = get_state
        self._deps = deps
        self._born = born
        self.added: list[Task] = []
        """The tasks that were made, in the order upstream would make them."""
        self.cancelled: list[Task] = []
        """The tasks that a reducer has cancelled."""
        self.output: bytes | None = None
        """The output as JSON, when the graph has ended."""
        self.end: Any = None
        """The output itself."""

    @property
    def next_task(self) -> int:
        """The number that the next task would have."""
        return self._frontier.next_task

    def follow(self, node_id: str, output: Any, forks: Forks) -> None:
        """Go on from the end of a step (or from the start) with its output, then fire joins."""
        node = self._plan.nodes[node_id]
        try:
            if isinstance(node, NodeStep):
                self._hand_over(output, forks)
            else:
                self._leave(node_id, output, forks)
            self.fire()
        except _Ended:
            pass

    def follow_item(self, task_id: str, fork: Fork[Any, Any], branch: int, item: Any) -> None:
        """Go on with one item of a stream, on a branch of the map behind it."""
        try:
            task = self._open_stream(task_id, fork)
            task.sent = branch + 1
            self._leave(fork.id, item, (*task.forks, ForkItem(fork.id, task.run_of_map, branch)))
            self.fire()
        except _Ended:
            pass

    def end_stream(self, task_id: str, fork: Fork[Any, Any]) -> None:
        """The last item of a stream has been sent on."""
        try:
            self._open_stream(task_id, fork)
            self._frontier.remove_task(task_id)
            self.fire()
        except _Ended:
            pass

    def _open_stream(self, task_id: str, fork: Fork[Any, Any]) -> Task:
        task = self._frontier.touch_task(task_id)
        if task.stream_run is None:
            task = self._frontier.begin_stream(task_id, self._frontier.new_fork_run())
            self._open_map(fork, task.run_of_map, task.forks)
        return task

    def _open_map(self, fork: Fork[Any, Any], run: str, forks: Forks) -> None:
        """A map begins: its join fires even if nothing ever comes."""
        if fork.downstream_join_id is not None:
            child = (*forks, ForkItem(fork.id, run, 0))
            key, behind = self._frontier.place(fork.downstream_join_id, child)
            self._buffer(key, behind)

    def fire(self) -> None:
        """Let every join go on whose fork run is complete."""
        for key in self._frontier.complete():
            buffer = self._frontier.close_buffer(key)
            self._load(buffer)
            self._leave(buffer.join, buffer.current, buffer.forks)

    # --- nodes ------------------------------------------------------------------------------------

    def _leave(self, node_id: str, value: Any, forks: Forks) -> None:
        """Go along the one edge behind a step, a join or a branch."""
        (path,) = self._plan.edges[node_id]
        self._along(path, value, forks)

    def _along(self, path: Path, value: Any, forks: Forks) -> None:
        for item in path.items:
            if isinstance(item, TransformMarker):
                value = item.transform(step_context(self._get_state, self._deps, value))
            elif isinstance(item, DestinationMarker):
                self._arrive(item.destination_id, value, forks)
                return
            elif not isinstance(item, LabelMarker):
                raise TypeError(f'unexpected {item!r} in a built graph')

    def _arrive(self, node_id: str, value: Any, forks: Forks) -> None:
        node = self._plan.nodes[node_id]
        if isinstance(node, Step):
            self._add(node_id, value, forks)
        elif isinstance(node, Join):
            self._join(node_id, value, forks)
        elif isinstance(node, Decision):
            self._decide(cast('Decision[Any, Any, Any]', node), value, forks)
        elif isinstance(node, Fork):
            self._fork(cast('Fork[Any, Any]', node), value, forks)
        elif isinstance(node, EndNode):
            self._finish(value)
        else:
            raise TypeError(f'node {node_id!r} cannot be gone to: {node!r}')

    def _add(self, node_id: str, value: Any, forks: Forks) -> None:
        inputs = self._plan.step(node_id).encode(value)
        task = self._frontier.add_task(
            node_id,
            inputs,
            forks,
            born=self._born,
            fingerprint=self._plan.forks_fingerprint(forks),
        )
        self.added.append(task)

    def _finish(self, value: Any) -> None:
        self.output = self._plan.encode_output(value)
        self.end = value
        raise _Ended

    def _hand_over(self, node: Any, forks: Forks) -> None:
        """What a `BaseNode` step returned is the next node itself."""
        if isinstance(node, StepNode):
            following = cast('StepNode[Any, Any]', node)
            self._add(following.step.id, following.inputs, forks)
        elif isinstance(node, JoinNode):
            joining = cast('JoinNode[Any, Any]', node)
            self._join(joining.join.id, joining.inputs, forks)
        elif isinstance(node, BaseNode):
            self._add(cast('BaseNode[Any, Any, Any]', node).get_node_id(), node, forks)
        elif isinstance(node, End):
            self._finish(cast('End[Any]', node).data)
        else:
            raise TypeError(f'a node must return a node or End, got {node!r}')

    def _decide(self, decision: Decision[Any, Any, Any], value: Any, forks: Forks) -> None:
        for branch in decision.branches:
            if _matches(branch, value):
                self._along(branch.path, value, forks)
                return
        # Upstream's words: what it raises is what its users look for.
        raise RuntimeError(f'No branch matched inputs {value} for decision node {decision}.')

    def _fork(self, fork: Fork[Any, Any], value: Any, forks: Forks) -> None:
        run = self._frontier.new_fork_run()
        paths = self._plan.edges[fork.id]
        if not fork.is_map:
            for branch, path in enumerate(paths):
                self._along(path, value, (*forks, ForkItem(fork.id, run, branch)))
            return
        if is_stream(value):
            raise self._plan.misplaced_stream(fork.id)
        if not isinstance(value, Iterable):
            raise RuntimeError(f'Cannot map non-iterable value: {value!r}')
        self._open_map(fork, run, forks)
        for branch, item in enumerate(cast('Iterable[Any]', value)):
            self._along(paths[0], item, (*forks, ForkItem(fork.id, run, branch)))

    # --- joins ------------------------------------------------------------------------------------

    def _buffer(self, key: JoinKey, behind: Forks) -> Buffer:
        buffer = self._frontier.open_buffer(key, behind)
        self._load(buffer)
        return buffer

    def _join(self, join_id: str, value: Any, forks: Forks) -> None:
        plan = self._plan.join(join_id)
        key, behind = self._frontier.place(join_id, forks)
        buffer = self._buffer(key, behind)
        item = plan.encode_item(value)
        if plan.plain:
            # Reduced is what a resumed run would reduce: the item as it is stored.
            buffer.items.append(item)
            buffer.current = plan.reduce(buffer.current, plan.decode_item(item))
            return
        state = JoinState(buffer.current, cast('Any', buffer.forks), buffer.cancelled)
        context = reducer_context(self._get_state, self._deps, state)
        buffer.current = plan.join.reduce(context, buffer.current, plan.decode_item(item))
        buffer.accumulator = plan.encode_accumulator(buffer.current)
        buffer.current = plan.decode_accumulator(buffer.accumulator)
        if state.cancelled_sibling_tasks:
            buffer.cancelled = True
            self._cancel_siblings(key)

    def _cancel_siblings(self, key: JoinKey) -> None:
        tasks, buffers = self._frontier.siblings(*key)
        made = {task.id for task in self.added}
        for task_id in tasks:
            task = self._frontier.remove_task(task_id)
            if task_id not in made:
                self.cancelled.append(task)
        self.added = [task for task in self.added if task.id in self._frontier.tasks]
        for other in buffers:
            self._frontier.close_buffer(other)

    def _load(self, buffer: Buffer) -> None:
        """Make `current` from what is stored."""
        if buffer.loaded:
            return
        plan = self._plan.join(buffer.join)
        if buffer.accumulator is not None:
            buffer.current = plan.decode_accumulator(buffer.accumulator)
        else:
            buffer.current = plan.join.initial_factory()
            for item in buffer.items:
                buffer.current = plan.reduce(buffer.current, plan.decode_item(item))
        buffer.loaded = True


def _matches(branch: Any, value: Any) -> bool:
    """As upstream decides, 1.107 too: `Literal[True]` matches bools only, `Literal[1]` none."""
    if branch.matches is not None:
        return bool(branch.matches(value))
    source: Any = unpack_type_expression(branch.source)
    if source is Any or source is object:
        return True
    if get_origin(source) is Literal:
        return any(
            value == choice and isinstance(value, bool) == isinstance(choice, bool)
            for choice in get_args(source)
        )
    return isinstance(value, source)
