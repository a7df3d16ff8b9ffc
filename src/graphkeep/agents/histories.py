"""Long histories: read from their end in parts, each asked for while the one before is decoded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic_ai.conversation_store import ConversationEntry

from ..conversations import EntriesQuery, Line, StoredEntries, StoredEntry
from ..errors import DamagedConversationError

__all__ = ('read_back',)

_FIRST = 128
"""How many to ask for at first: nothing can be decoded until then."""
_GROWTH = 1.5
"""Reading a part should take no longer than decoding the one before."""
_SLICE = 512
"""Messages that are decoded before others have their turn of the event loop: about six
milliseconds. The request for the next part needs some turns, too, to be on its way.
"""


async def read_back(
    ask: Callable[[EntriesQuery], Coroutine[Any, Any, StoredEntries]],
    decode: Callable[[StoredEntries], list[ConversationEntry]],
    head_id: str,
    *,
    limit: int | None,
    stretch: int | None,
) -> list[ConversationEntry]:
    """The entries up to one, oldest first.

    Args:
        ask: Reads a part.
        decode: Gives its entries, maybe without some that cannot be read.
        head_id: The last one.
        limit: How many, without those that are left out; all if omitted.
        stretch: How many to ask for at once, at most; all if `None`.
    """
    most = math.inf if stretch is None else stretch
    parts: list[list[ConversationEntry]] = []
    following: str | None = head_id
    size = most if stretch is None else min(most, _FIRST)
    wanted = math.inf if limit is None else limit
    coming: asyncio.Task[StoredEntries] | None = None
    after: StoredEntry | None = None
    try:
        while following is not None and wanted > 0:
            query = _query(following, min(size, wanted))
            found = await (ask(query) if coming is None else coming)
            coming = None
            _check_next(found.entries, after)
            after = found.entries[0]
            following, size = found.entries.parent_id, min(most, size * _GROWTH)
            wanted -= len(found.entries)
            if following is not None and wanted > 0:
                coming = asyncio.create_task(ask(_query(following, min(size, wanted))))
            part: list[ConversationEntry] = []
            for start in range(0, len(found.entries), _SLICE):
                if start or coming is not None:
                    await asyncio.sleep(0)
                entries = found.entries[start : start + _SLICE]
                part += decode(StoredEntries(entries, found.blobs))
            wanted += len(found.entries) - len(part)
            parts.append(part)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
    return [entry for part in reversed(parts) for entry in part]


def _check_next(line: Line, after: StoredEntry | None) -> None:
    """Whether entries end where the part after them begins: each part alone has no gap."""
    if after is not None and line.position + len(line) != after.position:
        reason = f'it has position {after.position}, and no entry that fits is before it'
        raise DamagedConversationError(entry_id=after.entry_id, reason=reason)


def _query(head_id: str, limit: float) -> EntriesQuery:
    return EntriesQuery(head_id=head_id, limit=None if math.isinf(limit) else int(limit))
