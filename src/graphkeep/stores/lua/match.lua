-- Reads the headers of those runs that match a query.
--
-- KEYS: runs.  ARGV: the query as JSON, most headers.
-- Reply: a line for each, of its position in KEYS, a space, and the header, or null where it cannot
--   be read.
local query, limit = cjson.decode(ARGV[1]), tonumber(ARGV[2])
local FILTERS = {'status', 'graph', 'parent_run_id', 'updated_at', 'lease_until', 'labels'}

local function matches(status, graph, parent_run_id, updated_at, lease_until, labels)
  if query.status and not query.status[status] then return false end
  if query.graph and query.graph ~= graph then return false end
  if query.parent_run_id and query.parent_run_id ~= parent_run_id then return false end
  if query.updated_before and tonumber(updated_at) >= tonumber(query.updated_before) then
    return false
  end
  if query.interrupted ~= nil then
    local interrupted = status == 'running' and tonumber(lease_until) <= now
    if query.interrupted ~= interrupted then return false end
  end
  if query.labels then
    local found = labels and cjson.decode(labels) or {}
    for name, value in pairs(query.labels) do
      if found[name] ~= value then return false end
    end
  end
  return true
end

local found, matched = {}, 0
for i, run in ipairs(KEYS) do
  local values = redis.pcall('HMGET', run, unpack(FILTERS))
  -- A run that was deleted meanwhile has no status.
  if values.err or values[1] then
    local readable, matching = pcall(matches, unpack(values, 1, 6))
    if values.err or not readable then
      found[#found + 1] = i .. ' null'
    elseif matching then
      found[#found + 1] = i .. ' ' .. header(run)
      matched = matched + 1
      if matched == limit then break end
    end
  end
end
return table.concat(found, '\n')
