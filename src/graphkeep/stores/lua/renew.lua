-- Starts a lease anew.
--
-- Invariant: only the lease changes, and only under the run's epoch.
--
-- KEYS: run.  ARGV: epoch, lease in microseconds.  Reply: 'renewed' or 'lost'.
local found = redis.call('HMGET', KEYS[1], 'status', 'epoch')
if found[1] ~= 'running' or found[2] ~= ARGV[1] then return 'lost' end
redis.call('HSET', KEYS[1], 'lease_until', whole(now + ARGV[2]))
return 'renewed'
