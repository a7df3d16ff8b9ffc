-- Every statement that changes something runs between BEGIN IMMEDIATE and COMMIT. Times are
-- integers: microseconds since 1970. The columns of a header, and of a snapshot, stand in the
-- same order wherever they are read.

-- name: find_meta
-- Tells a database without our tables from one with them, without touching it.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{prefix}_meta'

-- name: select_version
-- As text: what is no number was not written by us.
SELECT value FROM {prefix}_meta WHERE name = 'schema_version'

-- name: store_version
-- In the transaction that made the tables so: a reader never sees a version whose tables are not
-- there.
INSERT INTO {prefix}_meta (name, value) VALUES ('schema_version', :version)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: create_run
-- Of two who create a run one wins; the other changes nothing. The epoch starts at the
-- microseconds of its creation, so a run that is deleted and created again never meets an old
-- epoch.
INSERT INTO {prefix}_runs (
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until, nonce, labels,
  parent_run_id, parent_seq, created_at, updated_at
)
VALUES (
  :run_id, :graph, :status, :seq, :seq, :now, :owner, :lease_until, :nonce, :labels,
  :parent_run_id, :parent_seq, :now, :now
)
ON CONFLICT (run_id) DO NOTHING

-- name: insert_snapshot
-- A snapshot that is there is never written over: the primary key refuses it. The payload comes
-- as bytes and is stored as text, without being decoded on the way.
INSERT INTO {prefix}_snapshots (
  run_id, seq, kind, event, data, node, task, started_at, duration, error, created_at
)
VALUES (
  :run_id, :seq, :kind, :event, CAST(:data AS TEXT), :node, :task, :started_at, :duration, :error,
  :now
)

-- name: append_running
-- The fence: only the holder of this epoch, at this seq. Status and owner stay, and are not
-- mentioned: naming the status would rewrite the index of unfinished runs at every step.
UPDATE {prefix}_runs
SET seq = :seq, full_seq = CASE :kind WHEN 'full' THEN :seq ELSE full_seq END, nonce = :nonce,
  error = :error, updated_at = :now, lease_until = :lease_until
WHERE run_id = :run_id AND epoch = :epoch AND seq = :before AND status = 'running'

-- name: append_leaving
-- The same fence; the claim is given up with the commit.
UPDATE {prefix}_runs
SET seq = :seq, full_seq = CASE :kind WHEN 'full' THEN :seq ELSE full_seq END, nonce = :nonce,
  error = :error, updated_at = :now, lease_until = NULL, owner = NULL, status = :status
WHERE run_id = :run_id AND epoch = :epoch AND seq = :before AND status = 'running'

-- name: drop_older
-- With history='latest', in the transaction of a full snapshot: from it on the run can be read.
DELETE FROM {prefix}_snapshots WHERE run_id = :run_id AND seq < :seq

-- name: claim
-- One transaction decides and writes, so of several claimers one wins. A live claim is taken
-- only by someone who names the epoch that he knows to be dead (NULL matches none). A live claim
-- with our own nonce is ours already, and stays as it is.
UPDATE {prefix}_runs
SET status = 'running', epoch = epoch + 1, owner = :owner, lease_until = :lease_until,
  nonce = :nonce, updated_at = :now
WHERE run_id = :run_id
  AND NOT (status = 'running' AND nonce = :nonce)
  AND (:expected_seq IS NULL OR seq = :expected_seq)
  AND CASE status
    WHEN 'running' THEN lease_until IS NULL OR lease_until <= :now OR epoch = :expected_epoch
    ELSE status IN (SELECT value FROM json_each(:allow))
  END

-- name: renew
-- The lease only, and only the holder's.
UPDATE {prefix}_runs SET lease_until = :lease_until
WHERE run_id = :run_id AND epoch = :epoch AND status = 'running'

-- name: release
-- Only the holder's: who lost the claim changes nothing.
UPDATE {prefix}_runs
SET status = 'ready', owner = NULL, lease_until = NULL, updated_at = :now
WHERE run_id = :run_id AND epoch = :epoch AND status = 'running'

-- name: cancel
-- The epoch is raised, so the next commit of whoever holds the run is refused. Twice changes
-- nothing.
UPDATE {prefix}_runs
SET status = 'cancelled', epoch = epoch + 1, owner = NULL, lease_until = NULL, updated_at = :now
WHERE run_id = :run_id AND status NOT IN ('done', 'cancelled')

-- name: delete_run
-- A live claim is respected unless :force says otherwise. The snapshots go in the same
-- transaction.
DELETE FROM {prefix}_runs
WHERE run_id = :run_id
  AND (:force OR status <> 'running' OR lease_until IS NULL OR lease_until <= :now)

-- name: delete_snapshots
-- Only together with the header: a new run of the same id finds no old snapshot in its way.
DELETE FROM {prefix}_snapshots WHERE run_id = :run_id

-- name: select_nonce
-- A header with the nonce of a write that did not match: an earlier attempt of the same write
-- went through.
SELECT nonce FROM {prefix}_runs WHERE run_id = :run_id

-- name: select_run
-- The header. Whether the lease has passed is decided with the clock of the same call.
SELECT run_id, graph, status, seq, full_seq, epoch, owner, lease_until, labels, error,
  parent_run_id, parent_seq, created_at, updated_at
FROM {prefix}_runs
WHERE run_id = :run_id

-- name: select_full_seq
-- Where reading the run at :last starts.
SELECT max(seq) FROM {prefix}_snapshots WHERE run_id = :run_id AND seq <= :last AND kind = 'full'

-- name: select_snapshots
-- Oldest first, by the primary key.
SELECT seq, kind, event, CAST(data AS BLOB), node, task, started_at, duration, error, created_at
FROM {prefix}_snapshots
WHERE run_id = :run_id AND seq BETWEEN :first AND :last
ORDER BY seq
LIMIT :limit

-- name: select_data
-- What a document is put together from. A BLOB whatever a foreign hand stored: the document says
-- what is wrong with it.
SELECT seq, kind, CAST(data AS BLOB)
FROM {prefix}_snapshots
WHERE run_id = :run_id AND seq BETWEEN :first AND :last
ORDER BY seq

-- name: find_runs
-- Newest first, from (:created_at, :run_id) on. Labels that a foreign hand made unreadable match
-- nothing and stop nothing.
SELECT run_id, graph, status, seq, full_seq, epoch, owner, lease_until, labels, error,
  parent_run_id, parent_seq, created_at, updated_at
FROM {prefix}_runs AS run
WHERE (created_at, run_id) < (:created_at, :run_id)
  AND (:status IS NULL OR status IN (SELECT value FROM json_each(:status)))
  AND (:graph IS NULL OR graph = :graph)
  AND (:parent_run_id IS NULL OR parent_run_id = :parent_run_id)
  AND (:updated_before IS NULL OR updated_at < :updated_before)
  AND (
    :interrupted IS NULL
    OR (status = 'running' AND coalesce(lease_until <= :now, 1)) = :interrupted
  )
  AND (:labels IS NULL OR CASE WHEN json_valid(labels) THEN NOT EXISTS (
    SELECT 1 FROM json_each(:labels) AS wanted
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(run.labels) AS label
      WHERE label.key = wanted.key AND label.value = wanted.value
    )
  ) END)
ORDER BY created_at DESC, run_id DESC

-- name: find_unfinished
-- As find_runs, through the index of unfinished runs: for a query that excludes 'done'.
SELECT run_id, graph, status, seq, full_seq, epoch, owner, lease_until, labels, error,
  parent_run_id, parent_seq, created_at, updated_at
FROM {prefix}_runs AS run
WHERE status <> 'done'
  AND (created_at, run_id) < (:created_at, :run_id)
  AND (:status IS NULL OR status IN (SELECT value FROM json_each(:status)))
  AND (:graph IS NULL OR graph = :graph)
  AND (:parent_run_id IS NULL OR parent_run_id = :parent_run_id)
  AND (:updated_before IS NULL OR updated_at < :updated_before)
  AND (
    :interrupted IS NULL
    OR (status = 'running' AND coalesce(lease_until <= :now, 1)) = :interrupted
  )
  AND (:labels IS NULL OR CASE WHEN json_valid(labels) THEN NOT EXISTS (
    SELECT 1 FROM json_each(:labels) AS wanted
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(run.labels) AS label
      WHERE label.key = wanted.key AND label.value = wanted.value
    )
  ) END)
ORDER BY created_at DESC, run_id DESC
