"""The types of what a builder graph passes around, from its annotations. Pure.

Of `StepContext[State, Deps, Inputs]` only the third argument is evaluated: the names of state and
deps often do not resolve, and are not needed. What is `Any`, `object` or a type variable is taken
from the return types along the incoming paths.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union, cast, get_args, get_origin

from pydantic_graph import BaseNode
from pydantic_graph.decision import Decision
from pydantic_graph.graph_builder import Graph
from pydantic_graph.join import Join
from pydantic_graph.node import EndNode, Fork, StartNode
from pydantic_graph.paths import DestinationMarker, Path, TransformMarker
from pydantic_graph.step import NodeStep, Step
from pydantic_graph.util import unpack_type_expression

from ..errors import UnstorableTypeError

__all__ = ('UNKNOWN', 'Resolver', 'is_async_iterable', 'union_of')

UNKNOWN: Any = typing.TypeVar('UNKNOWN')
"""Stands for a type that nothing says."""


class Resolver:
    """Answers which types a graph's steps and joins take."""

    def __init__(
        self,
        graph: Graph[Any, Any, Any, Any],
        *,
        namespace: Mapping[str, Any],
        types: Mapping[str, Any],
        joins: Mapping[str, Any],
    ) -> None:
        self._graph = graph
        self._namespace = namespace
        self._types = types
        self._joins = joins
        self._sources = _paths_by_destination(graph)
        self._open: set[str] = set()

    # --- steps ------------------------------------------------------------------------------------

    def inputs(self, step: Step[Any, Any, Any, Any]) -> Any:
        """The type of a step's inputs.

        Raises:
            UnstorableTypeError: Nothing says it, or what says it cannot be resolved; says what to
                do.
        """
        if step.id in self._types:
            return self._types[step.id]
        function = function_of(step)
        annotation = _first_annotation(function)
        declared = UNKNOWN
        if annotation is not inspect.Parameter.empty:
            declared = self._inputs_of(step.id, function, annotation)
        if not _says_nothing(declared):
            return declared
        arriving = self.arriving(step.id)
        if not _says_nothing(arriving):
            return arriving
        if annotation is inspect.Parameter.empty:
            raise UnstorableTypeError(
                f'Step {step.id!r} does not say what its inputs are, and neither do the steps '
                f'before '
                f'it. Annotate it: `async def {step.id}(ctx: StepContext[State, Deps, Inputs])`, '
                f'or '
                f'give persist(types={{{step.id!r}: Inputs}}).',
                path=step.id,
            )
        return Any

    def _inputs_of(self, step_id: str, function: Callable[..., Any], annotation: Any) -> Any:
        if isinstance(annotation, str):
            annotation = _third_argument(annotation) or annotation
            try:
                found = self._evaluate(annotation, function)
            except Exception as e:
                shown = annotation.removeprefix(_THIRD)
                raise UnstorableTypeError(
                    f'The inputs of step {step_id!r} are annotated `{shown}`, which cannot be '
                    f'resolved: {e}. Import the name where persist() is called, give '
                    f'persist(namespace={{…}}), or persist(types={{{step_id!r}: Inputs}}).',
                    path=step_id,
                ) from e
            if isinstance(found, _Third):
                return found.type
            annotation = found
        arguments = get_args(annotation)
        return arguments[2] if len(arguments) == 3 else UNKNOWN

    def output(self, step: Step[Any, Any, Any, Any]) -> Any:
        """The declared type of a step's output, or `UNKNOWN`."""
        return self._returned(function_of(step))

    def _returned(self, function: Any) -> Any:
        annotation = getattr(function, '__annotations__', {}).get('return', UNKNOWN)
        if isinstance(annotation, str):
            try:
                annotation = self._evaluate(annotation, function)
            except Exception:  # noqa: BLE001 - only asked for what others do not say
                return UNKNOWN
        return UNKNOWN if _says_nothing(annotation) else annotation

    # --- joins ------------------------------------------------------------------------------------

    def items(self, join: Join[Any, Any, Any, Any]) -> Any:
        """The type of what arrives at a join; `Any` if nothing says it."""
        arriving = self.arriving(join.id)
        return Any if _says_nothing(arriving) else arriving

    def accumulator(self, join: Join[Any, Any, Any, Any]) -> Any:
        """The type of what a join's reducer makes; `UNKNOWN` if nothing says it."""
        if join.id in self._joins:
            return self._joins[join.id]
        for path in self._graph.edges_by_source.get(join.id, []):
            after = path.items[0] if path.items else None
            if isinstance(after, DestinationMarker):
                destination: Any = self._graph.nodes[after.destination_id]
                wanted = UNKNOWN
                if isinstance(destination, Step) and not isinstance(destination, NodeStep):
                    wanted = self._declared_inputs(cast('Any', destination))
                elif isinstance(destination, EndNode):
                    wanted = unpack_type_expression(cast('Any', self._graph.output_type))
                if not _says_nothing(wanted) and wanted is not type(None):
                    return wanted
        factory: Any = join.initial_factory
        if get_args(factory):
            return factory
        returned = self._returned(join.reducer)
        if not _says_nothing(returned) and not _has_variables(returned):
            return returned
        initial = factory()
        if isinstance(initial, (bool, int, float, str)):
            return type(initial)
        return UNKNOWN

    def _declared_inputs(self, step: Step[Any, Any, Any, Any]) -> Any:
        if step.id in self._types:
            return self._types[step.id]
        function = function_of(step)
        annotation = _first_annotation(function)
        if annotation is inspect.Parameter.empty:
            return UNKNOWN
        return self._inputs_of(step.id, function, annotation)

    # --- along the paths --------------------------------------------------------------------------

    def arriving(self, node_id: str) -> Any:
        """The union of what the paths to a node bring, or `UNKNOWN` if one of them does not say."""
        if node_id in self._open:
            return _LOOP  # the other paths say it
        self._open.add(node_id)
        try:
            found = [self._along(*each) for each in self._sources.get(node_id, ())]
        finally:
            self._open.discard(node_id)
        found = [each for each in found if each is not _LOOP]
        if not found or any(_says_nothing(each) for each in found):
            return UNKNOWN
        return union_of(found)

    def _along(self, source: str, path: Path, declared: Any) -> Any:
        """What comes out of a path."""
        value = declared if declared is not UNKNOWN else self._leaving(source)
        for item in path.items:
            if isinstance(item, TransformMarker):
                value = self._returned(item.transform)
        return value

    def _leaving(self, node_id: str) -> Any:
        node: Any = self._graph.nodes[cast('Any', node_id)]
        if isinstance(node, StartNode):
            return unpack_type_expression(cast('Any', self._graph.input_type))
        if isinstance(node, NodeStep):
            return UNKNOWN  # it hands over nodes, not values
        if isinstance(node, Step):
            return self.output(cast('Any', node))
        if isinstance(node, Join):
            return self.accumulator(cast('Any', node))
        if node_id in self._open:
            return _LOOP
        arriving = self.arriving(node_id)
        if isinstance(node, Fork) and cast('Fork[Any, Any]', node).is_map:
            return _element(arriving)
        return arriving

    def _evaluate(self, text: str, function: Any) -> Any:
        inner = inspect.unwrap(function)
        while isinstance(inner, functools.partial):
            inner = cast('functools.partial[Any]', inner).func
        names: dict[str, Any] = dict(self._namespace)
        scope = getattr(inner, '__globals__', {})
        if getattr(inner, '__closure__', None):
            names.update(inspect.getclosurevars(inner).nonlocals)
        third = text.startswith(_THIRD)
        found = eval(text.removeprefix(_THIRD), {**scope, **names})  # noqa: S307 - the user's own annotation
        return _Third(found) if third else found


class _Third:
    def __init__(self, found: Any) -> None:
        self.type = found


class _Loop:
    """A path that leads back to where it was asked from."""


_LOOP: Any = _Loop
_THIRD = '\0'


def union_of(types: Sequence[Any]) -> Any:
    """The union of some types."""
    distinct: list[Any] = []
    for each in types:
        each = type(None) if each is None else each
        if each not in distinct:
            distinct.append(each)
    if len(distinct) == 1:
        return distinct[0]
    return Union[tuple(distinct)]  # noqa: UP007 - of types that are only known at run time


def is_async_iterable(type_: Any) -> bool:
    """Whether values of a type must be read with `async for`."""
    origin = get_origin(type_) or type_
    return isinstance(origin, type) and issubclass(origin, collections.abc.AsyncIterable)


def function_of(step: Step[Any, Any, Any, Any]) -> Any:
    """The function a step was made of: `GraphBuilder.stream` hides its own in a closure."""
    call: Any = step.call
    if getattr(call, '__qualname__', '') == 'GraphBuilder.stream.<locals>.wrapper':
        return inspect.getclosurevars(call).nonlocals['call']
    if not hasattr(call, '__annotations__') and callable(call):
        return cast('Any', type(call)).__call__
    return call


def _first_annotation(function: Any) -> Any:
    """The annotation of the context parameter, unevaluated."""
    try:
        parameters = list(inspect.signature(function, eval_str=False).parameters.values())
    except (TypeError, ValueError):
        return inspect.Parameter.empty
    if parameters and parameters[0].name == 'self':
        parameters = parameters[1:]
    return parameters[0].annotation if parameters else inspect.Parameter.empty


def _third_argument(annotation: str) -> str | None:
    """The third argument of `StepContext[…]` in an annotation, as text."""
    try:
        tree = ast.parse(annotation.strip(), mode='eval').body
    except SyntaxError:
        return None
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return _third_argument(tree.value)
    arguments: list[ast.expr] = []
    if isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Tuple):
        arguments = tree.slice.elts
    return _THIRD + ast.unparse(arguments[2]) if len(arguments) == 3 else None


def _says_nothing(type_: Any) -> bool:
    if type_ is Any or type_ is object or isinstance(type_, typing.TypeVar):
        return True
    # "Some node": what comes of it is a node of the graph, and is stored as one.
    return (get_origin(type_) or type_) is BaseNode


def _has_variables(type_: Any) -> bool:
    return isinstance(type_, typing.TypeVar) or bool(getattr(type_, '__parameters__', ()))


_ITERABLES = (
    collections.abc.Iterable,
    collections.abc.AsyncIterable,
)


def _element(type_: Any) -> Any:
    """What a map makes of a type: one of its elements."""
    origin = get_origin(type_) or type_
    arguments = get_args(type_)
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        found = [_element(each) for each in arguments]
        return UNKNOWN if any(_says_nothing(each) for each in found) else union_of(found)
    if origin is tuple and arguments:
        return union_of([each for each in arguments if each is not Ellipsis])
    if origin is str:
        return str
    if origin in (bytes, range):
        return int
    if isinstance(origin, type) and issubclass(origin, _ITERABLES) and arguments:
        return arguments[0]
    return UNKNOWN


def _paths_by_destination(
    graph: Graph[Any, Any, Any, Any],
) -> Mapping[str, list[tuple[str, Path, Any]]]:
    """For each node: source, path and (behind a decision) declared type of what leads to it."""
    found: dict[str, list[tuple[str, Path, Any]]] = {}

    def add(source: str, paths: Iterable[Path], declared: Any) -> None:
        for path in paths:
            for item in path.items:
                if isinstance(item, DestinationMarker):
                    found.setdefault(item.destination_id, []).append((source, path, declared))

    for source, paths in graph.edges_by_source.items():
        add(source, paths, UNKNOWN)
    for node_id, node in graph.nodes.items():
        if isinstance(node, Decision):
            for branch in cast('Any', node).branches:
                declared: Any = unpack_type_expression(branch.source)
                add(node_id, [branch.path], UNKNOWN if _says_nothing(declared) else declared)
    return found
