-- Takes a run that may be claimed.
--
-- Invariant: a claim raises the epoch by one, so that nobody who held the run before can write it.
-- A `running` run is taken only when its lease has passed or its epoch is the one whose owner the
-- caller knows to be gone: of two who see the same dead owner, one wins.
--
-- KEYS: run, log, index of `running`, indexes of the statuses that may be claimed.
-- ARGV: run id, owner, lease in microseconds, nonce, expected epoch or '', expected seq or '', most
--   bytes of a reply, then the statuses that may be claimed.
-- Reply: nothing if there is no such run; 'refused' and the header; or 'claimed', the header, and
--   the snapshots from the newest full one on, unless a seq was expected.
local run, log, running = KEYS[1], KEYS[2], KEYS[3]
local run_id, owner, lease, nonce, expected_epoch, expected_seq, limit = unpack(ARGV, 1, 7)

local found = redis.call(
  'HMGET', run, 'status', 'seq', 'full_seq', 'epoch', 'lease_until', 'nonce', 'created_at')
local status, seq, full_seq, epoch, lease_until, last_nonce, created_at = unpack(found, 1, 7)
if not status then return false end

-- With this nonce, an earlier attempt has claimed it; a cancel in between leaves the nonce, but not
-- the status.
if status ~= 'running' or last_nonce ~= nonce then
  if expected_seq ~= '' and expected_seq ~= seq then return {'refused', header(run)} end
  local index
  if status == 'running' then
    if epoch == expected_epoch or (tonumber(lease_until) or 0) <= now then index = running end
  else
    for i = 8, #ARGV do
      if ARGV[i] == status then index = KEYS[i - 4] end
    end
  end
  if not index then return {'refused', header(run)} end
  check_indexes(index, running)
  redis.call(
    'HSET', run, 'status', 'running', 'epoch', whole(epoch + 1), 'owner', owner,
    'lease_until', whole(now + lease), 'nonce', nonce, 'updated_at', whole(now))
  if status ~= 'running' then move(run_id, created_at, index, running) end
end
if expected_seq ~= '' then return {'claimed', header(run)} end
return {'claimed', header(run), snapshots(log, full_seq, seq, math.huge, tonumber(limit))}
