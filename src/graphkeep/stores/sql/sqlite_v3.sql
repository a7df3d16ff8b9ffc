-- The schema, version 3: conversations, and the entries that they share.

-- name: create_conversations
-- One row a conversation, replaced by every save. Its tips are ids of entries, as a JSON array.
CREATE TABLE {prefix}_conversations (
  conversation_id TEXT NOT NULL PRIMARY KEY,
  revision TEXT NOT NULL,
  scope TEXT,
  updated_at INTEGER NOT NULL,
  expires_at INTEGER,
  tips TEXT NOT NULL,
  data TEXT NOT NULL
)

-- name: create_entries
-- One row an entry. Its id is packed: 16 bytes for a UUID. `refs` counts the entries that follow it
-- and the conversations whose tip it is; nothing else ever changes.
CREATE TABLE {prefix}_entries (
  entry INTEGER PRIMARY KEY,
  entry_id BLOB NOT NULL UNIQUE,
  parent INTEGER,
  position INTEGER NOT NULL,
  refs INTEGER NOT NULL,
  library TEXT NOT NULL,
  places TEXT
)

-- name: create_messages
-- What an entry holds. Apart from it, so that a walk along a history touches a page for eighty
-- entries and not for four, and a counter that changes rewrites no message.
CREATE TABLE {prefix}_messages (
  entry INTEGER PRIMARY KEY,
  data TEXT NOT NULL
)

-- name: create_blobs
-- One row a blob, by its SHA-256. `uses` counts the entries that need it; it stands before the data,
-- which is read over many pages.
CREATE TABLE {prefix}_blobs (
  hash BLOB NOT NULL PRIMARY KEY,
  uses INTEGER NOT NULL,
  data BLOB NOT NULL
)

-- name: index_conversations_newest
-- Listing last written first, a page at a time. A save has to move its row in it.
CREATE INDEX {prefix}_conversations_newest
ON {prefix}_conversations (updated_at, conversation_id)

-- name: index_conversations_scope
-- The same of one scope. A conversation without one is not in it: its save writes one page less.
CREATE INDEX {prefix}_conversations_scope
ON {prefix}_conversations (scope, updated_at, conversation_id) WHERE scope IS NOT NULL

-- name: index_conversations_expiry
-- What has expired, without looking at what has not, or never does.
CREATE INDEX {prefix}_conversations_expiry
ON {prefix}_conversations (expires_at, conversation_id) WHERE expires_at IS NOT NULL
