"""Stored snapshots that cannot be read: named, and no trouble to other runs."""

from __future__ import annotations

import pytest

import graphkeep
from graphkeep import (
    DamagedRunError,
    FormatVersionError,
    GraphChangedError,
    Store,
)
from graphkeep.stores.memory import MemoryStore
from graphkeep.stores.sqlite import SQLiteStore
from tests.classic.graphs import Order, Pay, Pick, orders, rows


async def damage(store: Store, run_id: str, seq: int, data: bytes | None) -> None:
    """Write other bytes into a stored snapshot, or remove it."""
    if isinstance(store, MemoryStore):
        from dataclasses import replace

        row = store._data.rows[run_id]
        row.snapshots = [
            s if s.seq != seq else replace(s, data=data or b'')
            for s in row.snapshots
            if s.seq != seq or data is not None
        ]
        return
    assert isinstance(store, SQLiteStore)
    import sqlite3

    with sqlite3.connect(store.path) as connection:
        key = (run_id, seq)
        if data is None:
            sql = 'DELETE FROM graphkeep_snapshots WHERE run_id = ? AND seq = ?'
            changed = connection.execute(sql, key)
        else:
            sql = (
                'UPDATE graphkeep_snapshots SET data = CAST(? AS TEXT) WHERE run_id = ? AND seq = ?'
            )
            changed = connection.execute(sql, (data, *key))
        assert changed.rowcount == 1
    connection.close()


async def two_runs(store: Store, run_id: str, *, long: bool = False) -> tuple[str, str]:
    """Two runs, left after two nodes: of full snapshots, or of one and two deltas if `long`."""
    names = f'{run_id}/bad', f'{run_id}/good'
    for name in names:
        state = Order(['x' * 800] if long else [])
        persistence = store.persistence(name)
        async with orders.iter(Pick('tea'), state=state, persistence=persistence) as run:
            await run.next()
            await run.next()
        kinds = [snapshot.kind for snapshot in await store.snapshots(name)]
        assert kinds == (['full', 'delta', 'delta'] if long else ['full', 'full', 'full'])
    return names


GARBAGE = [b'', b'{', b'null', b'[]', b'\xff\xfe', b'{"format":1}x', None]
NO_DOCUMENT = [
    *GARBAGE,
    b'{"format":1}',
    b'{"format":1,"state":{}',
    b'{"format":1,"state":{},"tasks":{"1":5},"joins":{},"next":{"task":2,"fork":1}}',
    b'{"format":1,"state":{},"tasks":{"1":{"node":5,"inputs":{}}},"joins":{},"next":{"task":2}}',
    b'{"format":1,"state":{},"tasks":{"1":{"node":"Pick"}},"joins":{},"next":{"task":2}}',
]


@pytest.mark.parametrize(
    ('seq', 'data', 'long'),
    [
        *((seq, data, True) for seq in (0, 1, 2) for data in GARBAGE),
        *((2, data, False) for data in NO_DOCUMENT),
    ],
)
async def test_a_damaged_snapshot_is_named_and_other_runs_go_on(
    store: Store, run_id: str, seq: int, data: bytes | None, long: bool
) -> None:
    bad, good = await two_runs(store, run_id, long=long)
    await damage(store, bad, seq, data)
    handle = store.persistence(bad)
    handle.set_graph_types(orders)

    for attempt in (
        lambda: graphkeep.resume(orders, handle),
        lambda: graphkeep.resume(orders, handle, start=Pick('x'), state=Order()),
        handle.load_next,
        handle.load_all,
    ):
        with pytest.raises(DamagedRunError, match=f'of run {bad!r} cannot be read') as error:
            await attempt()
        assert error.value.run_id == bad
        # Of a row that is missing, the next ones tell.
        assert error.value.seq == seq or (data is None and error.value.seq in (0, 1, 2))
        assert isinstance(error.value, ValueError)
    assert (await graphkeep.resume(orders, store.persistence(good))).output == 300
    assert {run.run_id for run in await store.runs()} == {bad, good}


@pytest.mark.parametrize('counters', [b'{}', b'{"task":"x"}', b'5'])
async def test_damaged_counters(store: Store, run_id: str, counters: bytes) -> None:
    bad, _ = await two_runs(store, run_id)
    document = await store.document(bad)
    document.next = counters
    await damage(store, bad, 2, document.to_json())

    with pytest.raises(DamagedRunError, match='counters') as error:
        await graphkeep.resume(orders, store.persistence(bad))
    assert error.value.seq == 2


async def test_an_earlier_snapshot_of_a_damaged_run_can_be_forked(
    store: Store, run_id: str
) -> None:
    bad, _ = await two_runs(store, run_id)
    await damage(store, bad, 2, b'{"format":1,"stat')

    with pytest.raises(DamagedRunError, match=r'Snapshot 2 of run.*store\.fork') as error:
        await graphkeep.resume(orders, store.persistence(bad))
    assert error.value.seq == 2
    await store.fork(bad, new_run_id=f'{bad}/fork', at=1)
    result = await graphkeep.resume(orders, store.persistence(f'{bad}/fork'))
    assert result.output == 300


async def test_a_snapshot_with_any_byte_flipped_never_gives_an_odd_error(run_id: str) -> None:
    """It is read as it is, or refused by name: no error but ours."""
    async with MemoryStore() as store:
        bad, _ = await two_runs(store, run_id)
        whole = (await store.snapshots(bad))[2].data
        handle = store.persistence(bad)
        handle.set_graph_types(orders)
        refused = 0
        for at in range(len(whole)):
            broken = bytearray(whole)
            broken[at] ^= 0x15
            await damage(store, bad, 2, bytes(broken))
            for call in (handle.load_next, handle.load_all):
                try:
                    await call()
                except (DamagedRunError, GraphChangedError, FormatVersionError) as error:
                    assert error.run_id == bad  # noqa: PT017
                    refused += 1
        assert refused > len(whole)


@pytest.mark.parametrize('seq', [0, 2])
async def test_a_newer_format_is_refused(store: Store, run_id: str, seq: int) -> None:
    newer, good = await two_runs(store, run_id, long=True)
    data = (await store.snapshots(newer))[seq].data.replace(b'"format":1', b'"format":2', 1)
    await damage(store, newer, seq, data)
    before = await rows(store, newer)
    handle = store.persistence(newer)
    handle.set_graph_types(orders)

    for attempt in (
        lambda: graphkeep.resume(orders, handle),
        handle.load_next,
        handle.load_all,
        lambda: store.fork(newer, new_run_id='fork'),
    ):
        with pytest.raises(FormatVersionError, match='Upgrade graphkeep') as error:
            await attempt()
        assert (error.value.run_id, error.value.found, error.value.known) == (newer, 2, 1)
    assert (await store.snapshots(newer), (await store.run(newer)).seq) == (before[1], 2)
    assert (await graphkeep.resume(orders, store.persistence(good))).output == 300


async def test_a_run_of_a_parallel_graph_is_not_run_as_a_graph_of_nodes(
    store: Store, run_id: str
) -> None:
    bad, _ = await two_runs(store, run_id)
    document = await store.document(bad)
    document.tasks['9'] = document.tasks['2']
    await damage(store, bad, 2, document.to_json())

    with pytest.raises(GraphChangedError, match='GraphBuilder'):
        await graphkeep.resume(orders, store.persistence(bad))


async def test_a_done_run_without_its_output(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    await orders.run(Pay(), state=Order(), persistence=handle)
    document = await store.document(run_id)
    document.output = None
    await damage(store, run_id, 1, document.to_json())

    with pytest.raises(DamagedRunError, match='no output'):
        await graphkeep.resume(orders, handle)
