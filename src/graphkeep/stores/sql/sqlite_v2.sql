-- The schema, version 2: requests and their answers.

-- name: add_answered
-- Raised by every answer. In no index: a step does not change it.
ALTER TABLE {prefix}_runs ADD COLUMN answered INTEGER NOT NULL DEFAULT 0

-- name: add_wake_at
-- Of a paused run, the first deadline of its requests.
ALTER TABLE {prefix}_runs ADD COLUMN wake_at INTEGER

-- name: create_requests
-- One row a request. Prompt, payload, schema and answer are JSON: a prompt may hold what TEXT does not.
CREATE TABLE {prefix}_requests (
  run_id TEXT NOT NULL,
  request_id TEXT NOT NULL,
  name TEXT NOT NULL,
  node TEXT NOT NULL,
  task TEXT NOT NULL,
  status TEXT NOT NULL,
  prompt TEXT,
  payload TEXT NOT NULL,
  schema TEXT NOT NULL,
  deadline INTEGER,
  created_at INTEGER NOT NULL,
  answer TEXT,
  answered_by TEXT,
  answered_at INTEGER,
  closed_at INTEGER,
  error TEXT,
  PRIMARY KEY (run_id, request_id)
)

-- name: index_open
-- What is open over all runs, longest waiting first, whatever mass of requests has been answered.
CREATE INDEX {prefix}_requests_open ON {prefix}_requests (created_at, run_id, request_id)
WHERE status = 'open'

-- name: index_wake
-- Which paused runs are due, without looking at those that wait.
CREATE INDEX {prefix}_runs_wake ON {prefix}_runs (wake_at) WHERE wake_at IS NOT NULL

-- name: index_ready
-- Which runs wait for a worker, without looking at those that are running or paused.
CREATE INDEX {prefix}_runs_ready ON {prefix}_runs (run_id) WHERE status = 'ready'

-- name: index_running
-- Those whose lease has passed are among these. They change with every step: only the status is in
-- the index.
CREATE INDEX {prefix}_runs_running ON {prefix}_runs (run_id) WHERE status = 'running'
