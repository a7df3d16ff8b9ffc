-- Conversations and their entries: as `sqlite_runs.sql`, of which this is the other half. An entry
-- is named by its number wherever its id is not asked for.

-- name: select_conversation
-- What a save compares, under the write lock.
SELECT revision, tips, expires_at IS NOT NULL AND expires_at <= :now
FROM {prefix}_conversations
WHERE conversation_id = :conversation_id

-- name: store_conversation
-- After `select_conversation`, in its transaction: the revision that is replaced has been seen.
INSERT INTO {prefix}_conversations (
  conversation_id, revision, scope, updated_at, expires_at, tips, data
)
VALUES (
  :conversation_id, :revision, :scope, :updated_at, :expires_at, :tips, CAST(:data AS TEXT)
)
ON CONFLICT (conversation_id) DO UPDATE
SET revision = excluded.revision, scope = excluded.scope, updated_at = excluded.updated_at,
  expires_at = excluded.expires_at, tips = excluded.tips, data = excluded.data

-- name: delete_conversation
-- Only the one that was seen. Its tips say which entries lose a reference.
DELETE FROM {prefix}_conversations
WHERE conversation_id = :conversation_id AND revision = :revision
RETURNING tips

-- name: select_entry
-- Through the unique index of the ids.
SELECT entry, parent, position FROM {prefix}_entries WHERE entry_id = :entry_id

-- name: select_message
-- To compare an entry that comes again: entries are never changed.
SELECT CAST(data AS BLOB) FROM {prefix}_messages WHERE entry = :entry

-- name: insert_entry
-- With the references that it has when the transaction ends.
INSERT INTO {prefix}_entries (entry_id, parent, position, refs, library, places)
VALUES (:entry_id, :parent, :position, :refs, :library, :places)

-- name: insert_message
-- The payload comes as bytes and is stored as text, without being decoded on the way.
INSERT INTO {prefix}_messages (entry, data) VALUES (:entry, CAST(:data AS TEXT))

-- name: change_refs
-- Only where it comes to a change: a save that moves a tip forward writes no older entry.
UPDATE {prefix}_entries SET refs = refs + :change WHERE entry = :entry
RETURNING refs

-- name: find_doomed
-- The entries that nobody refers to, and up from each those that only the one below refers to. Lines
-- of such entries never meet. UNION ends also where a foreign hand has made a ring of parents.
WITH RECURSIVE doomed (entry, parent, places) AS (
  SELECT entry, parent, places FROM {prefix}_entries
  WHERE entry IN (SELECT value FROM json_each(:entries)) AND refs <= 0
  UNION
  SELECT before.entry, before.parent, before.places
  FROM doomed JOIN {prefix}_entries AS before ON before.entry = doomed.parent
  WHERE before.refs <= 1
)
SELECT entry, parent, CAST(places AS BLOB) FROM doomed

-- name: delete_entries
-- In the transaction that took their last reference.
DELETE FROM {prefix}_entries WHERE entry IN (SELECT value FROM json_each(:entries))

-- name: delete_messages
-- Together with the entries.
DELETE FROM {prefix}_messages WHERE entry IN (SELECT value FROM json_each(:entries))

-- name: use_blob
-- A blob is stored once, however many entries need it.
INSERT INTO {prefix}_blobs (hash, uses, data) VALUES (:hash, :uses, :data)
ON CONFLICT (hash) DO UPDATE SET uses = uses + excluded.uses

-- name: delete_blob
-- If no entry is left that needs it.
DELETE FROM {prefix}_blobs WHERE hash = :hash AND uses <= :uses

-- name: release_blob
-- After `delete_blob`, if others need it.
UPDATE {prefix}_blobs SET uses = uses - :uses WHERE hash = :hash

-- name: select_blob
-- Through the primary key.
SELECT CAST(data AS BLOB) FROM {prefix}_blobs WHERE hash = :hash

-- name: select_line
-- Back from an entry at :position to the position :first, then the messages of those before :stop, in the order
-- of the walk, last one first. Of a chain that is not as we write it the walk ends early, and always.
-- Each entry is looked up once. The LEFT JOIN keeps one whose message is gone. In one row: making
-- thousands in Python takes as long as finding them. `parent` is that of the row with the lowest
-- position, as SQLite promises for a bare column.
WITH RECURSIVE line (entry, parent, position, entry_id, library, places) AS (
  SELECT entry, parent, position, entry_id, library, places
  FROM {prefix}_entries
  WHERE entry = :entry AND position = :position
  UNION ALL
  SELECT
    before.entry, before.parent, before.position, before.entry_id, before.library, before.places
  FROM line JOIN {prefix}_entries AS before ON before.entry = line.parent
  WHERE line.position > :first AND before.position = line.position - 1
)
SELECT
  min(line.position), line.parent, count(*),
  CAST(group_concat(hex(entry_id), ' ') AS BLOB),
  CAST(group_concat(hex(library), ' ') AS BLOB),
  CAST(group_concat(
    CASE WHEN places IS NOT NULL THEN line.position || ':' || hex(places) END, ' '
  ) AS BLOB),
  CAST(group_concat(coalesce(length(CAST(data AS BLOB)), '-'), ' ') AS BLOB),
  CAST(group_concat(data, '') AS BLOB)
FROM line LEFT JOIN {prefix}_messages AS message ON message.entry = line.entry
WHERE line.position < :stop

-- name: select_break
-- Where the walk of `select_line` ended, and what stands before that.
WITH RECURSIVE line (entry, parent, position) AS (
  SELECT entry, parent, position FROM {prefix}_entries WHERE entry = :entry
  UNION ALL
  SELECT before.entry, before.parent, before.position
  FROM line JOIN {prefix}_entries AS before ON before.entry = line.parent
  WHERE line.position > :first AND before.position = line.position - 1
)
SELECT this.entry_id, line.position, before.position
FROM line
JOIN {prefix}_entries AS this ON this.entry = line.entry
LEFT JOIN {prefix}_entries AS before ON before.entry = this.parent
ORDER BY line.position
LIMIT 1

-- name: select_entry_id
-- Of the entry before a part of a history.
SELECT entry_id FROM {prefix}_entries WHERE entry = :entry

-- name: find_conversations
-- Last written first, from (:updated_at, :before_id) on. {which} is one of the conditions
-- below, to the letter, so that the planner finds its index; or 'true'.
SELECT conversation_id, revision, scope, updated_at, tips, CAST(data AS BLOB)
FROM {prefix}_conversations
WHERE {which}
  AND (updated_at, conversation_id) < (:updated_at, :before_id)
  AND (:scope IS NULL OR scope = :scope)
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY updated_at DESC, conversation_id DESC

-- name: if_of_id
-- Through the primary key.
conversation_id = :conversation_id

-- name: if_of_scope
-- Through the index that is in order already.
scope = :scope

-- name: find_expired
-- The first that expired first, through the index of what expires.
SELECT conversation_id, revision, scope, updated_at, tips, CAST(data AS BLOB)
FROM {prefix}_conversations
WHERE expires_at <= :now
  AND (updated_at, conversation_id) < (:updated_at, :before_id)
  AND (:conversation_id IS NULL OR conversation_id = :conversation_id)
  AND (:scope IS NULL OR scope = :scope)
ORDER BY expires_at, conversation_id
