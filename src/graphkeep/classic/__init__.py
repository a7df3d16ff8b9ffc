"""The front end for pydantic-graph 1.x: `StatePersistence`, a `BaseStatePersistence` that survives.

A step can be followed in four hops: `StatePersistence.snapshot_node` → `Journal.commit` →
`Store.append` → the statement `append` of the database.
"""

from __future__ import annotations

from .persistence import StatePersistence
from .resume import resume

__all__ = ('StatePersistence', 'resume')
