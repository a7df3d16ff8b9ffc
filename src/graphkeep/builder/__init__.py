"""The front end for pydantic-graph's `GraphBuilder` graphs: parallel steps, consistent snapshots.

`frontier`, `walk`, `merge`, `state` and `resolving` are pure; `executor` runs and commits;
`loading` starts and takes up; `persistent` is what users hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic_graph.graph_builder import Graph
from typing_extensions import TypeVar

from ..handle import check_verify
from ..namespaces import caller_namespace
from ..runs import check_count
from . import merge
from .graphs import check_built
from .merge import Rule
from .persistent import PersistentGraph
from .plan import GeneratedIdWarning, Plan
from .watching import KeptRun

__all__ = ('GeneratedIdWarning', 'KeptRun', 'PersistentGraph', 'merge', 'persist')

StateT = TypeVar('StateT')
DepsT = TypeVar('DepsT')
InputT = TypeVar('InputT')
OutputT = TypeVar('OutputT')


def persist(
    graph: Graph[StateT, DepsT, InputT, OutputT],
    *,
    merge: Mapping[type, Rule] | None = None,
    aliases: Mapping[str, str] | None = None,
    types: Mapping[str, Any] | None = None,
    joins: Mapping[str, Any] | None = None,
    max_parallel: int | None = None,
    verify: Literal['changed', 'always'] = 'changed',
    namespace: Mapping[str, Any] | None = None,
) -> PersistentGraph[StateT, DepsT, InputT, OutputT]:
    """Make a built graph one whose runs are kept.

    Args:
        graph: What `GraphBuilder.build()` gave.
        merge: How parallel changes to values of these classes are merged: `{int: merge.add}`. Rules
            of single fields are annotations: `Annotated[int, merge.add]`.
        aliases: Steps and joins that were renamed, `{'old': 'new'}`, for runs that are pending.
        types: The types of steps' inputs by step, where annotations do not say them.
        joins: The types of what joins make by join, where nothing says them.
        max_parallel: Most steps of a run that run at once; no limit if omitted.
        verify: `always` loads everything back before it is written, `changed` only what its type
            may lose.
        namespace: Names that annotations may use, beside those of their modules; by default also
            the local names of the code that calls `persist`.

    Raises:
        TypeError: It is no built graph, or an option is not of the kind that it must be.
        ValueError: An option names what is not in the graph.
        UnstorableTypeError: The state, the output, a step's inputs or a join cannot be stored;
            names it and says what to do.
    """
    check_built(graph)
    if max_parallel is not None:
        check_count(max_parallel, 'max_parallel')
    check_verify(verify)
    for what, given in (
        ('aliases', aliases),
        ('types', types),
        ('joins', joins),
        ('namespace', namespace),
    ):
        _check_mapping(what, given)
    names = {**caller_namespace(), **(namespace or {})}
    plan = Plan(
        graph,
        merge=merge or {},
        aliases=aliases or {},
        types=types or {},
        joins=joins or {},
        verify=verify,
        namespace=names,
    )
    return PersistentGraph(graph, plan, max_parallel=max_parallel)


def _check_mapping(what: str, given: object) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise TypeError(f"persist({what}=…) must be a mapping, {{'name': …}}, got {given!r:.80}")
    for name in cast('Mapping[object, object]', given):
        if not isinstance(name, str):
            raise TypeError(f'persist({what}=…) goes by names, as strings, got the key {name!r}')
