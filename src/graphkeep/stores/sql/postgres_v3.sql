-- The schema, version 3: conversations, and the messages that they share.

-- name: create_conversations
-- One row a conversation, replaced by every save. Ids sort by their bytes, as they do in every other store. The payload is
-- `json`, as that of a snapshot. What is of fixed length comes first in each of these tables: it needs no padding then. An
-- index has only the ten minutes of a time: the saves of a conversation that goes on stay on its page and touch no index (HOT).
CREATE TABLE {prefix}_conversations (
  updated_at timestamptz NOT NULL,
  updated_slot timestamptz NOT NULL
    GENERATED ALWAYS AS (date_bin('10 minutes', updated_at, '2000-01-01 00:00:00+00'::timestamptz)) STORED,
  expires_at timestamptz,
  expires_slot timestamptz
    GENERATED ALWAYS AS (date_bin('10 minutes', expires_at, '2000-01-01 00:00:00+00'::timestamptz)) STORED,
  conversation_id text COLLATE "C" PRIMARY KEY,
  revision text NOT NULL,
  scope text COLLATE "C",
  tips bytea[] NOT NULL,
  data json NOT NULL
)
WITH (fillfactor = 70)

-- name: create_entries
-- One row a message, which any number of conversations reach. Nothing of it changes but `refs`: how many entries follow it,
-- and how many conversations have it as a tip. An entry that comes to 0 is removed, and lowers the one before it. A save moves
-- a tip on to the entry that follows, which changes no counter of what is there: so the pages keep no room for updates. Ids
-- that upstream makes are in the order of time: nor do those of their index. No foreign keys: the counters say the same.
CREATE TABLE {prefix}_entries (
  position integer NOT NULL,
  refs integer NOT NULL,
  entry_id bytea NOT NULL,
  parent_id bytea,
  library text NOT NULL,
  places json,
  data json NOT NULL,
  PRIMARY KEY (entry_id) WITH (fillfactor = 100)
)

-- name: create_blobs
-- One row for the same bytes, however often they are sent. `uses` is how many entries need them.
CREATE TABLE {prefix}_blobs (
  uses integer NOT NULL,
  hash bytea PRIMARY KEY,
  data bytea NOT NULL
)

-- name: compress_with_lz4
-- As the payloads of snapshots, where the server was built with it.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
    ALTER TABLE {prefix}_conversations ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {prefix}_entries ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {prefix}_blobs ALTER COLUMN data SET COMPRESSION lz4;
  END IF;
END
$$

-- name: index_newest
-- Listing newest first, a page at a time: those of the same ten minutes are sorted when they are read.
CREATE INDEX {prefix}_conversations_newest ON {prefix}_conversations (updated_slot)

-- name: index_scope
-- As the one before, for the conversations of one user.
CREATE INDEX {prefix}_conversations_scope ON {prefix}_conversations (scope, updated_slot) WHERE scope IS NOT NULL

-- name: index_expires
-- What has expired, without looking at what stays. Where nothing expires it takes no room.
CREATE INDEX {prefix}_conversations_expires ON {prefix}_conversations (expires_slot) WHERE expires_slot IS NOT NULL
