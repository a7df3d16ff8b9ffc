"""A builder graph, bound: the codecs of its steps and joins, and what the frontier must know of
it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from pydantic_graph import BaseNode, _utils
from pydantic_graph.decision import Decision
from pydantic_graph.graph_builder import Graph
from pydantic_graph.join import Join
from pydantic_graph.node import EndNode, Fork, StartNode
from pydantic_graph.paths import DestinationMarker, Path
from pydantic_graph.step import NodeStep, Step
from pydantic_graph.util import get_callable_name, unpack_type_expression

from ..codec import Codec, NodeCodec
from ..errors import GraphkeepError, UnstorableTypeError
from ..tasks import Forks
from .contexts import GetState, node_context, step_context
from .frontier import Structure
from .merge import Merger, Rule
from .resolving import UNKNOWN, Resolver, is_async_iterable

__all__ = ('GeneratedIdWarning', 'JoinPlan', 'Plan', 'StepPlan')


class GeneratedIdWarning(UserWarning):
    """A join has no id of its own."""


class StepPlan:
    """One step: how its inputs are stored, and how it is called."""

    def __init__(
        self, step: Step[Any, Any, Any, Any], codec: Codec[Any], stream_fork: Fork[Any, Any] | None
    ) -> None:
        self.step = step
        self._codec = codec
        self.stream_fork = stream_fork
        """The map that the step's output goes to directly: there an async iterable may go."""

    def encode(self, inputs: Any) -> bytes:
        """Inputs as JSON."""
        return self._codec.text(inputs)

    def decode(self, inputs: bytes) -> Any:
        """Inputs from JSON: detached from every other object."""
        return self._codec.decode(inputs)

    def call(self, get_state: GetState, deps: Any, inputs: Any) -> Awaitable[Any]:
        """Run the step once."""
        return self.step.call(step_context(get_state, deps, inputs))


class NodeStepPlan(StepPlan):
    """A step that is a `BaseNode`: its inputs are the node."""

    def __init__(self, step: NodeStep[Any, Any], nodes: NodeCodec) -> None:
        self.step = step
        self.stream_fork = None
        self._nodes = nodes

    def encode(self, inputs: Any) -> bytes:
        """The node's fields as JSON."""
        return self._nodes.encode(inputs)[1]

    def decode(self, inputs: bytes) -> Any:
        """A new node."""
        return self._nodes.decode(self.step.id, inputs)

    def call(self, get_state: GetState, deps: Any, inputs: Any) -> Awaitable[Any]:
        """Run the node once: upstream's own call would read the state first."""
        return cast('BaseNode[Any, Any, Any]', inputs).run(node_context(get_state, deps))


class JoinPlan:
    """One join: how what arrives is stored, and how it is reduced."""

    def __init__(
        self,
        join: Join[Any, Any, Any, Any],
        items: Codec[Any],
        accumulator: Codec[Any] | None,
        fingerprint: str,
    ) -> None:
        self.join = join
        self._items = items
        self._accumulator = accumulator
        self.fingerprint = fingerprint
        """Changes when the join is another one: another reducer, fork, or other neighbours."""

    @property
    def plain(self) -> bool:
        """Whether the reducer takes two arguments: then it can be repeated from the stored
        items.
        """
        return self._accumulator is None

    def encode_item(self, item: Any) -> bytes:
        """An item as JSON."""
        return self._items.text(item)

    def decode_item(self, item: bytes) -> Any:
        """An item from JSON."""
        return self._items.decode(item)

    def reduce(self, current: Any, item: Any) -> Any:
        """Reduce one item, with a reducer of two arguments."""
        return cast('Callable[[Any, Any], Any]', self.join.reducer)(current, item)

    def encode_accumulator(self, current: Any) -> bytes:
        """What a reducer with a context has made, as JSON."""
        return cast('Codec[Any]', self._accumulator).text(current)

    def decode_accumulator(self, current: bytes) -> Any:
        """What a reducer with a context had made."""
        return cast('Codec[Any]', self._accumulator).decode(current)


class Plan:
    """A graph and everything that is known of it before it runs."""

    def __init__(
        self,
        graph: Graph[Any, Any, Any, Any],
        *,
        merge: Mapping[type, Rule],
        aliases: Mapping[str, str],
        types: Mapping[str, Any],
        joins: Mapping[str, Any],
        verify: Any,
        namespace: Mapping[str, Any],
    ) -> None:
        """Bind a graph.

        Raises:
            UnstorableTypeError: A step, a join, the state or the output cannot be stored; names it.
        """
        self.graph = graph
        self.nodes = cast('Mapping[str, Any]', graph.nodes)
        """The graph's nodes by id."""
        self.edges = cast('Mapping[str, Sequence[Path]]', graph.edges_by_source)
        """The paths that leave each node."""
        self.aliases = dict(aliases)
        self._verify = verify
        self._namespace = namespace
        resolver = Resolver(graph, namespace=namespace, types=types, joins=joins)
        self._check_names(types, joins, aliases)
        state_type: Any = unpack_type_expression(cast('Any', graph.state_type))
        output_type: Any = unpack_type_expression(cast('Any', graph.output_type))
        self.state = self._codec(state_type, 'state')
        self.merger = Merger(state_type, rules=merge, path='state', namespace=namespace)
        self._output = self._codec(output_type, 'output')
        self._nodes = NodeCodec(
            {
                step.id: cast('Any', step).node_type
                for step in graph.nodes.values()
                if isinstance(step, NodeStep)
            },
            namespace=namespace,
        )
        self._neighbours = _neighbours(graph)
        self._steps: dict[str, StepPlan] = {}
        self._joins: dict[str, JoinPlan] = {}
        self._fingerprints: dict[str, frozenset[str]] = {}
        self._fork_fingerprints: dict[tuple[str, ...], str] = {}
        for node_id, node in graph.nodes.items():
            if isinstance(node, NodeStep):
                self._steps[node_id] = NodeStepPlan(cast('Any', node), self._nodes)
            elif isinstance(node, Step):
                self._steps[node_id] = self._step_plan(cast('Any', node), resolver)
            elif isinstance(node, Join):
                self._joins[node_id] = self._join_plan(cast('Any', node), resolver)
        self.structure = Structure(
            parent_fork={j: graph.get_parent_fork(cast('Any', j)).fork_id for j in self._joins},
            upstream={
                j: frozenset(graph.get_parent_fork(cast('Any', j)).intermediate_nodes) | {j}
                for j in self._joins
            },
            final=frozenset(j for j in self._joins if graph.is_final_join(cast('Any', j))),
        )

    def step(self, node_id: str) -> StepPlan:
        """The step with this id."""
        return self._steps[node_id]

    def kind(self, node_id: str) -> str:
        """What a node of the graph is, in a word."""
        node = self.nodes[node_id]
        return next((name for cls, name in _KINDS if isinstance(node, cls)), type(node).__name__)

    def has_step(self, node_id: str) -> bool:
        """Whether there is such a step."""
        return node_id in self._steps

    def join(self, node_id: str) -> JoinPlan:
        """The join with this id."""
        return self._joins[node_id]

    def fingerprints(self, node_id: str) -> frozenset[str]:
        """What a stored buffer of the join may carry: also what it was before things were
        renamed.
        """
        return self._fingerprints[node_id]

    def has_join(self, node_id: str) -> bool:
        """Whether there is such a join."""
        return node_id in self._joins

    def encode_output(self, output: Any) -> bytes:
        """The graph's output as JSON."""
        return self._output.text(output)

    def decode_output(self, output: bytes) -> Any:
        """The graph's output from JSON."""
        return self._output.decode(output)

    def span(self, step: StepPlan) -> AbstractContextManager[Any]:
        """The span of a step's run, named as upstream names it."""
        if not self.graph.auto_instrument or not _has_logfire():
            return _NO_SPAN
        node = step.step
        return _utils.logfire_span(f'run node {node.id}', node_id=node.id, node=node)

    def forks_fingerprint(self, forks: Forks) -> str | None:
        """Changes when one of the forks that a task is in is another one than it was."""
        if len(forks) < 2:
            return None
        names = tuple(item.fork for item in forks[1:])
        known = self._fork_fingerprints.get(names)
        if known is None:
            known = self._fork_fingerprints[names] = self._fork_fingerprint(names, {})
        return known

    def may_have_forks(self, fingerprint: str | None, forks: Forks) -> bool:
        """Whether a stored task's forks are those of this graph, also under names they had
        before.
        """
        names = tuple(item.fork for item in forks[1:])
        if any(not isinstance(self.nodes.get(n), Fork) for n in names):
            return False
        renamed = {new: old for old, new in self.aliases.items()}
        return fingerprint is None or fingerprint in (
            self._fork_fingerprint(names, {}),
            self._fork_fingerprint(names, renamed),
        )

    def _fork_fingerprint(self, forks: tuple[str, ...], names: Mapping[str, str]) -> str:
        return _digest(*(f'{fork}:{self._around(fork, names)}' for fork in forks))

    def _around(self, node_id: str, names: Mapping[str, str]) -> list[list[str]]:
        """The neighbours of a node, under other names."""
        return [sorted(names.get(n, n) for n in side) for side in self._neighbours[node_id]]

    def misplaced_stream(self, node_id: str) -> GraphkeepError:
        """What is raised for an async iterable that cannot be kept."""
        return UnstorableTypeError(
            f'{node_id!r} passes on an async iterable, which cannot be stored. {_STREAMS}',
            path=node_id,
        )

    # --- binding ----------------------------------------------------------------------------------

    def _codec(self, type_: Any, path: str) -> Codec[Any]:
        return Codec[Any](type_, path=path, namespace=self._namespace, verify=self._verify)

    def _step_plan(self, step: Step[Any, Any, Any, Any], resolver: Resolver) -> StepPlan:
        type_ = resolver.inputs(step)
        if is_async_iterable(type_):
            raise UnstorableTypeError(
                f'Step {step.id!r} gets an async iterable, which cannot be stored. {_STREAMS}',
                path=step.id,
            )
        try:
            codec = self._codec(type_, f'{step.id}.inputs')
        except UnstorableTypeError as e:
            raise UnstorableTypeError(
                f'The inputs of step {step.id!r} cannot be stored: {e} Or give the type to store '
                f'with '
                f'persist(types={{{step.id!r}: …}}).',
                path=e.path,
            ) from e
        return StepPlan(step, codec, self._stream_fork(step))

    def _stream_fork(self, step: Step[Any, Any, Any, Any]) -> Fork[Any, Any] | None:
        paths = self.edges.get(step.id, ())
        if len(paths) == 1 and paths[0].items:
            item = next((i for i in paths[0].items if not _is_label(i)), None)
            if isinstance(item, DestinationMarker):
                node: Any = self.nodes[item.destination_id]
                if isinstance(node, Fork) and cast('Fork[Any, Any]', node).is_map:
                    return cast('Fork[Any, Any]', node)
        return None

    def _join_plan(self, join: Join[Any, Any, Any, Any], resolver: Resolver) -> JoinPlan:
        self._warn_of_generated_id(join)
        items = self._codec(resolver.items(join), f'{join.id}.items')
        accumulator = None
        if len(inspect.signature(join.reducer).parameters) != 2:
            type_ = resolver.accumulator(join)
            accumulator = self._codec(Any if type_ is UNKNOWN else type_, f'{join.id}.accumulator')
        parent = self.graph.get_parent_fork(join.id).fork_id
        fingerprint = self._join_fingerprint(join, parent, {})
        renamed = {new: old for old, new in self.aliases.items()}
        self._fingerprints[join.id] = frozenset(
            (fingerprint, self._join_fingerprint(join, parent, renamed))
        )
        return JoinPlan(join, items, accumulator, fingerprint)

    def _join_fingerprint(
        self, join: Join[Any, Any, Any, Any], parent: str, names: Mapping[str, str]
    ) -> str:
        reducer = getattr(join.reducer, '__qualname__', type(join.reducer).__qualname__)
        return _digest(reducer, names.get(parent, parent), str(self._around(join.id, names)))

    def _warn_of_generated_id(self, join: Join[Any, Any, Any, Any]) -> None:
        generated = get_callable_name(join.reducer)
        if re.fullmatch(rf'{re.escape(generated)}(_\d+)?', join.id):
            warnings.warn(
                f'Join {join.id!r} has a generated id, which moves to another join when one is '
                f'added; '
                'runs that are pending can then not go on. Name it: g.join(…, node_id=…).',
                GeneratedIdWarning,
                stacklevel=5,
            )

    def _check_names(
        self, types: Mapping[str, Any], joins: Mapping[str, Any], aliases: Mapping[str, str]
    ) -> None:
        for what, given, kind in (('types', types, Step), ('joins', joins, Join)):
            for name in given:
                if not isinstance(self.nodes.get(name), kind):
                    raise ValueError(f'persist({what}=…) names {name!r}, which is not in the graph')
        for old, new in aliases.items():
            if new not in self.nodes:
                raise ValueError(
                    f'persist(aliases=…) maps {old!r} to {new!r}, which is not in the graph'
                )
            kind = self.kind(new)
            if kind in ('start', 'end'):
                raise ValueError(
                    f'persist(aliases=…) maps {old!r} to {new!r}, the {kind} of the graph, where '
                    'nothing waits. Give the new name of the step or join.'
                )
            if old in self.nodes and self.kind(old) != kind:
                raise ValueError(
                    f'persist(aliases=…) maps {old!r}, a {self.kind(old)}, to {new!r}, a {kind}: '
                    'what waits at one cannot wait at the other. Give the old and the new name of '
                    'the same step or join.'
                )


_KINDS: tuple[tuple[type[Any], str], ...] = (
    (Step, 'step'),
    (Join, 'join'),
    (Fork, 'fork'),
    (Decision, 'decision'),
    (StartNode, 'start'),
    (EndNode, 'end'),
)


_STREAMS = (
    'A stream may go only straight from its step to a map: g.edge_from(stream).map().to(…), '
    'without a transform, a decision or a broadcast between. Return a list otherwise.'
)


_NO_SPAN = nullcontext()


def _has_logfire() -> bool:
    """Whether a span could be seen: without logfire, upstream's does nothing, in 8 µs."""
    return type(getattr(_utils, '_logfire', None)).__module__ != 'logfire_api'


def _is_label(item: object) -> bool:
    return type(item).__name__ == 'LabelMarker'


def _digest(*parts: str) -> str:
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:12]


def _neighbours(graph: Graph[Any, Any, Any, Any]) -> dict[str, tuple[list[str], list[str]]]:
    """For each node: the nodes before and after it, sorted."""
    before: dict[str, set[str]] = {}
    after: dict[str, set[str]] = {}

    def add(source: str, path: Path) -> None:
        for item in path.items:
            if isinstance(item, DestinationMarker):
                before.setdefault(item.destination_id, set()).add(source)
                after.setdefault(source, set()).add(item.destination_id)

    for source, paths in graph.edges_by_source.items():
        for path in paths:
            add(source, path)
    for node_id, node in graph.nodes.items():
        if isinstance(node, Decision):
            for branch in cast('Any', node).branches:
                add(node_id, branch.path)
    return {
        node: (sorted(before.get(node, ())), sorted(after.get(node, ()))) for node in graph.nodes
    }
