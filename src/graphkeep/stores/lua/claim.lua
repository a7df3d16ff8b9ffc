-- Takes a run that may be claimed.
--
-- Invariant: a claim raises the epoch by one, so that nobody who held the run before can write it.
-- A `running` run is taken only when its lease has passed or its epoch is the one whose owner the
-- caller knows to be gone: of two who see the same dead owner, one wins. A `paused` run whose
-- `wake_at` has passed is taken whatever may be claimed. Who is claimed has no `wake_at`.
--
-- KEYS: run, log, indexes of `running` and `paused`, wake, indexes of the statuses that may be
--   claimed.
-- ARGV: run id, owner, lease in microseconds, nonce, expected epoch or '', expected seq or '', most
--   bytes of a reply, then the statuses that may be claimed.
-- Reply: nothing if there is no such run; 'refused' and the header; or 'claimed', the header, and
--   the snapshots from the newest full one on, unless a seq was expected.
local run, log, running, paused, wake = unpack(KEYS, 1, 5)
local run_id, owner, lease, nonce, expected_epoch, expected_seq, limit = unpack(ARGV, 1, 7)

local found = redis.call(
  'HMGET', run, 'status', 'seq', 'full_seq', 'epoch', 'lease_until', 'nonce', 'created_at',
  'wake_at')
local status, seq, full_seq, epoch, lease_until, last_nonce, created_at, wake_at =
  unpack(found, 1, 8)
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
      if ARGV[i] == status then index = KEYS[i - 2] end
    end
    if status == 'paused' and (tonumber(wake_at) or math.huge) <= now then index = paused end
  end
  if not index then return {'refused', header(run)} end
  check_indexes(index, running, wake)
  redis.call(
    'HSET', run, 'status', 'running', 'epoch', whole(epoch + 1), 'owner', owner,
    'lease_until', whole(now + lease), 'nonce', nonce, 'updated_at', whole(now))
  if status ~= 'running' then move(run_id, created_at, index, running) end
  if wake_at then
    redis.call('HDEL', run, 'wake_at')
    redis.call('ZREM', wake, run_id)
  end
end
if expected_seq ~= '' then return {'claimed', header(run)} end
return {'claimed', header(run), snapshots(log, full_seq, seq, math.huge, tonumber(limit))}
