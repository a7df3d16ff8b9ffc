"""Conversations in Redis: written, removed and read by one script each.

Only what is too large for one reply, or keeps the server for too long, is read in parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    Line,
    StoredConversation,
    StoredEntries,
    packed_id,
)
from ..errors import DamagedConversationError
from .redis_client import Call, Link
from .redis_keys import Layout
from .redis_talks import (
    EXPIRY_SIZE,
    Columns,
    Row,
    bound_of,
    cut,
    line_from,
    name_of,
    row_from,
    write_args,
)

__all__ = ('delete_conversation', 'find_conversations', 'find_entries', 'write_conversation')

logger = logging.getLogger('graphkeep')

_REPLY_BYTES = 16_000_000
"""Most payload bytes in one reply, beyond its first part."""
_STRETCH = 500
"""Most rows, or blobs, of one reply."""
_STEPS = 10_000
"""Most entries that the server looks at in one go."""
_READS = 3
"""How often what is read in parts is read before damage is believed: it may have been removed
meanwhile.
"""


async def write_conversation(link: Link, layout: Layout, write: ConversationWrite) -> bool:
    """As `Hooks._write_conversation`.

    Raises:
        DamagedConversationError: The row that would be replaced, or an entry that it would stand
            on, is not as it was written. Nothing was written.
    """
    reply = await link.call('talk_write', Call(keys=layout.talks, args=tuple(write_args(write))))
    if reply[0] == b'damaged':
        reason = 'it is not as graphkeep writes it'
        if not reply[1]:
            name = write.conversation.conversation_id
            raise DamagedConversationError(conversation_id=name, reason=reason)
        raise DamagedConversationError(entry_id=name_of(reply[1]), reason=reason)
    return reply[0] == b'written'


async def delete_conversation(
    link: Link, layout: Layout, conversation_id: str, revision: str
) -> bool:
    """As `Hooks._delete_conversation`. Entries that are damaged are no hindrance.

    Raises:
        DamagedConversationError: Its row is not as it was written. Nothing was removed.
    """
    args = (conversation_id.encode(), revision.encode())
    reply = await link.call('talk_delete', Call(keys=layout.talks, args=args))
    if reply == b'damaged':
        reason = 'it is not as graphkeep writes it'
        raise DamagedConversationError(conversation_id=conversation_id, reason=reason)
    return reply == b'deleted'


# --- rows ----------------------------------------------------------------------------------------


async def find_conversations(
    link: Link, layout: Layout, query: ConversationQuery
) -> list[StoredConversation]:
    """As `Hooks._conversations`."""
    keys = layout.talks
    if query.conversation_id is not None:
        name = query.conversation_id.encode()
        now, text = await link.call('talk_row', Call(keys=(keys.rows,), args=(name,)))
        if text is None:
            return []
        try:
            row = row_from(name, text)
        except ValueError as e:
            raise DamagedConversationError(
                conversation_id=query.conversation_id, reason=f'its row cannot be read ({e})'
            ) from e
        return [row.conversation][: query.limit] if _matches(query, row, int(now)) else []
    if query.expired:
        index, which, before = keys.expiring, 'first', EXPIRY_SIZE
        begin, end = b'-', b'now'
    else:
        index, which = (keys.written if query.scope is None else keys.scoped), 'last'
        begin, end, before = bound_of(query.scope, query.after)
    found: list[StoredConversation] = []
    while begin and (query.limit is None or len(found) < query.limit):
        count = _STRETCH if query.limit is None else min(_STRETCH, query.limit - len(found))
        args = (which, begin, end, before, count, _REPLY_BYTES)
        now, last, *rows = await link.call('talk_find', Call(keys=(index, keys.rows), args=args))
        for name, text in zip(rows[::2], rows[1::2], strict=True):
            row = _listed(name, text)
            if row is not None and _matches(query, row, int(now)):
                found.append(row.conversation)
        begin = b'(' + last if last else b''
    return found


def _listed(name: bytes, text: bytes) -> Row | None:
    try:
        return row_from(name, text)
    except ValueError as e:
        # One that is damaged does not hide the others.
        shown = name.decode(errors='backslashreplace')
        logger.warning('the row of conversation %r is damaged, it is left out: %s', shown, e)
        return None


def _matches(query: ConversationQuery, row: Row, now: int) -> bool:
    found = row.conversation
    if query.expired != (row.expires_at is not None and row.expires_at <= now):
        return False
    if query.scope not in (None, found.scope):
        return False
    return query.after is None or (found.updated_at, found.conversation_id) < query.after


# --- entries -------------------------------------------------------------------------------------


async def find_entries(link: Link, layout: Layout, query: EntriesQuery) -> StoredEntries | None:
    """As `Hooks._entries`.

    What is read in parts is as if it was read at once: entries are never changed, and as long as
    the last one is there, so are those before it and their blobs.
    """
    for tries in range(1, _READS + 1):
        try:
            return await _read(link, layout, query)
        except DamagedConversationError:
            if tries == _READS:
                raise
    return None  # pragma: no cover - the last try returns or raises


async def _read(link: Link, layout: Layout, query: EntriesQuery) -> StoredEntries | None:
    keys = layout.talks
    where = (keys.entries, keys.long, keys.blobs)
    start, stop = (query.start, query.stop) if query.limit is None else (0, None)
    last = '' if stop is None else stop - 1
    lines: list[Line] = []
    there = 0
    blobs: dict[str, bytes] = {}
    following, position = packed_id(query.head_id), b''
    while following:
        most = '' if query.limit is None else query.limit - there
        args = (following, position, most, start, last, _REPLY_BYTES, _STEPS)
        reply = await link.call('talk_entries', Call(keys=where, args=args))
        if reply is None:
            if not position:
                return None
            child = name_of(following)
            raise DamagedConversationError(entry_id=child, reason='it is missing')
        following, position, first, columns, damaged, reason = reply
        part = Columns(*columns)
        if first:
            lines.append(line_from(part, int(first)))
            there += len(lines[-1])
        if damaged:
            raise DamagedConversationError(entry_id=name_of(damaged), reason=reason.decode())
        blobs.update(part.found_blobs)
    line = Line.joined(lines[::-1])
    needs = line.needs
    await _fetch(link, layout, blobs, needs.keys() - blobs.keys())
    for name, entry_id in needs.items():
        if name not in blobs:
            reason = f'its blob {name} is missing'
            raise DamagedConversationError(entry_id=entry_id, reason=reason)
    return StoredEntries(line, blobs)


async def _fetch(
    link: Link, layout: Layout, blobs: dict[str, bytes], wanted: Iterable[str]
) -> None:
    """Add those of the wanted blobs that are stored, as many at a time as there is room for."""
    left = sorted(wanted)
    while left:
        args = (_REPLY_BYTES, *left[:_STRETCH])
        sizes, data = await link.call('talk_blobs', Call(keys=(layout.talks.blobs,), args=args))
        found = sizes.split()
        there = [name for name, size in zip(left, found, strict=False) if size != b'-']
        given = cut(data, [size for size in found if size != b'-'])
        blobs.update(zip(there, given, strict=True))
        left = left[len(found) :]
