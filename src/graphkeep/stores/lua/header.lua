-- Part of other scripts, after clock.lua: the header of a run as a reply.

-- The fields in the order in which `redis_keys.read_header` takes them apart.
local FIELDS = {
  'graph', 'status', 'seq', 'full_seq', 'epoch', 'owner', 'lease_until', 'labels', 'error',
  'parent_run_id', 'parent_seq', 'created_at', 'updated_at', 'answered', 'wake_at',
}

-- One JSON array, with the time at its end: a client reads one long reply faster than many short
-- ones.
local function header(run)
  local values = redis.call('HMGET', run, unpack(FIELDS))
  values[#values + 1] = whole(now)
  return cjson.encode(values)
end
