"""graphkeep keeps pydantic-graph runs: every step is committed to SQLite, Postgres or Redis."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from .builder import GeneratedIdWarning, PersistentGraph, merge, persist
from .codec import AppendOnly
from .errors import (
    CodecError,
    ConversationBusyError,
    ConversationError,
    DamagedConversationError,
    DamagedRunError,
    FormatVersionError,
    GraphChangedError,
    GraphkeepError,
    InvalidAnswerError,
    LeaseLostError,
    LossyStateError,
    MissingDriverError,
    RequestClosedError,
    RequestError,
    RequestNotFoundError,
    RequestTimeoutError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunMovedError,
    RunNotFoundError,
    RunPausedError,
    RunStatusError,
    SchemaError,
    StateConflictError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    StoreWriteError,
    UnfinishedRunError,
    UnreadableMessageError,
    UnstorableTypeError,
)
from .requests import Request
from .resuming import Recovered, recover, resume
from .runs import Run, Snapshot
from .scope import CurrentTask, current_task, once, wait_for
from .store import Store
from .urls import open_store
from .worker import Worker

__all__ = (
    'AppendOnly',
    'CodecError',
    'ConversationBusyError',
    'ConversationError',
    'CurrentTask',
    'DamagedConversationError',
    'DamagedRunError',
    'FormatVersionError',
    'GeneratedIdWarning',
    'GraphChangedError',
    'GraphkeepError',
    'InvalidAnswerError',
    'LeaseLostError',
    'LossyStateError',
    'MissingDriverError',
    'PersistentGraph',
    'Recovered',
    'Request',
    'RequestClosedError',
    'RequestError',
    'RequestNotFoundError',
    'RequestTimeoutError',
    'Run',
    'RunBusyError',
    'RunError',
    'RunExistsError',
    'RunMovedError',
    'RunNotFoundError',
    'RunPausedError',
    'RunStatusError',
    'SchemaError',
    'Snapshot',
    'StateConflictError',
    'Store',
    'StoreClosedError',
    'StoreError',
    'StoreUnavailableError',
    'StoreWriteError',
    'UnfinishedRunError',
    'UnreadableMessageError',
    'UnstorableTypeError',
    'Worker',
    'current_task',
    'merge',
    'once',
    'open_store',
    'persist',
    'recover',
    'resume',
    'wait_for',
)


def __getattr__(name: str) -> ModuleType:
    # `graphkeep.agents` needs pydantic-ai, which is imported when it is asked for.
    if name == 'agents':
        return import_module('.agents', __name__)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


__version__ = '0.1.0'
