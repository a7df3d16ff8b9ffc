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

-- name: pause
-- After `append_leaving`, in its transaction. An answer that came after the worker had looked makes
-- the run ready instead: it is never lost in the moment of pausing.
UPDATE {prefix}_runs
SET status = CASE WHEN answered > :answered THEN 'ready' ELSE 'paused' END,
  wake_at = CASE WHEN answered > :answered THEN NULL ELSE :wake_at END
WHERE run_id = :run_id

-- name: ask
-- With the commit of the step that asks. One that is there stays as it is, unless its answer did not
-- do: then it is opened again, as it is asked now. Gives the deadline of what is open with that.
INSERT INTO {prefix}_requests (
  run_id, request_id, name, node, task, status, prompt, payload, schema, deadline, created_at, error
)
VALUES (
  :run_id, :request_id, :name, :node, :task, 'open', :prompt, CAST(:payload AS TEXT),
  CAST(:schema AS TEXT), :deadline, :now, :error
)
ON CONFLICT (run_id, request_id) DO UPDATE
SET status = 'open', prompt = excluded.prompt, payload = excluded.payload, schema = excluded.schema,
  answer = NULL, answered_by = NULL, answered_at = NULL, closed_at = NULL, error = excluded.error
WHERE excluded.error IS NOT NULL
RETURNING deadline

-- name: close_request
-- With the commit of the step that needs it no more.
UPDATE {prefix}_requests
SET status = CASE status WHEN 'open' THEN 'closed' ELSE status END, closed_at = :now
WHERE run_id = :run_id AND request_id = :request_id AND closed_at IS NULL

-- name: close_requests
-- All of a run, in the transaction that cancels it.
UPDATE {prefix}_requests
SET status = CASE status WHEN 'open' THEN 'closed' ELSE status END, closed_at = :now
WHERE run_id = :run_id AND closed_at IS NULL

-- name: answer
-- Only an open one in time: of two who answer at once the first counts.
UPDATE {prefix}_requests
SET status = 'answered', answer = CAST(:answer AS TEXT), answered_by = :by, answered_at = :now
WHERE run_id = :run_id AND request_id = :request_id AND status = 'open'
  AND (deadline IS NULL OR deadline > :now)

-- name: count_answer
-- In the transaction of `answer`.
UPDATE {prefix}_runs
SET answered = answered + 1,
  status = CASE status WHEN 'paused' THEN 'ready' ELSE status END,
  updated_at = CASE status WHEN 'paused' THEN :now ELSE updated_at END,
  wake_at = NULL
WHERE run_id = :run_id

-- name: expire
-- Under the same lock as `answer`: a request is answered or expired, never both.
UPDATE {prefix}_requests SET status = 'expired'
WHERE run_id = :run_id AND status = 'open' AND deadline <= :now

-- name: drop_older
-- With history='latest', in the transaction of a full snapshot: from it on the run can be read.
DELETE FROM {prefix}_snapshots WHERE run_id = :run_id AND seq < :seq

-- name: claim
-- One transaction decides and writes, so of several claimers one wins. A live claim is taken
-- only by someone who names the epoch that he knows to be dead (NULL matches none). A live claim
-- with our own nonce is ours already, and stays as it is.
UPDATE {prefix}_runs
SET status = 'running', epoch = epoch + 1, owner = :owner, lease_until = :lease_until,
  nonce = :nonce, updated_at = :now, wake_at = NULL
WHERE run_id = :run_id
  AND NOT (status = 'running' AND nonce = :nonce)
  AND (:expected_seq IS NULL OR seq = :expected_seq)
  AND CASE status
    WHEN 'running' THEN lease_until IS NULL OR lease_until <= :now OR epoch = :expected_epoch
    ELSE status IN (SELECT value FROM json_each(:allow))
      OR (status = 'paused' AND wake_at IS NOT NULL AND wake_at <= :now)
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
SET status = 'cancelled', epoch = epoch + 1, owner = NULL, lease_until = NULL,
  updated_at = :now, wake_at = NULL
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

-- name: delete_requests
-- Together with the header, as the snapshots.
DELETE FROM {prefix}_requests WHERE run_id = :run_id

-- name: select_nonce
-- A header with the nonce of a write that did not match: an earlier attempt of the same write
-- went through.
SELECT nonce FROM {prefix}_runs WHERE run_id = :run_id

-- name: select_run
-- The header. Whether the lease has passed is decided with the clock of the same call.
SELECT run_id, graph, status, seq, full_seq, epoch, owner, lease_until, labels, error,
  parent_run_id, parent_seq, created_at, updated_at, answered, wake_at
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
  parent_run_id, parent_seq, created_at, updated_at, answered, wake_at
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
  parent_run_id, parent_seq, created_at, updated_at, answered, wake_at
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

-- name: find_candidates
-- What a worker can take: three indexes, of which none holds the runs that wait.
SELECT run_id, graph, status, seq, full_seq, epoch, owner, lease_until, labels, error,
  parent_run_id, parent_seq, created_at, updated_at, answered, wake_at
FROM {prefix}_runs
WHERE run_id IN (
    SELECT run_id FROM {prefix}_runs WHERE status = 'ready'
    UNION ALL
    SELECT run_id FROM {prefix}_runs
    WHERE status = 'running' AND (lease_until IS NULL OR lease_until <= :now)
    UNION ALL
    SELECT run_id FROM {prefix}_runs WHERE wake_at IS NOT NULL AND wake_at <= :now
  )
  AND graph IN (SELECT value FROM json_each(:graphs))
ORDER BY updated_at, run_id
LIMIT :limit

-- name: find_requests
-- Oldest first, with graph and labels of their runs. {which} is one of the conditions below, to the
-- letter, so that the planner finds its index; or 'true'.
SELECT request.run_id, request_id, name, node, task, request.status, CAST(prompt AS BLOB),
  CAST(payload AS BLOB), CAST(schema AS BLOB), deadline, request.created_at, CAST(answer AS BLOB),
  answered_by, answered_at, closed_at, request.error, graph, labels
FROM {prefix}_requests AS request JOIN {prefix}_runs AS run ON run.run_id = request.run_id
WHERE {which}
  AND (:request_id IS NULL OR request_id = :request_id)
  AND (:name IS NULL OR name = :name)
  AND (:graph IS NULL OR graph = :graph)
  AND (:status IS NULL OR request.status IN (SELECT value FROM json_each(:status)))
  AND (NOT :unused OR closed_at IS NULL)
  AND (:created_before IS NULL OR request.created_at < :created_before)
  AND (:labels IS NULL OR CASE WHEN json_valid(labels) THEN NOT EXISTS (
    SELECT 1 FROM json_each(:labels) AS wanted
    WHERE NOT EXISTS (
      SELECT 1 FROM json_each(run.labels) AS label
      WHERE label.key = wanted.key AND label.value = wanted.value
    )
  ) END)
  AND (
    :after IS NULL
    OR (request.created_at, request.run_id, request_id) > (:after, :after_run, :after_request)
  )
ORDER BY request.created_at, request.run_id, request_id
LIMIT :limit

-- name: if_of_run
-- Through the primary key.
request.run_id = :run_id

-- name: if_open
-- Through the index that is in order already.
request.status = 'open'
