-- Part of other scripts: whether the run of a request matches a query.
local function run_matches(query, graph, labels)
  if query.graph and query.graph ~= graph then return false end
  if query.labels then
    local readable, found = pcall(cjson.decode, labels or '{}')
    if not readable or type(found) ~= 'table' then return false end
    for name, value in pairs(query.labels) do
      if found[name] ~= value then return false end
    end
  end
  return true
end
