-- Part of other scripts, after clock.lua: the requests of a run.
--
-- Each is some fields of one hash, named by a word and its id. The client's JSON goes in and out as
-- it is: decoding and encoding it here would change it. Only `state` is taken apart: status,
-- created_at, deadline, answered_at and closed_at, by spaces, `-` for none.
--
-- Invariant: a request is in the index `open` while it is open, by the time at which it was asked.
-- What a list shows of it is in the hash `listed` under the same name, so that a list need not look
-- at every run; but not where it is long, and then, or where it is lost, the run is looked at.
local STATE, ASKED, PAYLOAD, SCHEMA = 'state:', 'asked:', 'payload:', 'schema:'
local ANSWER, BY, ERROR = 'answer:', 'by:', 'error:'
-- Most bytes that are held twice; a list of a thousand is one reply.
local LISTED = 16000

local function state_of(requests, id)
  local text = redis.call('HMGET', requests, STATE .. id)[1]
  return string.match(text or '', '^(%l+) (%d+) ([%d-]+) ([%d-]+) ([%d-]+)$')
end

local function put_state(requests, id, ...)
  redis.call('HSET', requests, STATE .. id, table.concat({...}, ' '))
end

-- A run id has no NUL, so this sorts by run and request.
local function member(run_id, id)
  return run_id .. '\0' .. id
end

-- A script is not rolled back: a key of another kind must fail it before it writes anything.
local function check_open(open, listed)
  redis.call('ZCARD', open)
  redis.call('HLEN', listed)
end

-- Of a request everything but its state is there already.
local function put_open(requests, open, listed, run_id, id, created_at, deadline, closed_at, run)
  put_state(requests, id, 'open', created_at, deadline, '-', closed_at)
  local name, graph, labels = member(run_id, id), run[1], run[2]
  redis.call('ZADD', open, created_at, name)
  local found = redis.call('HMGET', requests, ASKED .. id, PAYLOAD .. id, SCHEMA .. id, ERROR .. id)
  local asked, payload, schema, failure = unpack(found, 1, 4)
  local line = table.concat({
    graph and #graph or '-', labels and #labels or '-', created_at, deadline, closed_at,
    asked and #asked or '-', payload and #payload or '-', schema and #schema or '-',
    failure and #failure or '-',
  }, ' ')
  local text = table.concat({
    line, '\n', graph or '', labels or '', asked or '', payload or '', schema or '', failure or '',
  })
  if #text <= LISTED then
    redis.call('HSET', listed, name, text)
  else
    redis.call('HDEL', listed, name)
  end
end

-- Removing is allowed where the memory is full, and then so is what follows.
local function withdraw(open, listed, run_id, id)
  local name = member(run_id, id)
  redis.call('ZREM', open, name)
  redis.call('HDEL', listed, name)
end

local function ids_of(requests)
  local ids = {}
  for _, field in ipairs(redis.call('HKEYS', requests)) do
    if string.sub(field, 1, #STATE) == STATE then ids[#ids + 1] = string.sub(field, #STATE + 1) end
  end
  return ids
end

-- Nobody needs its answer any more.
local function close(requests, open, listed, run_id, id)
  local status, created_at, deadline, answered_at, closed_at = state_of(requests, id)
  if closed_at ~= '-' then return end
  withdraw(open, listed, run_id, id)
  if status == 'open' then status = 'closed' end
  put_state(requests, id, status, created_at, deadline, answered_at, whole(now))
end

local function expire(requests, open, listed, run_id, id)
  local status, created_at, deadline, answered_at, closed_at = state_of(requests, id)
  if status ~= 'open' or deadline == '-' or tonumber(deadline) > now then return false end
  withdraw(open, listed, run_id, id)
  put_state(requests, id, 'expired', created_at, deadline, answered_at, closed_at)
  return true
end
