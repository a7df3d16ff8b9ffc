-- Gives a claim up.
--
-- Invariant: only the holder of the run's epoch makes it `ready`; for everybody else nothing
-- happens.
--
-- KEYS: run, index of `running`, index of `ready`.  ARGV: run id, epoch.  Reply: 'released' or
--   'lost'.
local run, running, ready = unpack(KEYS)
local found = redis.call('HMGET', run, 'status', 'epoch', 'created_at')
if found[1] ~= 'running' or found[2] ~= ARGV[2] then return 'lost' end
check_indexes(running, ready)
-- Removing comes first: it is allowed where the memory is full, and then so is what follows.
redis.call('HDEL', run, 'owner', 'lease_until')
redis.call('HSET', run, 'status', 'ready', 'updated_at', whole(now))
move(ARGV[1], found[3], running, ready)
return 'released'
