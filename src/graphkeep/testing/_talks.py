"""What the conversation part of the suite writes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from ..conversations import (
    BlobPlace,
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntry,
)
from ..store import Store

__all__ = ('Talk', 'entry', 'ids', 'line', 'row', 'same', 'write')

START = datetime(2026, 11, 30, tzinfo=UTC)


def entry(
    entry_id: str, parent_id: str | None = None, *, data: bytes | None = None, blob: bytes = b''
) -> StoredEntry:
    """An entry, with a blob in it if one is given."""
    text = json.dumps({'of': entry_id, 'blob': ''}).encode() if data is None else data
    places = (BlobPlace(sha256(blob).hexdigest(), 'base64', len(text) - 2),) if blob else ()
    return StoredEntry(
        entry_id=entry_id, parent_id=parent_id, data=text, library='2.68.0', places=places
    )


def line(*entry_ids: str, after: str | None = None) -> list[StoredEntry]:
    """Entries that follow each other."""
    return [entry(e, p) for e, p in zip(entry_ids, (after, *entry_ids), strict=False)]


def row(
    conversation_id: str,
    revision: str,
    *tips: str,
    scope: str | None = None,
    at: float = 0,
    data: bytes = b'{"k":1}',
) -> StoredConversation:
    """The row of a conversation, written `at` seconds after some day."""
    return StoredConversation(
        conversation_id=conversation_id,
        revision=revision,
        scope=scope,
        updated_at=START + timedelta(seconds=at),
        tips=tips,
        data=data,
    )


def write(
    conversation: StoredConversation,
    entries: Sequence[StoredEntry] = (),
    *,
    expects: str | None = None,
    blobs: Sequence[bytes] = (),
    ttl: float | None = None,
) -> ConversationWrite:
    """A write."""
    return ConversationWrite(
        conversation=conversation,
        expected_revision=expects,
        entries=entries,
        blobs={sha256(blob).hexdigest(): blob for blob in blobs},
        ttl=ttl,
    )


async def ids(store: Store, head_id: str, **part: int) -> list[str] | None:
    """The ids of the entries of a history."""
    found = await store.find_entries(EntriesQuery(head_id=head_id, **part))
    return None if found is None else [each.entry_id for each in found.entries]


async def same(one: Store, other: Store, entry_ids: Sequence[str]) -> None:
    """Assert that two stores hold the same."""
    everything = ConversationQuery()
    assert await one.find_conversations(everything) == await other.find_conversations(everything)
    for entry_id in entry_ids:
        query = EntriesQuery(head_id=entry_id)
        assert await one.find_entries(query) == await other.find_entries(query), entry_id


class Talk:
    """A walk of random writes and deletes, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.entry_ids: list[str] = []
        self._step = 0
        self._blobs = [bytes([n]) * 10 for n in range(3)]

    async def step(self, *stores: Store) -> None:
        """Do one thing, to each of the stores, and assert that it comes to the same."""
        self._step += 1
        choose, n = self._random, self._step
        conversation_id = f'c{choose.randrange(4)}'
        found = await stores[0].find_conversations(
            ConversationQuery(conversation_id=conversation_id)
        )
        current = found[0] if found else None
        if current is not None and choose.random() < 0.2:
            revision = current.revision if choose.random() < 0.9 else 'stale'
            results = [
                await each.delete_conversation(conversation_id, revision=revision)
                for each in stores
            ]
            assert len(set(results)) == 1
            return
        # Anything that was ever there: what is gone has to be refused.
        old = [*self.entry_ids[-12:], *(current.tips if current else ())]
        tips = list(choose.sample(old, min(len(old), choose.randrange(3))))
        entries: list[StoredEntry] = []
        blobs: list[bytes] = []
        parent = choose.choice([None, *old])
        for k in range(choose.randrange(4)):
            blob = choose.choice([b'', b'', *self._blobs])
            blobs += [blob] if blob else []
            made = entry(f'e{n}-{k}', parent, blob=blob)
            entries.append(made)
            parent = choose.choice([parent, made.entry_id, made.entry_id])
        if entries:
            tips += [e.entry_id for e in entries if choose.random() < 0.3]
            tips.append(entries[-1].entry_id)
        self.entry_ids += [e.entry_id for e in entries]
        conversation = row(
            conversation_id, f'r{n}', *dict.fromkeys(tips), scope=choose.choice([None, 's']), at=n
        )
        expects = None if current is None else current.revision
        new = write(conversation, entries, expects=expects, blobs=blobs)
        results = [await each.write_conversation(new) for each in stores]
        assert len(set(results)) == 1, (results, new)
