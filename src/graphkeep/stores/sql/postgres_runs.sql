-- Time is the server's, and clock_timestamp() rather than now(): a statement may have waited for a row. A header's columns
-- stand in the same order wherever one is read, and so do a snapshot's. Payloads go in and out as the bytes they are.

-- name: select_database
-- For the messages of a store whose pool we did not make.
SELECT current_database()

-- name: find_meta
-- Looking comes first: a role that may not create tables works where they are. From pg_class and not from to_regclass(),
-- which after the wait of `lock_schema` still says what it said before.
SELECT EXISTS (SELECT FROM pg_class WHERE relname = '{prefix}_meta' AND pg_table_is_visible(oid))

-- name: select_version
SELECT value FROM {prefix}_meta WHERE name = 'schema_version'

-- name: lock_schema
-- One process at a time sets up or migrates; the others wait, and then find it done. CREATE … IF NOT EXISTS alone fails when
-- two run at once. Released by the end of the transaction, so it works behind pgbouncer.
SELECT pg_advisory_xact_lock(hashtextextended('graphkeep schema {prefix}', 0))

-- name: store_version
-- In the transaction that made the tables so: a reader never sees a version whose tables are not there.
INSERT INTO {prefix}_meta (name, value) VALUES ('schema_version', $1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: create_run
-- The run and its first snapshot appear together; of two who create a run one wins and the other changes nothing. The epoch
-- starts at the microseconds of its creation, so a run that is deleted and created again never meets an old epoch.
WITH clock AS MATERIALIZED (
  SELECT clock_timestamp() AS now
),
run AS (
  INSERT INTO {prefix}_runs (
    run_id, graph, status, seq, full_seq, epoch, owner, lease_until, nonce, labels, parent_run_id, parent_seq,
    created_at, updated_at
  )
  SELECT
    $1, $2, CASE WHEN $3::text IS NULL THEN 'ready' ELSE 'running' END, $9, $9,
    (extract(epoch FROM now) * 1000000)::bigint, $3,
    CASE WHEN $3::text IS NOT NULL THEN now + make_interval(secs => $4) END,
    $5, $6::text::jsonb, $7, $8, now, now
  FROM clock
  ON CONFLICT (run_id) DO NOTHING
  RETURNING *
),
first AS (
  INSERT INTO {prefix}_snapshots (
    run_id, seq, kind, event, data, node, task, started_at, duration, error, created_at
  )
  SELECT run_id, $9, $10, $11, convert_from($12, 'UTF8')::json, $13, $14, $15, $16, $17::text::json, created_at
  FROM run
)
SELECT
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until, false, labels::text, error::text, parent_run_id,
  parent_seq, created_at, updated_at, answered, wake_at, false, nonce
FROM run

-- name: append_commit
-- The fence: only the holder of this epoch, at this seq, and the snapshot goes in only if the header went along. Returns the
-- nonce of what went through. Several commits are this statement several times in one transaction, in the order of their
-- run ids, so that two batches never wait for each other's rows in a circle. {older} is `append_older`, or nothing.
WITH run AS (
  UPDATE {prefix}_runs
  SET
    seq = $3,
    full_seq = CASE $4::text WHEN 'full' THEN $3 ELSE full_seq END,
    nonce = $11,
    error = $10::text::json,
    updated_at = clock_timestamp(),
    status = $12,
    owner = CASE $12::text WHEN 'running' THEN owner END,
    lease_until = CASE $12::text WHEN 'running' THEN clock_timestamp() + make_interval(secs => $13) END
  WHERE run_id = $1 AND epoch = $2 AND seq = $3::bigint - 1 AND status = 'running'
  RETURNING run_id, nonce, updated_at
),
snapshot AS (
  INSERT INTO {prefix}_snapshots (
    run_id, seq, kind, event, data, node, task, started_at, duration, error, created_at
  )
  SELECT run_id, $3, $4, $5, convert_from($6, 'UTF8')::json, $7, $8, $9, $14, $10::text::json, updated_at
  FROM run
){older}
SELECT nonce FROM run

-- name: append_older
-- For history='latest': from a full snapshot on the run can be read, so in its own transaction what is older goes. Only if it
-- went through itself. $15 says for which of several commits.
,
older AS (
  DELETE FROM {prefix}_snapshots
  WHERE $15::boolean AND run_id = (SELECT run_id FROM run) AND seq < $3
)

-- name: append_asking
-- As `append_commit`, for a batch of which a commit asks, closes or pauses. What is asked has the time of its commit. If the
-- row that is locked here has an answer ($16) that the worker has not seen, the run becomes ready: an answer locks the row as
-- well, so it comes before, and is counted, or after, and finds the run paused. Only the deadlines of what is new or opened again count
-- for `wake_at`. A request that is there stays as it is, unless its answer did not do: then it is opened again.
WITH run AS (
  UPDATE {prefix}_runs
  SET
    seq = $3,
    full_seq = CASE $4::text WHEN 'full' THEN $3 ELSE full_seq END,
    nonce = $11,
    error = $10::text::json,
    (updated_at, status, owner, lease_until, wake_at) = (
      SELECT
        now,
        CASE WHEN $12::text = 'paused' AND answered > $16 THEN 'ready' ELSE $12 END,
        CASE $12::text WHEN 'running' THEN owner END,
        CASE $12::text WHEN 'running' THEN now + make_interval(secs => $13) END,
        CASE
          WHEN $12::text = 'paused' AND answered <= $16 THEN least(
            $17::timestamptz,
            (
              SELECT
                min(CASE WHEN known.run_id IS NULL THEN now + make_interval(secs => timeout) ELSE known.deadline END)
              FROM unnest($18::text[], $25::double precision[], $26::text[]) AS ask (id, timeout, failure)
              LEFT JOIN {prefix}_requests AS known ON known.run_id = $1 AND known.request_id = id
              WHERE known.run_id IS NULL OR failure IS NOT NULL
            )
          )
        END
      FROM (SELECT clock_timestamp() AS now) AS clock
    )
  WHERE run_id = $1 AND epoch = $2 AND seq = $3::bigint - 1 AND status = 'running'
  RETURNING run_id, nonce, updated_at
),
snapshot AS (
  INSERT INTO {prefix}_snapshots (
    run_id, seq, kind, event, data, node, task, started_at, duration, error, created_at
  )
  SELECT run_id, $3, $4, $5, convert_from($6, 'UTF8')::json, $7, $8, $9, $14, $10::text::json, updated_at
  FROM run
),
asked AS (
  INSERT INTO {prefix}_requests AS request (
    run_id, request_id, name, node, task, status, prompt, payload, schema, deadline, created_at, closed_at, error
  )
  SELECT
    run_id, id, name, node, task, CASE WHEN id = ANY ($27::text[]) THEN 'closed' ELSE 'open' END, prompt::json,
    convert_from(payload, 'UTF8')::json, convert_from(schema, 'UTF8')::json,
    updated_at + make_interval(secs => timeout), updated_at, CASE WHEN id = ANY ($27) THEN updated_at END, error::json
  FROM run, unnest(
    $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::bytea[], $24::bytea[],
    $25::double precision[], $26::text[]
  ) AS ask (id, name, node, task, prompt, payload, schema, timeout, error)
  ON CONFLICT (run_id, request_id) DO UPDATE
  SET
    status = 'open', prompt = excluded.prompt, payload = excluded.payload, schema = excluded.schema, answer = NULL,
    answered_by = NULL, answered_at = NULL, closed_at = NULL, error = excluded.error
  WHERE excluded.error IS NOT NULL
  RETURNING 1
),
closed AS (
  UPDATE {prefix}_requests AS request
  SET status = CASE status WHEN 'open' THEN 'closed' ELSE status END, closed_at = updated_at
  FROM run
  -- What is asked is asked first.
  WHERE (SELECT count(*) FROM asked) >= 0
    AND request.run_id = run.run_id AND request_id = ANY ($27::text[]) AND closed_at IS NULL
){older}
SELECT nonce FROM run

-- name: select_nonces
-- A header with the nonce of a commit that did not match: an earlier attempt of the same commit went through. A statement of
-- its own: inside `append_commit` it would see the row as it was before the wait for it.
SELECT nonce FROM {prefix}_runs WHERE run_id = ANY ($1::text[])

-- name: claim_run
-- One statement decides and writes, so of several claimers one wins. A live claim is taken only by someone who names the
-- epoch that he knows to be dead (NULL matches none). A paused run is free once its `wake_at` has passed. A claim with our own
-- nonce is ours already and stays as it is. Gives the header, as the row -1, and the snapshots from the newest full one on,
-- unless the caller has read them before. The caller puts them in order.
WITH run AS (
  UPDATE {prefix}_runs
  SET
    status = 'running',
    epoch = epoch + 1,
    owner = $2,
    lease_until = clock_timestamp() + make_interval(secs => $3),
    nonce = $4,
    wake_at = NULL,
    updated_at = clock_timestamp()
  WHERE run_id = $1
    AND nonce <> $4
    AND ($5::bigint IS NULL OR seq = $5)
    AND CASE status
      WHEN 'running' THEN coalesce(lease_until <= clock_timestamp(), true) OR epoch = $6
      ELSE status = ANY ($7::text[]) OR (status = 'paused' AND coalesce(wake_at <= clock_timestamp(), false))
    END
  RETURNING *
)
SELECT
  -1::bigint, NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::text, NULL::timestamptz, NULL::double precision,
  NULL::text, NULL::timestamptz,
  ROW(
    run_id, graph, status, seq, full_seq, epoch, owner, lease_until, false, labels::text, error::text, parent_run_id,
    parent_seq, created_at, updated_at, answered, wake_at, false, nonce
  )
FROM run
UNION ALL
SELECT
  seq, kind, event, convert_to(data::text, 'UTF8'), node, task, started_at, duration, error::text, created_at,
  NULL::record
FROM {prefix}_snapshots
WHERE run_id = $1 AND $5::bigint IS NULL AND seq >= (SELECT full_seq FROM run)

-- name: renew_claim
-- The lease only, and only the holder's.
UPDATE {prefix}_runs SET lease_until = clock_timestamp() + make_interval(secs => $3)
WHERE run_id = $1 AND epoch = $2 AND status = 'running'
RETURNING run_id, epoch

-- name: release_claim
-- Only the holder's: who lost the claim changes nothing.
UPDATE {prefix}_runs SET status = 'ready', owner = NULL, lease_until = NULL, updated_at = clock_timestamp()
WHERE run_id = $1 AND epoch = $2 AND status = 'running'

-- name: cancel_run
-- The epoch is raised, so the next commit of whoever holds the run is refused. Twice changes nothing.
UPDATE {prefix}_runs
SET
  status = 'cancelled', epoch = epoch + 1, owner = NULL, lease_until = NULL, wake_at = NULL,
  updated_at = clock_timestamp()
WHERE run_id = $1 AND status NOT IN ('done', 'cancelled')
RETURNING
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until, false, labels::text, error::text, parent_run_id,
  parent_seq, created_at, updated_at, answered, wake_at, false, nonce

-- name: close_requests
-- After `cancel_run`, in its transaction: as a statement of its own it also sees what the last commit asked meanwhile.
UPDATE {prefix}_requests
SET status = CASE status WHEN 'open' THEN 'closed' ELSE status END, closed_at = clock_timestamp()
WHERE run_id = $1 AND closed_at IS NULL

-- name: delete_run
-- The header first: a commit in flight ends before it, or finds no header. A live claim is respected unless $2 says otherwise.
DELETE FROM {prefix}_runs
WHERE run_id = $1 AND ($2 OR status <> 'running' OR coalesce(lease_until <= clock_timestamp(), true))
RETURNING run_id

-- name: delete_snapshots
-- After `delete_run`, in its transaction: as a statement of its own it also sees what the last commit wrote meanwhile.
DELETE FROM {prefix}_snapshots WHERE run_id = $1

-- name: delete_requests
-- As `delete_snapshots`.
DELETE FROM {prefix}_requests WHERE run_id = $1

-- name: lock_run
-- Before `answer_request`, in its transaction: what follows is decided on what is there once every other write of the run has
-- ended.
SELECT run_id FROM {prefix}_runs WHERE run_id = $1 FOR UPDATE

-- name: answer_request
-- Only an open one: of two who answer at once the first counts; and only in time. With it the run is counted up and made ready,
-- and whoever listens is told, all of it when the transaction ends.
WITH request AS (
  UPDATE {prefix}_requests
  SET (status, answer, answered_by, answered_at) = (
    SELECT
      CASE WHEN late THEN 'expired' ELSE 'answered' END,
      CASE WHEN NOT late THEN convert_from($3, 'UTF8')::json END,
      CASE WHEN NOT late THEN $4::text END,
      CASE WHEN NOT late THEN now END
    FROM (SELECT clock_timestamp() AS now) AS clock, LATERAL (SELECT coalesce(deadline <= now, false) AS late) AS decided
  )
  WHERE run_id = $1 AND request_id = $2 AND status = 'open'
  RETURNING run_id, status, answered_at
),
run AS (
  UPDATE {prefix}_runs AS run
  SET
    answered = answered + 1,
    status = CASE run.status WHEN 'paused' THEN 'ready' ELSE run.status END,
    wake_at = CASE WHEN run.status <> 'paused' THEN wake_at END,
    updated_at = CASE run.status WHEN 'paused' THEN answered_at ELSE updated_at END
  FROM request
  WHERE run.run_id = request.run_id AND request.status = 'answered'
  RETURNING run.run_id, run.tableoid
)
SELECT pg_notify('{prefix}_answers_' || tableoid, run_id) FROM run

-- name: expire_requests
-- Under the lock of the run, as an answer: a request is answered or expired, never both.
WITH run AS (
  SELECT run_id FROM {prefix}_runs WHERE run_id = $1 FOR UPDATE
)
UPDATE {prefix}_requests AS request
SET status = 'expired'
FROM run
WHERE request.run_id = run.run_id AND status = 'open' AND deadline <= clock_timestamp()

-- name: answers_channel
-- Where answers are told of, and whether this connection hears it: behind a pooler such as pgbouncer the server has another
-- process than the one that was named when we connected, and may have yet another for the next statement. Channels belong to
-- the database: the number of the table tells apart the schemas of a search_path.
SELECT '{prefix}_answers_' || '{prefix}_runs'::regclass::oid, pg_backend_pid()

-- name: select_run
SELECT
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until,
  status = 'running' AND coalesce(lease_until <= clock_timestamp(), true), labels::text, error::text, parent_run_id, parent_seq,
  created_at, updated_at, answered, wake_at, status = 'paused' AND coalesce(wake_at <= clock_timestamp(), false), nonce
FROM {prefix}_runs
WHERE run_id = $1

-- name: read_run
-- One statement, so header and snapshots are of the same moment. The header is the row -1; the snapshots begin with the
-- newest full one not after $2, and carry what a document is put together from. The caller puts them in order: a sort here
-- would write large documents to the server's disk.
WITH run AS MATERIALIZED (
  SELECT * FROM {prefix}_runs WHERE run_id = $1
)
SELECT
  -1::bigint, NULL::text, NULL::bytea,
  ROW(
    run_id, graph, status, seq, full_seq, epoch, owner, lease_until,
    status = 'running' AND coalesce(lease_until <= clock_timestamp(), true), labels::text, error::text, parent_run_id, parent_seq,
    created_at, updated_at, answered, wake_at, status = 'paused' AND coalesce(wake_at <= clock_timestamp(), false), nonce
  )
FROM run
UNION ALL
SELECT seq, kind, convert_to(data::text, 'UTF8'), NULL::record
FROM {prefix}_snapshots
WHERE run_id = $1
  AND seq >= CASE
    WHEN $2::bigint IS NULL THEN (SELECT full_seq FROM run)
    ELSE (
      SELECT seq FROM {prefix}_snapshots
      WHERE run_id = $1 AND seq <= $2 AND kind = 'full'
      ORDER BY seq DESC
      LIMIT 1
    )
  END
  AND seq <= coalesce($2, (SELECT seq FROM run))

-- name: select_seqs
-- Without the payloads: for finding the one that the server cannot read.
SELECT seq FROM {prefix}_snapshots WHERE run_id = $1 ORDER BY seq

-- name: select_snapshots
SELECT
  seq, kind, event, convert_to(data::text, 'UTF8'), node, task, started_at, duration, error::text, created_at
FROM {prefix}_snapshots
WHERE run_id = $1 AND seq > $2
ORDER BY seq
LIMIT $3

-- name: find_runs
-- Newest first. {conditions} are some of the statements below, and {n} the number of their parameter: a condition that is not
-- asked for is not there, so that a plan made once for all parameters can use the index of the one that is.
SELECT
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until,
  status = 'running' AND coalesce(lease_until <= clock_timestamp(), true), labels::text, error::text, parent_run_id, parent_seq,
  created_at, updated_at, answered, wake_at, status = 'paused' AND coalesce(wake_at <= clock_timestamp(), false), nonce
FROM {prefix}_runs
WHERE {conditions}
ORDER BY created_at DESC, run_id DESC
LIMIT $1

-- name: find_candidates
-- What a worker can take, longest untouched first: three parts, of which none reads the runs that wait. The time is a
-- sub-select: one that is the same for all rows can be looked up in an index. The status of those that are due is hidden from
-- the planner, which without statistics would rather read all that are paused.
SELECT
  run_id, graph, status, seq, full_seq, epoch, owner, lease_until,
  status = 'running' AND coalesce(lease_until <= clock_timestamp(), true), labels::text, error::text, parent_run_id, parent_seq,
  created_at, updated_at, answered, wake_at, status = 'paused' AND coalesce(wake_at <= clock_timestamp(), false), nonce
FROM (
  SELECT * FROM {prefix}_runs WHERE status = 'ready'
  UNION ALL
  SELECT * FROM {prefix}_runs
  WHERE status = 'running' AND coalesce(lease_until <= (SELECT clock_timestamp()), true)
  UNION ALL
  SELECT * FROM {prefix}_runs WHERE wake_at <= (SELECT clock_timestamp()) AND coalesce(status = 'paused', false)
) AS run
WHERE graph = ANY ($1::text[])
ORDER BY updated_at, run_id
LIMIT $2

-- name: find_requests
-- Longest waiting first, with graph and labels of their runs. {conditions} as for `find_runs`.
SELECT
  request.run_id, request_id, name, node, task, request.status, prompt::text, convert_to(payload::text, 'UTF8'),
  convert_to(schema::text, 'UTF8'), deadline, request.created_at, convert_to(answer::text, 'UTF8'), answered_by, answered_at,
  closed_at, request.error::text, graph, labels::text
FROM {prefix}_requests AS request JOIN {prefix}_runs AS run ON run.run_id = request.run_id
WHERE {conditions}
ORDER BY request.created_at, request.run_id, request_id
LIMIT $1

-- name: if_graph
graph = {n}

-- name: if_status
status = {n}

-- name: if_statuses
status = ANY ({n}::text[])

-- name: if_interrupted
status = 'running' AND coalesce(lease_until <= clock_timestamp(), true)

-- name: if_not_interrupted
NOT (status = 'running' AND coalesce(lease_until <= clock_timestamp(), true))

-- name: if_labels
labels @> {n}::text::jsonb

-- name: if_parent
parent_run_id = {n}

-- name: if_updated_before
updated_at < {n}

-- name: if_after
(created_at, run_id) < ({n}, {m})

-- name: find_requests_alone
-- As find_requests, where nothing of the runs is asked: their headers are looked up for the page alone, whatever the planner
-- knows of the tables.
SELECT
  request.run_id, request_id, name, node, task, request.status, prompt::text, convert_to(payload::text, 'UTF8'),
  convert_to(schema::text, 'UTF8'), deadline, request.created_at, convert_to(answer::text, 'UTF8'), answered_by, answered_at,
  closed_at, request.error::text, graph, labels::text
FROM (
  SELECT * FROM {prefix}_requests AS request
  WHERE {conditions}
  ORDER BY created_at, run_id, request_id
  LIMIT $1
) AS request
JOIN {prefix}_runs AS run ON run.run_id = request.run_id
ORDER BY request.created_at, request.run_id, request_id

-- name: if_request_run
request.run_id = {n}

-- name: if_request
request_id = {n}

-- name: if_name
name = {n}

-- name: if_open
-- To the letter, as in the index of open requests: a parameter would not find it.
request.status = 'open'

-- name: if_request_statuses
request.status = ANY ({n}::text[])

-- name: if_unused
closed_at IS NULL

-- name: if_created_before
request.created_at < {n}

-- name: if_request_after
(request.created_at, request.run_id, request_id) > ({n}, {m}, {k})
