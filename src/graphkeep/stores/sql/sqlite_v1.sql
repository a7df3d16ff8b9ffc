-- The schema, version 1. Times are integers: microseconds since 1970, UTC. JSON is TEXT, for
-- json_extract.

-- name: create_meta
-- One row: the schema version, written by the code after the statements of that version.
CREATE TABLE {prefix}_meta (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
)

-- name: create_runs
-- One row a run: its header. Nothing that a step changes is in an index, so a step writes one
-- page of it.
CREATE TABLE {prefix}_runs (
  run_id TEXT NOT NULL PRIMARY KEY,
  graph TEXT,
  status TEXT NOT NULL,
  seq INTEGER NOT NULL,
  full_seq INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  owner TEXT,
  lease_until INTEGER,
  nonce TEXT NOT NULL,
  labels TEXT NOT NULL,
  error TEXT,
  parent_run_id TEXT,
  parent_seq INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
)

-- name: create_snapshots
-- One row a commit, never updated. Not WITHOUT ROWID: there a payload above a quarter of a page
-- takes a page of its own.
CREATE TABLE {prefix}_snapshots (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  event TEXT NOT NULL,
  data TEXT NOT NULL,
  node TEXT,
  task TEXT,
  started_at INTEGER,
  duration REAL,
  error TEXT,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (run_id, seq)
)

-- name: index_newest
-- Listing newest first, a page at a time.
CREATE INDEX {prefix}_runs_newest ON {prefix}_runs (created_at, run_id)

-- name: index_unfinished
-- Listing what runs, waits or failed must not cost what a mass of finished runs costs.
CREATE INDEX {prefix}_runs_unfinished ON {prefix}_runs (created_at, run_id) WHERE status <> 'done'
