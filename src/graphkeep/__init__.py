"""graphkeep keeps pydantic-graph runs: every step is committed to SQLite, Postgres or Redis."""

from __future__ import annotations

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
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    StoreWriteError,
    UnstorableTypeError,
)
from .resuming import Recovered, recover, resume
from .runs import Run, Snapshot
from .store import Store
from .urls import open_store

__all__ = (
    'AppendOnly',
    'CodecError',
    'DamagedRunError',
    'FormatVersionError',
    'GraphChangedError',
    'GraphkeepError',
    'LeaseLostError',
    'LossyStateError',
    'MissingDriverError',
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
    'Store',
    'StoreClosedError',
    'StoreError',
    'StoreUnavailableError',
    'StoreWriteError',
    'UnstorableTypeError',
    'open_store',
    'recover',
    'resume',
)

__version__ = '0.1.0'
