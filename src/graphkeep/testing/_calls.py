"""How the suite asks a store for what no public method, or only a longer way, gives."""

from __future__ import annotations

# The suite certifies the hooks themselves: some of what they promise no public method can ask for.
# pyright: reportPrivateUsage=false
import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..runs import Claimed, ClaimRequest, Snapshot, SnapshotData, Status
from ..store import Store, new_nonce

__all__ = ('ELSEWHERE', 'UNSTORABLE', 'eventually', 'shape', 'take', 'text_at')

ELSEWHERE = 'elsewhere/1/-/-/-/00000000'
"""An owner on another machine: nobody here can tell whether it is alive."""
UNSTORABLE = ('\0', 'a\0b', '\ud800', 'a\udfff')
"""Texts that not every database takes."""


async def eventually(
    check: Callable[[], Awaitable[bool]], *, what: str, timeout: float = 10.0
) -> None:
    """Wait until `check` says yes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not await check():
        if loop.time() > deadline:
            raise AssertionError(f'waited {timeout} s in vain: {what}')
        await asyncio.sleep(0.005)


async def take(
    store: Store,
    run_id: str,
    *,
    owner: str = ELSEWHERE,
    ttl: float = 30.0,
    allow: tuple[Status, ...] = ('ready',),
    expected_epoch: int | None = None,
    expected_seq: int | None = None,
    nonce: str | None = None,
) -> Claimed:
    """Claim a run as any owner: `Store.claim` only claims for this process."""
    await store.open()
    return await store._claim(
        ClaimRequest(
            run_id=run_id,
            owner=owner,
            ttl=ttl,
            allow=allow,
            expected_epoch=expected_epoch,
            expected_seq=expected_seq,
            nonce=nonce or new_nonce(),
        )
    )


async def text_at(store: Store, run_id: str, at: int | None = None) -> bytes:
    """The document of a run as JSON text."""
    return (await store.document(run_id, at=at)).to_json()


def shape(snapshots: Sequence[Snapshot | SnapshotData]) -> list[tuple[int, str]]:
    """Seq and kind of each."""
    return [(snapshot.seq, snapshot.kind) for snapshot in snapshots]
