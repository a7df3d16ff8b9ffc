"""Upstream's contexts, with a state that is only made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_graph import GraphRunContext, ReducerContext, StepContext
from pydantic_graph.join import JoinState

__all__ = ('GetState', 'node_context', 'reducer_context', 'step_context')

GetState = Callable[[], Any]
"""Gives the state, and makes it if it must."""


class _LazyStepContext(StepContext[Any, Any, Any]):
    def __init__(self, get_state: GetState, deps: Any, inputs: Any) -> None:
        self._get_state = get_state
        self._deps = deps
        self._inputs = inputs

    @property
    def state(self) -> Any:
        return self._get_state()


class _LazyReducerContext(ReducerContext[Any, Any]):
    def __init__(self, get_state: GetState, deps: Any, join_state: JoinState) -> None:
        self._get_state = get_state
        self._deps = deps
        self._join_state = join_state

    @property
    def state(self) -> Any:
        return self._get_state()


class _LazyRunContext(GraphRunContext[Any, Any]):
    def __init__(self, get_state: GetState, deps: Any) -> None:
        self._get_state = get_state
        self.deps = deps

    @property
    def state(self) -> Any:
        return self._get_state()


def step_context(get_state: GetState, deps: Any, inputs: Any) -> StepContext[Any, Any, Any]:
    """For a step or a transform."""
    return _LazyStepContext(get_state, deps, inputs)


def node_context(get_state: GetState, deps: Any) -> GraphRunContext[Any, Any]:
    """For a `BaseNode`."""
    return _LazyRunContext(get_state, deps)


def reducer_context(
    get_state: GetState, deps: Any, join_state: JoinState
) -> ReducerContext[Any, Any]:
    """For a reducer that takes a context."""
    return _LazyReducerContext(get_state, deps, join_state)
