"""The state and end types of a graph of `BaseNode` classes, found through shared base classes."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, cast

import typing_extensions
from pydantic_graph import BaseNode

__all__ = ('UNSET', 'Unset', 'infer_types')


class Unset(Enum):
    """The class of `UNSET`."""

    UNSET = 'unset'


UNSET: Final = Unset.UNSET
"""Says that a type was not given: `None` is a type."""


def infer_types(
    nodes: Iterable[Any],
    *,
    state_type: Any = UNSET,
    end_type: Any = UNSET,
    namespace: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """The state type and the run end type of a classic graph.

    Upstream's `Graph.inferred_types` looks at bases that are `BaseNode[…]` themselves, and at
    nothing behind them. Here type variables are followed through every base class.

    Args:
        nodes: Node classes, or generic aliases of them, in the order of the graph.
        state_type: What the graph was given as its state type, if anything.
        end_type: What the graph was given as its run end type, if anything.
        namespace: Local names that forward references may use.

    Returns:
        State type: the first one a node names. End type: that of all nodes that end the run, a
        union if they differ. `Any` where nodes say no more than `Any` or a type variable, `None`
        where they say nothing.
    """
    ends: list[Any] = []
    vague_state = vague_end = False
    for node in nodes:
        arguments = node_arguments(node, namespace)
        if arguments and _says_nothing(arguments[0]):
            vague_state = True
        elif arguments and state_type is UNSET:
            state_type = arguments[0]
        if len(arguments) == 3:
            end = arguments[2]
            if _says_nothing(end):
                vague_end = True
            elif not _is_never(end) and end not in ends:
                ends.append(end)
    if end_type is UNSET:
        nothing = Any if vague_end else None
        end_type = cast('Any', typing.Union)[tuple(ends)] if ends else nothing
    if state_type is UNSET:
        state_type = Any if vague_state else None
    return state_type, end_type


def node_arguments(node: Any, namespace: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """The arguments that a node class gives to `BaseNode`, type variables replaced.

    Returns:
        Up to three types: state, deps, run end; empty when the class gives none.
    """
    cls = cast('type', typing.get_origin(node) or node)
    found = _arguments(cls)
    given = dict(zip(_parameters(cls), typing.get_args(node), strict=False))
    return tuple(_evaluated(_substitute(each, given), cls, namespace) for each in found)


def _arguments(cls: type) -> tuple[Any, ...]:
    for base in typing_extensions.get_original_bases(cls):
        origin, arguments = _origin(base)
        if origin is BaseNode:
            if arguments:
                return arguments
        elif isinstance(origin, type) and issubclass(origin, BaseNode):
            inner = cast('type', origin)
            given = dict(zip(_parameters(inner), arguments, strict=False))
            if found := _arguments(inner):
                return tuple(_substitute(each, given) for each in found)
    return ()


def _origin(base: Any) -> tuple[Any, tuple[Any, ...]]:
    """A base class, and what it was given; pydantic makes a class of its own for `Model[int]`."""
    made = getattr(base, '__pydantic_generic_metadata__', None)
    if typing.get_origin(base) is None and made is not None and made['origin'] is not None:
        return made['origin'], made['args']
    return typing.get_origin(base) or base, typing.get_args(base)


def _parameters(cls: type) -> tuple[Any, ...]:
    parameters = getattr(cls, '__parameters__', ())
    metadata = cast('dict[str, Any]', getattr(cls, '__pydantic_generic_metadata__', {}))
    return tuple(parameters or metadata.get('parameters', ()))


def _substitute(type_: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(type_, typing.TypeVar):
        return given.get(type_, type_)
    inner = getattr(type_, '__parameters__', ())
    if inner and not isinstance(type_, type) and any(each in given for each in inner):
        return type_[tuple(given.get(each, each) for each in inner)]
    return type_


def _evaluated(type_: Any, cls: type, namespace: Mapping[str, Any] | None) -> Any:
    """Resolve a forward reference, e.g. `BaseNode['State']`; an unknown one is left as it is."""
    if isinstance(type_, typing.ForwardRef):
        type_ = type_.__forward_arg__
    if not isinstance(type_, str):
        return type_
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    holder = type('_', (), {'__annotations__': {'it': type_}})
    try:
        return typing_extensions.get_type_hints(
            holder, module, dict(namespace or {}), include_extras=True
        )['it']
    except NameError:
        return type_


def _says_nothing(type_: Any) -> bool:
    return type_ is Any or type_ is object or isinstance(type_, typing.TypeVar)


def _is_never(type_: Any) -> bool:
    return type_ in (typing.Never, typing.NoReturn, typing_extensions.Never)
