"""graphkeep keeps pydantic-graph runs: every step is committed to SQLite, Postgres or Redis."""

from __future__ import annotations

from .builder import GeneratedIdWarning, PersistentGraph, merge, persist
from .codec import AppendOnly
from .errors import (
    CodecError,
    DamagedRunError,
    FormatVersionError,
    GraphChangedError,
    GraphkeepError,
    LeaseLostError,
    LossyStateError,
    MissingDriverError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunMovedError,
    RunNotFoundError,
    RunStatusError,
    SchemaError,
    StateConflictError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    StoreWriteError,
    UnstorableTypeError,
)
from .resuming import Recovered, recover, resume
from .runs import Run, Snapshot
from .scope import CurrentTask, current_task, once
from .store import Store
from .urls import open_store

__all__ = (
    'AppendOnly',
    'CodecError',
    'CurrentTask',
    'DamagedRunError',
    'FormatVersionError',
    'GeneratedIdWarning',
    'GraphChangedError',
    'GraphkeepError',
    'LeaseLostError',
    'LossyStateError',
    'MissingDriverError',
    'PersistentGraph',
    'Recovered',
    'Run',
    'RunBusyError',
    'RunError',
    'RunExistsError',
    'RunMovedError',
    'RunNotFoundError',
    'RunStatusError',
    'SchemaError',
    'Snapshot',
    'StateConflictError',
    'Store',
    'StoreClosedError',
    'StoreError',
    'StoreUnavailableError',
    'StoreWriteError',
    'UnstorableTypeError',
    'current_task',
    'merge',
    'once',
    'open_store',
    'persist',
    'recover',
    'resume',
)

__version__ = '0.1.0'
