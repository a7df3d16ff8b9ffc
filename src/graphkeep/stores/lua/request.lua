-- Part of other scripts, after clock.lua: the requests of a run.
--
-- Each is some fields of one hash, named by a word and its id. The client's JSON goes in and out as
-- it is: decoding and encoding it here would change it. Only `state` is taken apart: status,
-- created_at, deadline, answered_at and closed_at, by spaces, `-` for none.
--
-- Invariant: a request is in the index `open` while it is open, by the time at which it was asked.
local STATE, ASKED, PAYLOAD, SCHEMA = 'state:', 'asked:', 'payload:', 'schema:'
local ANSWER, BY, ERROR = 'answer:', 'by:', 'error:'

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

local function ids_of(requests)
  local ids = {}
  for _, field in ipairs(redis.call('HKEYS', requests)) do
    if string.sub(field, 1, #STATE) == STATE then ids[#ids + 1] = string.sub(field, #STATE + 1) end
  end
  return ids
end

-- Nobody needs its answer any more. Removing comes first: it is allowed where the memory is full.
local function close(requests, open, run_id, id)
  local status, created_at, deadline, answered_at, closed_at = state_of(requests, id)
  if closed_at ~= '-' then return end
  redis.call('ZREM', open, member(run_id, id))
  if status == 'open' then status = 'closed' end
  put_state(requests, id, status, created_at, deadline, answered_at, whole(now))
end

local function expire(requests, open, run_id, id)
  local status, created_at, deadline, answered_at, closed_at = state_of(requests, id)
  if status ~= 'open' or deadline == '-' or tonumber(deadline) > now then return false end
  redis.call('ZREM', open, member(run_id, id))
  put_state(requests, id, 'expired', created_at, deadline, answered_at, closed_at)
  return true
end
