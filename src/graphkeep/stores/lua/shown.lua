-- Part of other scripts, after request.lua: requests as a reply.
--
-- Two strings, however many: a line for each request, and their parts one after the other. A line
-- has the position of the run, the state, and how long each part is, `-` for one that there is not:
-- id, asked, payload, schema, answer, by, error, and of the run graph and labels. Only the id is
-- there once `limit` bytes are reached: the client asks for the others again.
local lines, parts, total = {}, {}, 0

local function add(position, state, ...)
  local line = {position, state}
  for i = 1, select('#', ...) do
    local part = select(i, ...)
    line[#line + 1] = part and #part or '-'
    if part then
      parts[#parts + 1] = part
      total = total + #part
    end
  end
  lines[#lines + 1] = table.concat(line, ' ')
end

local function show(position, requests, id, limit, graph, labels)
  local state = table.concat({state_of(requests, id)}, ' ')
  if state == '' then
    add(position, 'damaged 0 - - -', id)
  elseif total >= limit then
    add(position, state, id)
  else
    local found = redis.call(
      'HMGET', requests, ASKED .. id, PAYLOAD .. id, SCHEMA .. id, ANSWER .. id, BY .. id,
      ERROR .. id)
    add(
      position, state, id, found[1], found[2], found[3], found[4], found[5], found[6], graph, labels)
  end
end

local function shown()
  return {table.concat(lines, '\n'), table.concat(parts)}
end
