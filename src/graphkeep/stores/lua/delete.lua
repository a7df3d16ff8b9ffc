-- Removes a run and all its snapshots.
--
-- Invariant: nothing of the run stays, and it goes while a lease is alive only by force.
--
-- KEYS: run, log, then every index.  ARGV: run id, 'force' or ''.
-- Reply: nothing if there is no such run; 'busy' and the header; or 'deleted'.
local run = KEYS[1]
local found = redis.call('HMGET', run, 'status', 'lease_until')
if redis.call('EXISTS', run) == 0 then return false end
if ARGV[2] ~= 'force' and found[1] == 'running' and (tonumber(found[2]) or 0) > now then
  return {'busy', header(run)}
end
check_indexes(unpack(KEYS, 3))
for i = 3, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
-- Freed in the background: a long history would hold up everybody else.
redis.call('UNLINK', run, KEYS[2])
return {'deleted'}
