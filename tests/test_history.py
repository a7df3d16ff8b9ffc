"""A run's stored snapshots, put together again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from graphkeep.document import FORMAT, Change, Document
from graphkeep.errors import DamagedRunError, FormatVersionError
from graphkeep.history import Replay, assemble
from graphkeep.runs import Snapshot, SnapshotKind


def snapshot(seq: int, kind: SnapshotKind, data: bytes) -> Snapshot:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    return Snapshot(seq=seq, kind=kind, event='step', data=data, created_at=now)


def history(*kinds: SnapshotKind) -> tuple[list[Snapshot], list[bytes]]:
    """Snapshots of a run that counts, and the document at each."""
    document = Document(state={'n': b'0', 'words': b'[]'})
    snapshots, texts = [snapshot(0, 'full', document.to_json())], [document.to_json()]
    words = []
    for seq, kind in enumerate(kinds, 1):
        words.append(f'"word {seq}"')
        state: dict[str, Any] = {'n': b'%d' % seq, 'words': f'[{",".join(words)}]'.encode()}
        change = Change(state=state)
        data = document.to_json(change) if kind == 'full' else document.delta(change)
        snapshots.append(snapshot(seq, kind, data))
        document.advance(change)
        texts.append(document.to_json())
    return snapshots, texts


def text(snapshots: Sequence[Snapshot], at: int) -> bytes:
    return assemble('run-1', snapshots, at=at).document.to_json()


def test_the_document_is_that_of_any_snapshot() -> None:
    snapshots, texts = history('delta', 'delta', 'full', 'delta', 'delta')
    for at in range(6):
        assert text(snapshots[: at + 1], at) == texts[at]
        assert text(snapshots[3 if at >= 3 else 0 : at + 1], at) == texts[at]


def test_a_replay_knows_what_its_snapshots_weigh() -> None:
    snapshots, texts = history('delta', 'delta', 'full', 'delta', 'delta')
    replay = assemble('run-1', snapshots[:3], at=2)
    assert (replay.seq, replay.full_bytes, replay.deltas) == (2, len(texts[0]), 2)
    assert replay.delta_bytes == len(snapshots[1].data) + len(snapshots[2].data)
    replay.apply(snapshots[3])
    assert (replay.seq, replay.full_bytes) == (3, len(texts[3]))
    assert (replay.deltas, replay.delta_bytes) == (0, 0)
    replay.apply(snapshots[4])
    assert (replay.seq, replay.deltas, replay.delta_bytes) == (4, 1, len(snapshots[4].data))
    assert replay.document.to_json() == texts[4]


def test_a_new_run_needs_no_snapshot_read() -> None:
    snapshots, texts = history('delta')
    replay = Replay.of('run-1', Document.from_json(texts[0]), full_bytes=len(texts[0]))
    assert (replay.seq, replay.full_bytes, replay.deltas) == (0, len(texts[0]), 0)
    replay.apply(snapshots[1])
    assert replay.document.to_json() == texts[1]


def test_without_snapshots_there_is_no_document() -> None:
    with pytest.raises(ValueError, match='no longer has snapshot 7'):
        assemble('run-1', [], at=7)
    with pytest.raises(ValueError, match='no snapshot'):
        _ = Replay('run-1').document


@pytest.mark.parametrize('missing', [0, 1, 2, 3, 4])
def test_a_missing_snapshot_is_damage_that_is_named(missing: int) -> None:
    snapshots, _ = history('delta', 'delta', 'delta', 'delta')
    with pytest.raises(DamagedRunError) as caught:
        assemble('run-1', snapshots[:missing] + snapshots[missing + 1 :], at=4)
    assert caught.value.run_id == 'run-1'
    # The one before it is the last that can be forked from.
    assert caught.value.seq == missing


@pytest.mark.parametrize(
    'damage',
    [b'', b'{', b'null', b'[]', b'{}', b'\xff', b'{"format":1}', b'{"format":"1","state":1}'],
)
def test_a_full_snapshot_that_cannot_be_read_is_named(damage: bytes) -> None:
    snapshots, texts = history('delta', 'full', 'delta')
    snapshots[2] = snapshot(2, 'full', damage)
    with pytest.raises(DamagedRunError) as caught:
        text(snapshots, 3)
    assert (caught.value.run_id, caught.value.seq) == ('run-1', 2)
    assert caught.value.reason
    assert 'Snapshot 2' in str(caught.value)
    # The ones before it are still good.
    assert text(snapshots[:2], 1) == texts[1]


@pytest.mark.parametrize('damage', [b'', b'{', b'null', b'[]', b'{}', b'\xff', b'{"format":1'])
def test_a_delta_that_cannot_be_read_is_named(damage: bytes) -> None:
    snapshots, texts = history('delta', 'delta', 'delta')
    snapshots[2] = snapshot(2, 'delta', damage)
    with pytest.raises(DamagedRunError) as caught:
        text(snapshots, 3)
    assert (caught.value.run_id, caught.value.seq) == ('run-1', 2)
    assert text(snapshots[:2], 1) == texts[1]


@pytest.mark.parametrize('seq', [0, 2])
def test_a_newer_format_is_told_from_damage(seq: int) -> None:
    snapshots, _ = history('delta', 'delta', 'delta')
    newer = snapshots[seq].data.replace(b'{"format":1', b'{"format":%d' % (FORMAT + 1), 1)
    snapshots[seq] = snapshot(seq, snapshots[seq].kind, newer)
    with pytest.raises(FormatVersionError) as caught:
        text(snapshots, 3)
    assert (caught.value.run_id, caught.value.known) == ('run-1', FORMAT)
    assert caught.value.found == FORMAT + 1
