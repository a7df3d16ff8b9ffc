"""Upstream's contexts, with a state that is only made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_graph import GraphRunContext, ReducerContext, StepContext
from pydantic_graph.join import JoinState

__all__ = ('Contexts',)

GetState = Callable[[], Any]


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


class Contexts:
    """Makes the contexts of one step, or of one settlement."""

    __slots__ = ('_deps', '_get_state')

    def __init__(self, get_state: GetState, deps: Any) -> None:
        self._get_state = get_state
        self._deps = deps

    def step(self, inputs: Any) -> StepContext[Any, Any, Any]:
        """For a step or a transform."""
        return _LazyStepContext(self._get_state, self._deps, inputs)

    def node(self) -> GraphRunContext[Any, Any]:
        """For a `BaseNode`."""
        return _LazyRunContext(self._get_state, self._deps)

    def reducer(self, join_state: JoinState) -> ReducerContext[Any, Any]:
        """For a reducer that takes a context."""
        return _LazyReducerContext(self._get_state, self._deps, join_state)
