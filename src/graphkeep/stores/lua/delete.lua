-- Removes a run, all its snapshots and all its requests.
--
-- Invariant: nothing of the run stays, and it goes while a lease is alive only by force.
--
-- KEYS: run, log, requests, open, listed, then every index that has runs.  ARGV: run id, 'force' or ''.
-- Reply: nothing if there is no such run; 'busy' and the header; or 'deleted'.
local run, log, requests, open, listed = unpack(KEYS, 1, 5)
local found = redis.call('HMGET', run, 'status', 'lease_until')
if redis.call('EXISTS', run) == 0 then return false end
if ARGV[2] ~= 'force' and found[1] == 'running' and (tonumber(found[2]) or 0) > now then
  return {'busy', header(run)}
end
check_open(open, listed)
check_indexes(unpack(KEYS, 6))
for _, id in ipairs(ids_of(requests)) do withdraw(open, listed, ARGV[1], id) end
for i = 6, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
-- Freed in the background: a long history would hold up everybody else.
redis.call('UNLINK', run, log, requests)
return {'deleted'}
