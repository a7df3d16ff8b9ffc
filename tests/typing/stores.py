"""What a store gives, to a type checker."""

# pyright: strict
from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, assert_type

import graphkeep
from graphkeep import Run, Snapshot, Store


async def open_and_close() -> None:
    async with graphkeep.open_store('memory://') as store:
        assert_type(store, Store)
    assert_type(graphkeep.open_store('sqlite:///runs.db', lease=10.0), Store)
    graphkeep.open_store(5)  # pyright: ignore[reportArgumentType]


async def look(store: Store) -> None:
    run = await store.run('x')
    assert_type(run, Run)
    assert_type(run.run_id, str)
    assert_type(run.graph, str | None)
    assert_type(run.lease_until, datetime | None)
    assert_type(run.labels, Mapping[str, str])
    assert_type(run.error, Mapping[str, Any] | None)
    assert_type(run.status == 'done', bool)
    run.seq = 5  # pyright: ignore[reportAttributeAccessIssue]

    assert_type(await store.runs(status='failed', labels={'a': 'b'}, after=run), list[Run])
    assert_type(await store.runs(status=('ready', 'failed')), list[Run])
    await store.runs(status='sleeping')  # pyright: ignore[reportArgumentType]
    await store.runs('orders')  # pyright: ignore[reportCallIssue]
    assert_type(await store.interrupted(), list[Run])
    assert_type(await store.snapshots('x', after=3), list[Snapshot])
    snapshot = (await store.snapshots('x'))[0]
    assert_type(snapshot.data, bytes)
    assert_type(snapshot.duration, float | None)


async def change(store: Store) -> None:
    assert_type(await store.fork('x', new_run_id='y', at=3), Run)
    assert_type(await store.cancel('x'), Run)
    assert_type(await store.delete('x', force=True), None)
    assert_type(await store.prune(older_than=timedelta(days=30)), int)
    await store.fork('x')  # pyright: ignore[reportCallIssue]
    await store.prune(older_than=30)  # pyright: ignore[reportArgumentType]


def errors(error: graphkeep.GraphkeepError) -> None:
    if isinstance(error, graphkeep.RunBusyError):
        assert_type(error.run_id, str)
        assert_type(error.owner, str | None)
        assert_type(error.lease_until, datetime | None)
    if isinstance(error, graphkeep.GraphChangedError):
        assert_type(error.node, str | None)
        assert_type(error.path, str | None)
    if isinstance(error, graphkeep.DamagedRunError):
        assert_type(error.seq, int | None)
    if isinstance(error, graphkeep.CodecError):
        assert_type(error.path, str)
    built_in: list[type[Exception]] = [LookupError, ValueError, ValueError, ImportError, OSError]
    ours: list[type[graphkeep.GraphkeepError]] = [
        graphkeep.RunNotFoundError,
        graphkeep.RunExistsError,
        graphkeep.LossyStateError,
        graphkeep.MissingDriverError,
        graphkeep.StoreWriteError,
    ]
    for theirs, mine in zip(built_in, ours, strict=True):
        assert issubclass(mine, theirs)
