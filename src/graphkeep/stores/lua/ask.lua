-- Writes commits of which some ask, close or pause. See commit.lua.
--
-- Invariant: a request is stored with its commit or not at all, and asked once. A run does not pause
-- while there is an answer that its worker has not seen.
--
-- KEYS: after those of commit.lua `open`, `listed` and `wake`, and the requests of each run whose commit
--   asks, closes or pauses.
-- ARGV: after those of commit.lua, of each of these: its position, how much it asks, how much it
--   closes, answers seen, and wake_at or '', by spaces; six for each that it asks: request id,
--   microseconds to its deadline or '', error or '', asked, payload, schema; the request ids that it
--   closes.
asking = {}
local open, listed, wake = unpack(KEYS, place + 1, place + 3)
place = place + 3
local from = 4 * count + 3
while from <= #ARGV do
  local i, asks, closes, answered, wake_at =
    string.match(ARGV[from], '^(%d+) (%d+) (%d+) (%d+) (%S*)$')
  place = place + 1
  asking[tonumber(i)] = {
    requests = KEYS[place], from = from + 1, asks = tonumber(asks), closes = tonumber(closes),
    answered = tonumber(answered), wake_at = tonumber(wake_at),
  }
  from = from + 1 + 6 * asks + closes
end

function prepare(run, new, status)
  redis.call('HLEN', new.requests)
  check_open(open, listed)
  check_indexes(wake)
  new.pauses = status == 'paused'
  if not new.pauses then return status end
  local answered = tonumber(redis.call('HMGET', run, 'answered')[1] or 0)
  return answered > new.answered and 'ready' or 'paused'
end

function ask(run, new, status)
  local run_id, requests, from, first = id_of(run), new.requests, new.from, new.wake_at
  local shown = new.asks > 0 and redis.call('HMGET', run, 'graph', 'labels')
  for _ = 1, new.asks do
    local id, timeout, failure, asked, payload, schema = unpack(ARGV, from, from + 5)
    from = from + 6
    if not redis.call('HMGET', requests, STATE .. id)[1] then
      local deadline = '-'
      if timeout ~= '' then
        deadline = whole(now + timeout)
        first = math.min(first or math.huge, now + timeout)
      end
      redis.call(
        'HSET', requests, ASKED .. id, asked, PAYLOAD .. id, payload, SCHEMA .. id, schema)
      if failure ~= '' then redis.call('HSET', requests, ERROR .. id, failure) end
      put_open(requests, open, listed, run_id, id, at, deadline, '-', shown)
    elseif failure ~= '' then
      local before, created_at, deadline = state_of(requests, id)
      if before then
        redis.call('HDEL', requests, ANSWER .. id, BY .. id)
        redis.call(
          'HSET', requests, ASKED .. id, asked, PAYLOAD .. id, payload, SCHEMA .. id, schema,
          ERROR .. id, failure)
        put_open(requests, open, listed, run_id, id, created_at, deadline, '-', shown)
        if tonumber(deadline) then first = math.min(first or math.huge, tonumber(deadline)) end
      end
    end
  end
  for i = from, from + new.closes - 1 do
    close(requests, open, listed, run_id, ARGV[i])
  end
  if status == 'paused' and first then
    redis.call('HSET', run, 'wake_at', whole(first))
    redis.call('ZADD', wake, whole(first), run_id)
  elseif new.pauses then
    redis.call('HDEL', run, 'wake_at')
    redis.call('ZREM', wake, run_id)
  end
end

return commit_all()
