-- Inserts a run with snapshot 0.
--
-- Invariant: a run is created once. Its epoch begins at the time of creation, so that a run which
-- is deleted and created again never meets an old epoch. Whoever finds the run with the nonce of
-- this call has made it with an earlier attempt.
--
-- KEYS: run, log, requests, open, listed, created, index of the status.
-- ARGV: run id, nonce, lease in microseconds or '', meta up to its last element, data, then fields
--   and values.
-- Reply: 'created' and the header, or 'exists' and the status.
local run, log, requests, open, listed, created, index = unpack(KEYS)
local run_id, nonce, lease, meta, data = unpack(ARGV, 1, 5)

local found = redis.call('HMGET', run, 'nonce', 'status')
if found[1] == nonce then return {'created', header(run)} end
if redis.call('EXISTS', run) == 1 then return {'exists', found[2] or ''} end
check_indexes(created, index)

-- What is left of a run whose header was lost would refuse the first entry. Of another kind it is
-- not ours.
redis.call('XLEN', log)
redis.call('HLEN', requests)
if redis.call('EXISTS', log, requests) > 0 then
  check_open(open, listed)
  for _, id in ipairs(ids_of(requests)) do withdraw(open, listed, run_id, id) end
  redis.call('UNLINK', log, requests)
end
local at = whole(now)
redis.call('XADD', log, '0-1', 'meta', meta .. at .. ']', 'data', data)
local fields = {
  'seq', '0', 'full_seq', '0', 'epoch', at, 'nonce', nonce, 'created_at', at, 'updated_at', at,
}
if lease ~= '' then
  fields[#fields + 1] = 'lease_until'
  fields[#fields + 1] = whole(now + lease)
end
for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', run, unpack(fields))
redis.call('ZADD', created, at, run_id)
redis.call('ZADD', index, at, run_id)
return {'created', header(run)}
