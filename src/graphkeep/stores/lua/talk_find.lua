-- Reads the rows of a stretch of an index.
--
-- KEYS: index, rows.
-- ARGV: 'last' or 'first' ones first; where to begin and to end, 'now' for what has passed; bytes of
--   a member before the id; most rows, and most bytes beyond the first.
-- Reply: the time; the member to go on after, '' at the end; then ids and rows, in turn. The row is
--   '' where it is missing.
local index, rows = unpack(KEYS)
local which, from, to, before, count, limit = unpack(ARGV)
local command = which == 'last' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
if to == 'now' then to = '(' .. sortable(now + 1) end
local members = redis.call(command, index, from, to, 'LIMIT', 0, count)
local reply, total = {whole(now), ''}, 0
if #members == tonumber(count) then reply[2] = members[#members] end
for i, member in ipairs(members) do
  local id = string.sub(member, before + 1)
  total = total + redis.call('HSTRLEN', rows, id)
  if i > 1 and total > tonumber(limit) then
    reply[2] = members[i - 1]
    break
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = redis.call('HGET', rows, id) or ''
end
return reply
