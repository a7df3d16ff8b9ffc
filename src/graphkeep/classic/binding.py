"""What a 1.x graph declares, as codecs: of its state, its nodes and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from pydantic_graph._utils import UNSET as GRAPH_UNSET

from ..codec import UNSET, Codec, NodeCodec, infer_types
from ..handle import Verify

if TYPE_CHECKING:
    from pydantic_graph.graph import Graph

__all__ = ('Binding', 'bind')


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """The codecs of one graph."""

    state: Codec[Any]
    nodes: NodeCodec
    end: Codec[Any]
    node_ids: frozenset[str]


_bindings: dict[tuple[int, Verify], tuple[ref[Any], Binding]] = {}
"""By identity: graphs are unhashable, and building the adapters of one costs milliseconds."""


def bind(
    graph: Graph[Any, Any, Any], *, verify: Verify, namespace: Callable[[], Mapping[str, Any]]
) -> Binding:
    """The codecs of `graph`, built at its first use.

    Args:
        graph: The graph.
        verify: `always` loads everything back at every step, `changed` only what its type may lose.
        namespace: Gives the names that annotations of the graph's types may use, beside those of
            their modules.

    Raises:
        UnstorableTypeError: The state, a node or the end cannot be stored; names the field.
    """
    key = (id(graph), verify)
    known = _bindings.get(key)
    if known is not None and known[0]() is graph:
        return known[1]
    nodes = {node.get_node_id(): node for node in graph.get_nodes()}
    names = {**{node.__name__: node for node in nodes.values()}, **namespace()}
    # Private of upstream's, and the only place where the types that were given explicitly are.
    state_given, end_given = (
        getattr(graph, '_state_type', UNSET),
        getattr(graph, '_run_end_type', UNSET),
    )
    state_type, end_type = infer_types(
        nodes.values(),
        state_type=state_given if state_given is not GRAPH_UNSET else UNSET,
        end_type=end_given if end_given is not GRAPH_UNSET else UNSET,
        namespace=names,
    )
    binding = Binding(
        state=Codec(state_type, path='state', namespace=names, verify=verify),
        nodes=NodeCodec(nodes, namespace=names),
        end=Codec(end_type, path='output', namespace=names, verify=verify),
        node_ids=frozenset(nodes),
    )
    _bindings[key] = (ref(graph, lambda _: _bindings.pop(key, None)), binding)
    return binding
