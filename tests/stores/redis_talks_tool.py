"""Conversations in Redis as another program sees them."""

# pyright: reportReturnType=false, reportArgumentType=false, reportGeneralTypeIssues=false
# redis-py types every reply as the union of all that its commands, options and protocols can give.

from __future__ import annotations

from hashlib import sha256
from typing import Any

import redis

from graphkeep.conversations import ConversationQuery, StoredConversation, StoredEntry, packed_id
from graphkeep.stores.redis import RedisStore
from graphkeep.testing._talks import line
from tests.stores.redis_tool import keys

__all__ = (
    'BLOBS',
    'ENTRIES',
    'EXPIRING',
    'HASH',
    'LONG',
    'REFS',
    'ROWS',
    'SCOPED',
    'TAG',
    'USES',
    'WRITTEN',
    'contents',
    'kept',
    'long_line',
    'only_one',
    'talk_keys',
)

TAG = b'{graphkeep:0}:talk:'
ROWS, ENTRIES, LONG, REFS = TAG + b'rows', TAG + b'entries', TAG + b'long', TAG + b'refs'
BLOBS, USES = TAG + b'blobs', TAG + b'uses'
WRITTEN, SCOPED, EXPIRING = TAG + b'written', TAG + b'scoped', TAG + b'expiring'
HASH = sha256(b'picture').hexdigest()


def talk_keys(cli: redis.Redis) -> set[bytes]:
    return {key for key in keys(cli) if key.startswith(TAG)}


def kept(name: str) -> bytes:
    """The field of an entry."""
    return packed_id(name)


def long_line(*names: str) -> list[StoredEntry]:
    """Entries whose messages lie apart."""
    return [e._replace(data=e.data + b' ' * 5_000) for e in line(*names)]


async def only_one(store: RedisStore, conversation_id: str) -> StoredConversation | None:
    found = await store.find_conversations(ConversationQuery(conversation_id=conversation_id))
    return found[0] if found else None


def contents(cli: redis.Redis) -> dict[bytes, Any]:
    """All that is stored, to be compared. A hash has no order, which a dump would show."""
    read = {
        b'hash': cli.hgetall,
        b'string': cli.get,
        b'zset': lambda key: cli.zrange(key, 0, -1, withscores=True),
        b'stream': cli.xrange,
    }
    return {key: read[cli.type(key)](key) for key in keys(cli)}
