-- Reads what a list shows of those open requests that match a query, without a look at their runs.
--
-- KEYS: listed.
-- ARGV: the query as JSON; what `asked` has to begin with; then the requests, as they
--   are named in `open`.
-- Reply: how long each text is, by spaces, `-` where there is none, 0 where the request does not
--   match; every text, by nothing. What cannot be read is given: the client finds out.
local query, begins = cjson.decode(ARGV[1]), ARGV[2]

local runs = {}
local function matches(text)
  local graph_size, labels_size = string.match(text, '^([%d-]+) ([%d-]+) ')
  local at = string.find(text, '\n', 1, true)
  if not at or not graph_size then return true end
  local labels_at = at + (tonumber(graph_size) or 0)
  local asked_at = labels_at + (tonumber(labels_size) or 0)
  if string.sub(text, asked_at + 1, asked_at + #begins) ~= begins then return false end
  if not (query.graph or query.labels) then return true end
  -- Many requests have the same graph and labels.
  local run = string.sub(text, at + 1, asked_at) .. graph_size
  if runs[run] == nil then
    local graph = graph_size ~= '-' and string.sub(text, at + 1, labels_at)
    local labels = labels_size ~= '-' and string.sub(text, labels_at + 1, asked_at)
    runs[run] = run_matches(query, graph, labels)
  end
  return runs[run]
end

local sizes, texts = {}, {}
for i, text in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 3))) do
  if not text or text == '' then
    sizes[i] = '-'
  elseif not matches(text) then
    sizes[i] = 0
  else
    sizes[i] = #text
    texts[#texts + 1] = text
  end
end
return {table.concat(sizes, ' '), table.concat(texts)}
