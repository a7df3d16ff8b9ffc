-- The schema, version 1. Its statements run in one transaction, under the lock of `lock_schema`.

-- name: create_meta
-- One row: the schema version, written by the code after the statements of that version.
CREATE TABLE {prefix}_meta (
  name text PRIMARY KEY,
  value text NOT NULL
)

-- name: create_runs
-- One row a run: its header. No index holds a column that changes from one step of a running run to the next, and the pages
-- keep room, so that the update of a step stays on its page and touches no index (HOT). Ids sort by their bytes, as they do
-- in every other store.
CREATE TABLE {prefix}_runs (
  run_id text COLLATE "C" PRIMARY KEY,
  graph text,
  status text NOT NULL,
  seq bigint NOT NULL,
  full_seq bigint NOT NULL,
  epoch bigint NOT NULL,
  owner text,
  lease_until timestamptz,
  nonce text NOT NULL,
  labels jsonb NOT NULL,
  error json,
  parent_run_id text,
  parent_seq bigint,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
)
WITH (fillfactor = 70)

-- name: create_snapshots
-- One row a commit, never updated. The payload is `json`, which keeps every byte; `jsonb` does not keep \u0000, lone
-- surrogates or the spelling of numbers. No foreign key: its check would cost every commit, and `delete_run` keeps the order
-- that makes one unnecessary.
CREATE TABLE {prefix}_snapshots (
  run_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  kind text NOT NULL,
  event text NOT NULL,
  data json NOT NULL,
  node text,
  task text,
  started_at timestamptz,
  duration double precision,
  error json,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (run_id, seq)
)

-- name: compress_with_lz4
-- Where the server was built with it: the default, pglz, costs several times the processor time.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
    ALTER TABLE {prefix}_snapshots ALTER COLUMN data SET COMPRESSION lz4;
  END IF;
END
$$

-- name: index_newest
-- Listing newest first, a page at a time.
CREATE INDEX {prefix}_runs_newest ON {prefix}_runs (created_at, run_id)

-- name: index_status
-- Finding what is ready or interrupted must not cost what a mass of finished runs costs.
CREATE INDEX {prefix}_runs_status ON {prefix}_runs (status, created_at, run_id)

-- name: index_labels
-- For `labels @> …`, the only question that is asked of labels.
CREATE INDEX {prefix}_runs_labels ON {prefix}_runs USING gin (labels jsonb_path_ops)

-- name: index_parent
-- Few runs are forks; the others take no room in it.
CREATE INDEX {prefix}_runs_parent ON {prefix}_runs (parent_run_id) WHERE parent_run_id IS NOT NULL
