-- Reads the headers of those runs that can be claimed, longest untouched first.
--
-- KEYS: runs.  ARGV: graphs as a JSON object, most headers.
-- Reply: a line for each, of its position in KEYS, a space, and the header, or null where it cannot
--   be read. A few more where some were last written in the same microsecond.
local graphs, limit = cjson.decode(ARGV[1]), tonumber(ARGV[2])

local function free(status, lease_until, wake_at)
  if status == 'running' then return (tonumber(lease_until) or 0) <= now end
  if status == 'paused' then return wake_at and tonumber(wake_at) <= now end
  return status == 'ready'
end

local found, unreadable = {}, {}
for i, run in ipairs(KEYS) do
  local values = redis.pcall('HMGET', run, 'status', 'lease_until', 'wake_at', 'graph', 'updated_at')
  local readable, matching = pcall(free, unpack(values, 1, 3))
  local updated_at = tonumber(values[5] or '')
  if values.err or not readable or (values[1] and not updated_at) then
    unreadable[#unreadable + 1] = i .. ' null'
  elseif matching and values[4] and graphs[values[4]] then
    found[#found + 1] = {i, updated_at}
  end
end

table.sort(found, function(a, b)
  if a[2] ~= b[2] then return a[2] < b[2] end
  return a[1] < b[1]
end)
local replies = unreadable
for n, place in ipairs(found) do
  if n > limit and place[2] ~= found[limit][2] then break end
  replies[#replies + 1] = place[1] .. ' ' .. header(KEYS[place[1]])
end
return table.concat(replies, '\n')
