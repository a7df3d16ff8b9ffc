"""The handle of one run in one store: what is passed as `persistence=`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from .runs import check_labels, check_name, check_run_id

if TYPE_CHECKING:
    from .store import Store

__all__ = ('Handle', 'IfExists', 'Verify', 'check_handle', 'check_verify')

IfExists = Literal['raise', 'resume']
Verify = Literal['changed', 'always']


class Handle:
    """One run in one store. Made by `store.persistence(run_id)`; nothing is read or written for it.

    Beside pydantic-graph 1.x it is a `StatePersistence`, which upstream's own graphs take as well.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        if_exists: IfExists = 'raise',
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        verify: Verify = 'changed',
    ) -> None:
        """Make a handle.

        Args:
            store: Where the run is kept.
            run_id: The name of the run, 1 to 512 bytes of UTF-8.
            if_exists: What `PersistentGraph.run` does with a run that was started before.
            graph: The name the graph is recorded under; its own name if omitted.
            labels: Your own labels of a run that is started with this handle.
            verify: For graphs of pydantic-graph 1.x: `always` loads everything back at every step
                before it is written, instead of only what its type may lose.

        Raises:
            ValueError: `run_id`, `graph` or a label cannot be stored; `if_exists` or `verify` is
                none of the two.
        """
        check_run_id(run_id)
        check_name(graph, 'graph')
        if if_exists not in ('raise', 'resume'):
            raise ValueError(f"if_exists must be 'raise' or 'resume', got {if_exists!r}")
        check_verify(verify)
        self.store = store
        self.run_id = run_id
        self.if_exists: IfExists = if_exists
        self.graph_name = graph
        self.labels = check_labels(labels)
        self.verify: Verify = verify

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of run {self.run_id!r} in {self.store!r}>'


def check_verify(verify: object) -> None:
    """Refuse what is no `Verify`. Raises `ValueError`."""
    if verify not in ('changed', 'always'):
        raise ValueError(f"verify must be 'changed' or 'always', got {verify!r}")


def check_handle(persistence: object) -> None:
    """Refuse what is no run's handle.

    Raises:
        TypeError: Says what it was given, and what to do.
    """
    if isinstance(persistence, Handle):
        return
    got, call = f'{persistence!r:.80} ({type(persistence).__name__})', 'store.persistence(run_id)'
    if isinstance(persistence, str):
        call = f'store.persistence({persistence!r:.80})'
    elif callable(getattr(persistence, 'persistence', None)):
        got = f'{persistence!r:.80}, a store, which does not say which run'
    raise TypeError(f'persistence must be the handle of a run, {call}; got {got}')
