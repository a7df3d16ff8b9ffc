"""A run's stored snapshots, put together again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .document import FORMAT, Document, NewerFormatError
from .errors import DamagedRunError, FormatVersionError
from .runs import Snapshot, SnapshotData

__all__ = ('Replay', 'assemble')


class Replay:
    """A document as the snapshots of a run make it, one by one."""

    __slots__ = ('_document', 'delta_bytes', 'deltas', 'full_bytes', 'run_id', 'seq')

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._document: Document | None = None
        self.seq = -1
        """The last snapshot that was applied."""
        self.full_bytes = 0
        """Size of the newest full snapshot."""
        self.deltas = 0
        """Number of deltas after it."""
        self.delta_bytes = 0
        """Size of these deltas together."""

    @classmethod
    def of(cls, run_id: str, document: Document, *, full_bytes: int) -> Replay:
        """The replay of a run that has just been created with `document`."""
        replay = cls(run_id)
        replay._document, replay.seq, replay.full_bytes = document, 0, full_bytes
        return replay

    @property
    def document(self) -> Document:
        """The document as it is now. Further snapshots change it in place."""
        if self._document is None:
            raise ValueError(f'no snapshot of run {self.run_id!r} has been applied')
        return self._document

    def apply(self, snapshot: Snapshot | SnapshotData) -> None:
        """Go on to the next snapshot.

        Raises:
            DamagedRunError: It cannot be read, or one before it is missing; names it.
            FormatVersionError: It was written by a newer graphkeep.
        """
        try:
            if snapshot.kind == 'full':
                self._document = Document.from_json(snapshot.data)
                self.full_bytes, self.deltas, self.delta_bytes = len(snapshot.data), 0, 0
            else:
                if self._document is None or snapshot.seq != self.seq + 1:
                    missing = snapshot.seq - 1 if self._document is None else self.seq + 1
                    raise DamagedRunError(run_id=self.run_id, seq=missing, reason='it is missing')
                self._document.apply(snapshot.data)
                self.deltas += 1
                self.delta_bytes += len(snapshot.data)
        except DamagedRunError:
            raise
        except NewerFormatError as e:
            raise FormatVersionError(run_id=self.run_id, found=e.found, known=FORMAT) from None
        except ValueError as e:
            raise DamagedRunError(run_id=self.run_id, seq=snapshot.seq, reason=str(e)) from e
        self.seq = snapshot.seq


def assemble(run_id: str, snapshots: Iterable[Snapshot | SnapshotData], *, at: int) -> Replay:
    """Put the document at snapshot `at` together, from the newest full snapshot before it and the
    deltas since.

    Raises:
        DamagedRunError: A snapshot cannot be read, or is missing; names it.
        FormatVersionError: It was written by a newer graphkeep.
        ValueError: The run no longer has snapshots that old (`history='latest'`).
    """
    replay = Replay(run_id)
    for snapshot in snapshots:
        replay.apply(snapshot)
    if replay.seq == -1:
        raise ValueError(
            f'run {run_id!r} no longer has snapshot {at}: its history is kept from the newest full '
            'snapshot on'
        )
    if replay.seq != at:
        raise DamagedRunError(run_id=run_id, seq=at, reason='it is missing')
    return replay
