-- Answers a request.
--
-- Invariant: only an open one is answered, and only before its deadline; with the answer rises the
-- run's count of answers, and a run that is paused becomes ready. So of two answers the first
-- counts, and a request is answered or expired, never both.
--
-- KEYS: run, requests, open, listed, wake, answers, indexes of `paused` and `ready`.
-- ARGV: run id, request id, answer, who answers or ''.
-- Reply: nothing if there is no such request; else it as it is then, as shown.lua makes it.
local run, requests, open, listed, wake, answers, paused, ready = unpack(KEYS)
local run_id, id, answer, by = unpack(ARGV)

local found = redis.call('HMGET', run, 'status', 'graph', 'labels', 'answered', 'created_at')
local status, graph, labels, answered, run_created_at = unpack(found, 1, 5)
if not status or not redis.call('HMGET', requests, STATE .. id)[1] then return false end

local state, created_at, deadline, _, closed_at = state_of(requests, id)
check_open(open, listed)
if state == 'open' and not expire(requests, open, listed, run_id, id) then
  check_indexes(wake, paused, ready)
  -- The first of all writes, for it is the one that may fail: where the memory is full.
  redis.call('HSET', requests, ANSWER .. id, answer)
  if by ~= '' then redis.call('HSET', requests, BY .. id, by) end
  put_state(requests, id, 'answered', created_at, deadline, whole(now), closed_at)
  withdraw(open, listed, run_id, id)
  redis.call('HSET', run, 'answered', whole((tonumber(answered) or 0) + 1))
  if status == 'paused' then
    redis.call('HDEL', run, 'wake_at')
    redis.call('ZREM', wake, run_id)
    redis.call('HSET', run, 'status', 'ready', 'updated_at', whole(now))
    move(run_id, run_created_at, paused, ready)
  end
  -- Who listens looks for himself as well: a stream that cannot be written refuses no answer.
  redis.pcall('XADD', answers, 'MAXLEN', '~', 1000, '*', 'run', run_id)
end
show(1, requests, id, math.huge, graph, labels)
return shown()
