-- Part of other scripts, after talk.lua: which entries and blobs are needed. Everything is reckoned
-- first, and only what came out differently is written: a script is not rolled back.
--
-- Invariant: `refs` of an entry is how many stored entries and tips of conversations name it, `uses`
-- of a blob how many stored entries need it. What is not named or needed any more goes. A count of
-- one is not stored: most are.
local rows, entries, long, refs, blobs, uses, written, scoped, expiring = unpack(KEYS, 1, 9)

-- A key of another kind must fail it before it writes anything.
for i = 1, 6 do redis.call('HLEN', KEYS[i]) end
for i = 7, 9 do redis.call('ZCARD', KEYS[i]) end

-- Without forks there is nothing to look up for each entry.
local counted = redis.call('HLEN', refs) > 0
-- Most fields that are removed by one command: Lua cannot unpack more than about 8,000.
local BATCH = 1000
-- The entries that come and those that go.
local new, gone = {}, {}
local counts, counts_before, unnamed = {}, {}, {}
local used, used_before = {}, {}

-- A count that cannot be read is taken for one that never falls to nothing.
local function change(id, by)
  local count = counts[id]
  if not count then
    local found = counted and redis.call('HGET', refs, id)
    counts_before[id] = found and (tonumber(found) or math.huge) or 1
    count = new[id] and 0 or counts_before[id]
  end
  counts[id] = count + by
  if count + by <= 0 then unnamed[#unnamed + 1] = id end
end

local function use(hash, by)
  local count = used[hash]
  if not count then
    local found = redis.call('HGET', uses, hash)
    count = found and (tonumber(found) or math.huge) or redis.call('HEXISTS', blobs, hash)
    used_before[hash] = count
  end
  used[hash] = count + by
end

-- Where the chain is damaged it ends: a conversation that is damaged can be removed.
local function sweep()
  while #unnamed > 0 do
    local id = table.remove(unnamed)
    if counts[id] <= 0 and not gone[id] then
      gone[id] = true
      local text = new[id] or redis.call('HGET', entries, id)
      local position, _, parent, hashes
      if text then position, _, parent, hashes = entry_of(text) end
      if position then
        for hash in string.gmatch(hashes, '%S+') do use(hash, -1) end
        if parent then change(parent, -1) end
      end
    end
  end
end

local function remove(hash, fields)
  for from = 1, #fields, BATCH do
    redis.call('HDEL', hash, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
  end
end

-- `given` has the blobs that come.
local function write_counts(given)
  local left, single, unused, lone = {}, {}, {}, {}
  for id in pairs(gone) do left[#left + 1] = id end
  for id, count in pairs(counts) do
    if gone[id] then count = 1 end
    if count == 1 and counts_before[id] ~= 1 then single[#single + 1] = id end
    if count ~= 1 and counts_before[id] ~= count then redis.call('HSET', refs, id, count) end
  end
  for hash, count in pairs(used) do
    local before = used_before[hash]
    if count > 0 and before == 0 then redis.call('HSET', blobs, hash, given[hash]) end
    if count > 1 and before ~= count then redis.call('HSET', uses, hash, count) end
    if count <= 1 and before > 1 then lone[#lone + 1] = hash end
    if count <= 0 then unused[#unused + 1] = hash end
  end
  remove(entries, left)
  if redis.call('HLEN', long) > 0 then remove(long, left) end
  remove(refs, single)
  remove(uses, lone)
  remove(blobs, unused)
end

-- Invariant: a conversation is in `written` by the time at which it was written, in `scoped` by its
-- scope and that time, and in `expiring` by when it expires. All members have one score: they are
-- sorted as text, and so with all digits of a time. A scope has no NUL.
local function unlist(id, row)
  redis.call('ZREM', written, row.time .. id)
  if row.scope then redis.call('ZREM', scoped, row.scope .. '\0' .. row.time .. id) end
  if row.expires then redis.call('ZREM', expiring, row.expires .. id) end
end

local function list(id, row)
  redis.call('ZADD', written, 0, row.time .. id)
  if row.scope then redis.call('ZADD', scoped, 0, row.scope .. '\0' .. row.time .. id) end
  if row.expires then redis.call('ZADD', expiring, 0, row.expires .. id) end
end
