-- Part of other scripts: which index a run is in.
--
-- Invariant: a run is in `created`, and in the index of its status and no other; the score is its
-- time of creation.

-- A script is not rolled back: a key of another kind must fail it before it writes anything.
local function check_indexes(...)
  for _, index in ipairs({...}) do redis.call('ZCARD', index) end
end

local function move(run_id, created_at, from, to)
  redis.call('ZREM', from, run_id)
  redis.call('ZADD', to, created_at, run_id)
end
