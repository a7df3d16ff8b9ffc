-- Who writes locks the row of the conversation first (its name, where there is none yet), then entries in the order of their ids, then blobs in that of their
-- hashes: so nobody waits in a circle, but where more entries turn out to end while some are locked. The counters hold what
-- is reached: an entry is there as long as its counter is above 0, and who raises one has locked it, and so found it there.
-- Payloads go in and out as the bytes they are, ids of entries and hashes packed.

-- name: write_conversation
-- A save that removes nothing, in one statement. The row is locked, and must have the revision $8. Each old tip has one
-- reference less, each entry in $9 one more for each time it is named there: only what differs after that is locked and
-- written. The end of the history, which the new entries follow, is an old tip and the parent of one: it is not written, and
-- cannot go away, as the row has held it until now. All of it happens, or nothing; what is not as usual is for
-- `lock_conversation` and those after it: 'look'. An entry or row that another transaction brings meanwhile is an error.
WITH name AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(hashtextextended('graphkeep conversation {prefix} ' || $1, 0)) WHERE $8::text IS NULL
),
old AS MATERIALIZED (
  SELECT revision, tips, coalesce(expires_at <= clock_timestamp(), false) AS expired
  FROM {prefix}_conversations
  WHERE conversation_id = $1 AND (SELECT count(*) FROM name) >= 0
  FOR UPDATE
),
found AS MATERIALIZED (
  SELECT
    CASE
      WHEN $8::text IS NULL AND EXISTS (SELECT FROM old WHERE expired) THEN 'look'
      WHEN revision IS NOT DISTINCT FROM $8 THEN 'fits'
      WHEN revision = $2 THEN 'same'
      ELSE 'refused'
    END AS outcome
  FROM (SELECT (SELECT revision FROM old WHERE NOT expired) AS revision) AS current
),
moves AS MATERIALIZED (
  SELECT entry_id, sum(n)::integer AS net
  FROM (
    SELECT unnest($9::bytea[]), 1
    UNION ALL
    SELECT unnest(tips), -1 FROM old
  ) AS move (entry_id, n)
  WHERE (SELECT outcome FROM found) = 'fits'
  GROUP BY entry_id
  HAVING sum(n) <> 0
),
known AS MATERIALIZED (
  SELECT entry_id, refs
  FROM {prefix}_entries
  WHERE entry_id = ANY (ARRAY(SELECT entry_id FROM moves))
  ORDER BY entry_id
  FOR UPDATE
),
bases AS MATERIALIZED (
  SELECT entry_id, position FROM {prefix}_entries WHERE entry_id = ANY ($12::bytea[])
),
decided AS MATERIALIZED (
  SELECT
    CASE
      WHEN outcome <> 'fits' THEN outcome
      WHEN EXISTS (
        SELECT FROM moves LEFT JOIN known ON known.entry_id = moves.entry_id WHERE coalesce(known.refs + net, 0) <= 0
      ) THEN 'look'
      WHEN EXISTS (SELECT FROM {prefix}_entries WHERE entry_id = ANY ($10::bytea[])) THEN 'look'
      WHEN EXISTS (
        SELECT FROM unnest($12::bytea[]) AS base (entry_id)
        LEFT JOIN bases ON bases.entry_id = base.entry_id
        WHERE base.entry_id IS NOT NULL AND bases.entry_id IS NULL
      ) THEN 'look'
      ELSE 'written'
    END AS outcome
  FROM found
),
made AS (
  INSERT INTO {prefix}_conversations (conversation_id, revision, scope, updated_at, expires_at, tips, data)
  SELECT
    $1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5), $6::bytea[], convert_from($7, 'UTF8')::json
  FROM decided
  WHERE outcome = 'written' AND $8::text IS NULL
  RETURNING revision
),
replaced AS (
  UPDATE {prefix}_conversations
  SET
    revision = $2, scope = $3, updated_at = $4, expires_at = clock_timestamp() + make_interval(secs => $5),
    tips = $6::bytea[], data = convert_from($7, 'UTF8')::json
  FROM decided
  WHERE conversation_id = $1 AND outcome = 'written' AND $8::text IS NOT NULL
  RETURNING revision
),
written AS (
  SELECT revision FROM made
  UNION ALL
  SELECT revision FROM replaced
),
moved AS (
  UPDATE {prefix}_entries AS entry
  SET refs = entry.refs + net
  FROM moves, written
  WHERE entry.entry_id = moves.entry_id
),
added AS (
  INSERT INTO {prefix}_entries (position, refs, entry_id, parent_id, library, places, data)
  SELECT
    coalesce(bases.position, -1) + ahead, new.refs, new.entry_id, parent_id, library, places::json,
    convert_from(data, 'UTF8')::json
  FROM written
  CROSS JOIN unnest(
    $10::bytea[], $11::bytea[], $12::bytea[], $13::integer[], $14::integer[], $15::text[], $16::text[], $17::bytea[]
  ) AS new (entry_id, parent_id, base_id, ahead, refs, library, places, data)
  LEFT JOIN bases ON bases.entry_id = base_id
  RETURNING refs
),
used AS (
  INSERT INTO {prefix}_blobs AS blob (hash, uses, data)
  SELECT new.hash, new.uses, new.data
  FROM written CROSS JOIN unnest($18::bytea[], $19::integer[], $20::bytea[]) AS new (hash, uses, data)
  WHERE (SELECT count(*) FROM added) > 0
  ORDER BY new.hash
  ON CONFLICT (hash) DO UPDATE SET uses = blob.uses + excluded.uses
)
SELECT outcome FROM decided

-- name: lock_name
-- Before `lock_conversation`, where there may be no row to lock: of two who make the same conversation, one waits here, before
-- it has locked anything. Released by the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('graphkeep conversation {prefix} ' || $1, 0))

-- name: lock_conversation
-- The first of the statements of a write that finds or leaves something unusual, all in one transaction. Each sees what was
-- committed before it, and what is locked stays as it is: so what they decide is true when it is written.
SELECT revision, tips, coalesce(expires_at <= clock_timestamp(), false)
FROM {prefix}_conversations
WHERE conversation_id = $1
FOR UPDATE

-- name: insert_conversation
-- After `lock_conversation` has found none, under the lock of the name.
INSERT INTO {prefix}_conversations (conversation_id, revision, scope, updated_at, expires_at, tips, data)
VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5), $6::bytea[], convert_from($7, 'UTF8')::json)

-- name: replace_conversation
-- Of a row that is locked, and has the revision that was expected, or has expired.
UPDATE {prefix}_conversations
SET
  revision = $2, scope = $3, updated_at = $4, expires_at = clock_timestamp() + make_interval(secs => $5),
  tips = $6::bytea[], data = convert_from($7, 'UTF8')::json
WHERE conversation_id = $1

-- name: delete_conversation
-- The row first: a save in flight ends before it, and then it has another revision.
DELETE FROM {prefix}_conversations WHERE conversation_id = $1 AND revision = $2 RETURNING tips

-- name: lock_entries
-- Those that may end with the entries $1, up to the first that others surely need, and those in $2. What comes back is the newest
-- version of each, for which it may have waited; one that has gone meanwhile does not. UNION, not UNION ALL: a chain that is
-- damaged may be a ring.
WITH RECURSIVE line AS (
  SELECT entry_id, parent_id, refs FROM {prefix}_entries WHERE entry_id = ANY ($1::bytea[])
  UNION
  SELECT before.entry_id, before.parent_id, before.refs
  FROM line
  CROSS JOIN LATERAL (
    SELECT entry_id, parent_id, refs FROM {prefix}_entries WHERE entry_id = line.parent_id LIMIT 1
  ) AS before
  WHERE line.refs <= greatest(cardinality($1), 1)
)
SELECT entry_id, parent_id, refs
FROM {prefix}_entries
WHERE entry_id = ANY (ARRAY(SELECT entry_id FROM line UNION SELECT unnest($2::bytea[])))
ORDER BY entry_id
FOR UPDATE

-- name: select_entries
-- What is there under the ids of new entries, to compare.
SELECT entry_id, parent_id, convert_to(data::text, 'UTF8') FROM {prefix}_entries WHERE entry_id = ANY ($1::bytea[])

-- name: insert_entries
-- As in `write_conversation`.
INSERT INTO {prefix}_entries (position, refs, entry_id, parent_id, library, places, data)
SELECT
  coalesce(base.position, -1) + ahead, new.refs, new.entry_id, new.parent_id, new.library, new.places::json,
  convert_from(new.data, 'UTF8')::json
FROM unnest(
  $1::bytea[], $2::bytea[], $3::bytea[], $4::integer[], $5::integer[], $6::text[], $7::text[], $8::bytea[]
) AS new (entry_id, parent_id, base_id, ahead, refs, library, places, data)
LEFT JOIN {prefix}_entries AS base ON base.entry_id = base_id

-- name: move_entries
-- Only of entries that are locked: the counter was decided on what came with the lock.
UPDATE {prefix}_entries AS entry
SET refs = new.refs
FROM unnest($1::bytea[], $2::integer[]) AS new (entry_id, refs)
WHERE entry.entry_id = new.entry_id

-- name: remove_entries
-- As `move_entries`. Says which blobs they needed.
WITH gone AS (
  DELETE FROM {prefix}_entries WHERE entry_id = ANY ($1::bytea[]) RETURNING places
)
SELECT places::text FROM gone WHERE places IS NOT NULL

-- name: count_blobs
-- After all else, and all of them in one order: those that are needed more often and those that are needed less. One that is
-- needed less is there; without its data it cannot come back, as `remove_blobs` follows.
INSERT INTO {prefix}_blobs AS blob (hash, uses, data)
SELECT hash, uses, data FROM unnest($1::bytea[], $2::integer[], $3::bytea[]) AS new (hash, uses, data)
ORDER BY hash
ON CONFLICT (hash) DO UPDATE SET uses = blob.uses + excluded.uses

-- name: remove_blobs
-- Under the locks of `count_blobs`: who needs one again waits, and then brings it anew.
DELETE FROM {prefix}_blobs WHERE hash = ANY ($1::bytea[]) AND uses <= 0

-- name: read_entries
-- From the entry $1 up, over what is small; then the payloads of those that are wanted, all at the places that the walk has
-- found. An entry whose position does not fit is none, and so a ring has an end. The one with a `lowest` is the last that the
-- walk has found, and how far it had to go. The caller puts the others in order: a sort here would write long histories to
-- the server's disk.
WITH RECURSIVE line AS (
  SELECT
    ctid AS place, entry_id, parent_id, position,
    greatest(CASE WHEN $2::bigint IS NULL THEN $3::bigint ELSE position - $2 + 1 END, 0) AS lowest
  FROM {prefix}_entries
  WHERE entry_id = $1
  UNION ALL
  SELECT before.place, before.entry_id, before.parent_id, before.position, lowest
  FROM line
  CROSS JOIN LATERAL (
    SELECT ctid AS place, entry_id, parent_id, position
    FROM {prefix}_entries
    WHERE entry_id = line.parent_id AND position = line.position - 1
    LIMIT 1
  ) AS before
  WHERE line.position > lowest
)
(
  SELECT entry_id, parent_id, position, lowest, NULL::text, NULL::text, NULL::bytea
  FROM line
  ORDER BY position
  LIMIT 1
)
UNION ALL
SELECT entry_id, NULL::bytea, position, NULL::bigint, library, places::text, convert_to(data::text, 'UTF8')
FROM {prefix}_entries
WHERE ctid = ANY (ARRAY(SELECT place FROM line WHERE position >= lowest AND ($4::bigint IS NULL OR position < $4)))

-- name: select_blobs
SELECT hash, data FROM {prefix}_blobs WHERE hash = ANY ($1::bytea[])

-- name: find_conversations
-- Last written first. {conditions} as for `find_runs`.
SELECT conversation_id, revision, scope, updated_at, tips, convert_to(data::text, 'UTF8')
FROM {prefix}_conversations
WHERE {conditions}
ORDER BY updated_slot DESC, updated_at DESC, conversation_id DESC
LIMIT $1

-- name: find_expired
-- First expired first.
SELECT conversation_id, revision, scope, updated_at, tips, convert_to(data::text, 'UTF8')
FROM {prefix}_conversations
WHERE {conditions}
ORDER BY expires_slot, expires_at, conversation_id
LIMIT $1

-- name: if_expired
-- The time is a sub-select, as in `find_candidates`.
expires_slot <= (SELECT clock_timestamp()) AND expires_at <= (SELECT clock_timestamp())

-- name: if_not_expired
coalesce(expires_at > (SELECT clock_timestamp()), true)

-- name: if_conversation
conversation_id = {n}

-- name: if_scope
scope = {n}

-- name: if_after
-- By the slot first, which is what the index has.
updated_slot <= {n} AND (updated_at, conversation_id) < ({n}, {m})
