-- The schema, version 2: requests and their answers.

-- name: add_answers
-- `answered` is raised by every answer; `wake_at` is, of a paused run, the first deadline of its requests. A step changes
-- neither, and neither makes the server write the table anew.
ALTER TABLE {prefix}_runs
ADD COLUMN answered bigint NOT NULL DEFAULT 0,
ADD COLUMN wake_at timestamptz

-- name: create_requests
-- One row a request. Whoever writes one has locked the row of its run before: so they never wait for each other in a circle.
-- Prompt and error are JSON strings: they may hold what `text` does not. No foreign key, as for snapshots.
CREATE TABLE {prefix}_requests (
  run_id text COLLATE "C" NOT NULL,
  request_id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  node text NOT NULL,
  task text NOT NULL,
  status text NOT NULL,
  prompt json,
  payload json NOT NULL,
  schema json NOT NULL,
  deadline timestamptz,
  created_at timestamptz NOT NULL,
  answer json,
  answered_by text,
  answered_at timestamptz,
  closed_at timestamptz,
  error json,
  PRIMARY KEY (run_id, request_id)
)

-- name: compress_with_lz4
-- As the payloads of snapshots, where the server was built with it.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
    ALTER TABLE {prefix}_requests
    ALTER COLUMN payload SET COMPRESSION lz4,
    ALTER COLUMN schema SET COMPRESSION lz4,
    ALTER COLUMN answer SET COMPRESSION lz4;
  END IF;
END
$$

-- name: index_open
-- What is open over all runs, longest waiting first, whatever mass of requests has been answered.
CREATE INDEX {prefix}_requests_open ON {prefix}_requests (created_at, run_id, request_id) WHERE status = 'open'

-- name: index_wake
-- Which paused runs are due, without looking at those that wait.
CREATE INDEX {prefix}_runs_wake ON {prefix}_runs (wake_at) WHERE wake_at IS NOT NULL
