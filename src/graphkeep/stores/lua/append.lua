-- Writes one commit.
--
-- Invariant: a snapshot is added only under the run's epoch and right after the snapshot before it, and the header moves
-- with it. The nonce of this commit in the header means that an earlier attempt went through: nothing is written twice.
--
-- KEYS: run, log; and, if the claim is given up, index of `running`, index of the new status.
-- ARGV: epoch, seq before, seq, lease in microseconds, 'full' or 'delta', 'all' or 'latest', new status and nonce, by
--   spaces (a client takes longer over many arguments than over one long one); meta up to its last element; data; run
--   id; error or ''. The last two may be left out by a run that stays `running`, and without an error.
-- Reply: 'written'; 'lost' (the claim is not valid any more); or 'damaged' (the log is not as it was left).
local run, log, running, index = unpack(KEYS, 1, 4)
local head, meta, data, run_id, failure = unpack(ARGV, 1, 5)
local epoch, before, seq, lease, kind, history, status, nonce =
  string.match(head, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')

local found = redis.call('HMGET', run, 'status', 'epoch', 'seq', 'nonce', 'created_at', 'error')
if found[4] == nonce then return 'written' end
if found[1] ~= 'running' or found[2] ~= epoch or found[3] ~= before then return 'lost' end
if index then check_indexes(running, index) end

local at = whole(now)
-- The first of all writes, for it is the one that may fail: where the memory is full, or where the log has been removed
-- or has an entry that is not ours.
local added = redis.pcall(
  'XADD', log, 'NOMKSTREAM', seq .. '-1', 'meta', meta .. at .. ']', 'data', data)
if not added then return 'damaged' end
if added.err then
  if string.find(added.err, 'XADD', 1, true) then return 'damaged' end
  return added
end

if index then
  redis.call('HSET', run, 'seq', seq, 'status', status, 'nonce', nonce, 'updated_at', at)
  redis.call('HDEL', run, 'owner', 'lease_until')
  move(run_id, found[5], running, index)
else
  redis.call('HSET', run, 'seq', seq, 'lease_until', whole(now + lease), 'nonce', nonce, 'updated_at', at)
end
if failure and failure ~= '' then
  redis.call('HSET', run, 'error', failure)
elseif found[6] then
  redis.call('HDEL', run, 'error')
end
if kind == 'full' then
  redis.call('HSET', run, 'full_seq', seq)
  if history == 'latest' then redis.call('XTRIM', log, 'MINID', seq) end
end
return 'written'
