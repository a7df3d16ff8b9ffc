-- Reads requests that match a query.
--
-- KEYS: run and requests of each run.
-- ARGV: the query as JSON; what `asked` has to begin with; bytes after which only ids are given;
--   then, in turn, the position of a run and the id of a request; if there are none, all are meant.
-- Reply: as shown.lua makes it. A line of the state 'damaged' names a request that cannot be read,
--   one of the state 'unreadable' gives as its part why a whole run cannot.
local query, begins, limit = cjson.decode(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local function matches(requests, id)
  local status, created_at, _, _, closed_at = state_of(requests, id)
  if not status then return redis.call('HMGET', requests, STATE .. id)[1] and true end
  if query.status and not query.status[status] then return false end
  if query.unused and closed_at ~= '-' then return false end
  if query.before and tonumber(created_at) >= tonumber(query.before) then return false end
  if query.from and tonumber(created_at) < tonumber(query.from) then return false end
  if begins == '' then return true end
  local asked = redis.call('HMGET', requests, ASKED .. id)[1]
  return asked and string.sub(asked, 1, #begins) == begins
end

local wanted = {}
for i = 4, #ARGV, 2 do
  local position = tonumber(ARGV[i])
  wanted[position] = wanted[position] or {}
  table.insert(wanted[position], ARGV[i + 1])
end

local function look(position)
  local run, requests = KEYS[2 * position - 1], KEYS[2 * position]
  local found = redis.call('HMGET', run, 'status', 'graph', 'labels')
  local status, graph, labels = found[1], found[2], found[3]
  if not status or not run_matches(query, graph, labels) then return end
  for _, id in ipairs(#ARGV > 3 and wanted[position] or ids_of(requests)) do
    if matches(requests, id) then show(position, requests, id, limit, graph, labels) end
  end
end

for position = 1, #KEYS / 2 do
  local readable, problem = pcall(look, position)
  if not readable then
    if type(problem) == 'table' then problem = problem.err end
    add(position, 'unreadable 0 - - -', tostring(problem))
  end
end
return shown()
