"""Which graphs can be kept and resumed, and what to do with what cannot."""

from __future__ import annotations

from typing import Any

from pydantic_graph.graph_builder import Graph, GraphBuilder

from .persistent import PersistentGraph

__all__ = ('check_built', 'check_resumable')


def check_built(graph: object) -> None:
    """Refuse what `persist` cannot make a kept graph of.

    Raises:
        TypeError: Says what it was given, and what to do.
    """
    if isinstance(graph, Graph):
        return
    if isinstance(graph, PersistentGraph):
        says = f'got {graph!r}, which is kept already: use it as it is, or persist its .graph'
    elif _is_classic(graph):
        says = (
            f'got a Graph of pydantic-graph 1.x, {_name(graph)}, which takes a handle itself: '
            'graph.run(node, persistence=store.persistence(run_id))'
        )
    elif isinstance(graph, GraphBuilder):
        says = 'got a GraphBuilder: build it first, graphkeep.persist(builder.build())'
    else:
        says = f'got {_repr(graph)}'
    raise TypeError(f'persist() takes the graph that GraphBuilder.build() gives; {says}.')


def check_resumable(graph: object, where: str) -> None:
    """Refuse what no run can go on with: neither a kept graph nor one of 1.x.

    Args:
        graph: What was given.
        where: Where it was given, for the message.

    Raises:
        TypeError: Says what it was given, and what to do.
    """
    if isinstance(graph, PersistentGraph) or _is_classic(graph):
        return
    if isinstance(graph, Graph):
        says = (
            'a GraphBuilder graph, which has no persistence of its own: give what '
            'graphkeep.persist(graph) makes of it'
        )
    elif isinstance(graph, GraphBuilder):
        says = 'a GraphBuilder: give graphkeep.persist(builder.build())'
    else:
        says = (
            f'{_repr(graph)}: give what graphkeep.persist() gave, or a Graph of pydantic-graph 1.x'
        )
    raise TypeError(f'{where} got {says}.')


def _is_classic(graph: object) -> bool:
    """Whether it is a `Graph` of 1.x. pydantic-graph 2 has no such class to import."""
    return any(
        cls.__module__ == 'pydantic_graph.graph' and cls.__name__ == 'Graph'
        for cls in type(graph).__mro__
    )


def _name(graph: Any) -> str:
    return repr(graph.name) if graph.name else '(unnamed)'


def _repr(value: object) -> str:
    return f'{value!r:.80} ({type(value).__name__})'
