-- Inserts or replaces a conversation, with its new entries and their blobs.
--
-- Invariant: a row is replaced only at the expected revision, and an entry never. The new revision
-- in the row means that an earlier attempt went through: nothing is written twice. Every tip, and
-- every parent, is stored.
--
-- KEYS: all of conversations.
-- ARGV: conversation id; expected revision or ''; time; lifetime in microseconds or ''; the rest of
--   the first line of the row; what follows it; number of entries; then of each its id, its first
--   line without the position, what follows that, and its message where that lies apart, else '';
--   then of each blob its hash and its bytes.
-- Reply: 'written'; 'refused'; or 'damaged', and the id of an entry or '' for the row.
local conversation_id, expected, time, ttl, head, body, count = unpack(ARGV, 1, 7)
local stored = redis.call('HGET', rows, conversation_id)
local old = stored and row_of(stored)
if stored and not old then return {'damaged', ''} end
local expired = old and old.expires and tonumber(old.expires) <= now

local expires = ttl == '' and '-' or sortable(now + ttl)
local text = table.concat({time, ' ', expires, ' ', head, '\n', body})
local row = row_of(text)
local found = old and not expired and old.revision or ''
if found ~= expected then return {found == row.revision and 'written' or 'refused'} end

-- Nothing may stand on what has expired.
if expired then
  for _, tip in ipairs(old.tips) do change(tip, -1) end
  sweep()
end

-- Of the entries that others may stand on; nothing for those that are not there, -1 for damage.
local positions = {}
local function position_of(id)
  if not positions[id] and not gone[id] then
    local known = redis.call('HGET', entries, id)
    if known then positions[id] = entry_of(known) or -1 end
  end
  return positions[id]
end

local order, parents, apart = {}, {}, {}
local at = 7
for i = 1, tonumber(count) do
  local id, line, rest, data = unpack(ARGV, at + 1, at + 4)
  at = at + 4
  local size = tonumber(string.match(line, ' (%d+)'))
  local parent, position = nil, 0
  if size > 0 then
    parent = string.sub(rest, 1, size)
    position = position_of(parent)
    if not position then return {'refused'} end
    if position < 0 then return {'damaged', parent} end
    position = position + 1
  end
  local entry = position .. ' ' .. line .. '\n' .. rest
  local known = not gone[id] and redis.call('HGET', entries, id)
  if known then
    local there, known_apart, known_parent, _, from = entry_of(known)
    if not there then return {'damaged', id} end
    local known_data = string.sub(known, from)
    if known_apart then known_data = redis.call('HGET', long, id) end
    local _, is_apart, _, _, begins = entry_of(entry)
    if not is_apart then data = string.sub(entry, begins) end
    if known_parent ~= parent or known_data ~= data then return {'refused'} end
    positions[id] = there
  else
    order[#order + 1] = id
    new[id], parents[id], positions[id] = entry, parent, position
    if string.sub(line, 1, 1) == '+' then apart[id] = data end
  end
end
for _, tip in ipairs(row.tips) do
  if not new[tip] and (gone[tip] or redis.call('HEXISTS', entries, tip) == 0) then
    return {'refused'}
  end
end
local given = {}
for i = at + 1, #ARGV, 2 do given[ARGV[i]] = ARGV[i + 1] end

for _, id in ipairs(order) do
  gone[id] = nil
  change(id, 0)
  if parents[id] then change(parents[id], 1) end
  local _, _, _, hashes = entry_of(new[id])
  for hash in string.gmatch(hashes, '%S+') do use(hash, 1) end
end
for _, tip in ipairs(row.tips) do change(tip, 1) end
if old and not expired then
  for _, tip in ipairs(old.tips) do change(tip, -1) end
end
sweep()

-- The first of all writes, for it is the one that is refused where the memory is full.
redis.call('HSET', rows, conversation_id, text)
for _, id in ipairs(order) do
  if not gone[id] then
    redis.call('HSET', entries, id, new[id])
    if apart[id] then redis.call('HSET', long, id, apart[id]) end
  end
end
write_counts(given)
if old then unlist(conversation_id, old) end
list(conversation_id, row)
return {'written'}
