-- Part of other scripts, after clock.lua and index.lua: commits of runs of one bucket. Each goes
-- through or fails alone.
--
-- Invariant: a snapshot is added only under the run's epoch and right after the snapshot before it,
-- and the header moves with it. The nonce of this commit in the header means that an earlier
-- attempt went through: nothing is written twice.
--
-- KEYS: run and log of every commit; then the indexes of the statuses that are named.
-- ARGV: number of commits; names of statuses, by spaces, if a claim is given up; then of every
--   commit its head: epoch, seq before, seq, lease in microseconds, 'full' or 'delta', 'all' or
--   'latest', new status and nonce, by spaces (a client takes longer over many arguments than over
--   one long one); meta up to its last element; data; error or ''.
-- Reply: a line for every commit: 'written'; 'lost' (the claim is not valid any more); 'damaged'
--   (the log is not as it was left); or an error.
local count, at = tonumber(ARGV[1]), whole(now)
local indexes, place = {}, 2 * count
if ARGV[2] ~= '' then
  for status in string.gmatch(ARGV[2], '%S+') do
    place = place + 1
    indexes[status] = KEYS[place]
  end
end

-- Of the commits that ask, close or pause: what they do, by position; what looks whether they can,
-- and gives the status that the run gets; and what does it. `ask.lua` has them.
local asking, prepare, ask

-- A run's key ends with its id, after a tag that has no brace in it.
local function id_of(run)
  local _, tag = string.find(run, '}:run:', 1, true)
  return string.sub(run, tag + 1)
end

local function commit(i)
  local run, log = KEYS[2 * i - 1], KEYS[2 * i]
  local head, meta, data, failure = unpack(ARGV, 4 * i - 1, 4 * i + 2)
  local epoch, before, seq, lease, kind, history, status, nonce =
    string.match(head, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')

  local found = redis.call('HMGET', run, 'status', 'epoch', 'seq', 'nonce', 'created_at', 'error')
  if found[4] == nonce then return 'written' end
  if found[1] ~= 'running' or found[2] ~= epoch or found[3] ~= before then return 'lost' end
  local stays, new = status == 'running', asking and asking[i]
  if new then status = prepare(run, new, status) end
  if not stays then check_indexes(indexes.running, indexes[status]) end

  -- The first of all writes, for it is the one that may fail: where the memory is full, or where
  -- the log has been removed or has an entry that is not ours.
  local added = redis.pcall(
    'XADD', log, 'NOMKSTREAM', seq .. '-1', 'meta', meta .. at .. ']', 'data', data)
  if not added then return 'damaged' end
  if added.err then return string.find(added.err, 'XADD', 1, true) and 'damaged' or added.err end

  if stays then
    redis.call(
      'HSET', run, 'seq', seq, 'lease_until', whole(now + lease), 'nonce', nonce, 'updated_at', at)
  else
    redis.call('HSET', run, 'seq', seq, 'status', status, 'nonce', nonce, 'updated_at', at)
    redis.call('HDEL', run, 'owner', 'lease_until')
    move(id_of(run), found[5], indexes.running, indexes[status])
  end
  if new then ask(run, new, status) end
  if failure ~= '' then
    redis.call('HSET', run, 'error', failure)
  elseif found[6] then
    redis.call('HDEL', run, 'error')
  end
  if kind == 'full' then
    redis.call('HSET', run, 'full_seq', seq)
    if history == 'latest' then redis.call('XTRIM', log, 'MINID', seq) end
  end
  return 'written'
end

local function commit_all()
  if count == 1 then return commit(1) end
  local replies = {}
  for i = 1, count do
    local ended, reply = pcall(commit, i)
    if not ended and type(reply) == 'table' then reply = reply.err end
    replies[i] = string.gsub(tostring(reply), '[\r\n]', ' ')
  end
  return table.concat(replies, '\n')
end
