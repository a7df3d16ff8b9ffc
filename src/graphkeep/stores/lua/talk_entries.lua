-- Reads entries from one back to those before it, with their blobs as far as there is room.
--
-- KEYS: entries, long, blobs.
-- ARGV: the entry to begin with; the position that it must have, '' for any: then nothing was read
--   yet; most entries or ''; first and last position that are wanted, '' for any last; most bytes of
--   a reply beyond its first entry; most entries that are looked at.
-- Reply: nothing if the first entry that is looked at is not there; else the entry to go on with and
--   the position that it must have, or '' and ''; the position of the first that is given, or ''; ten
--   texts, `Columns` in redis_talks.py, always sizes by spaces and then what has them: the ids of
--   those that are given, the last one first, and of the one before them; their messages; libraries,
--   the size after how many have it; places of blobs, with their hashes before them, the size after
--   the number of the entry, from 0, and the size of the hashes; blobs, the size after the hash; and
--   the id of an entry that is damaged, and why, or '' and ''.
local entries, long, blobs = unpack(KEYS)
local id, expected = ARGV[1], tonumber(ARGV[2])
local most, start = tonumber(ARGV[3]) or math.huge, tonumber(ARGV[4])
local stop, limit, steps = tonumber(ARGV[5]) or math.huge, tonumber(ARGV[6]), tonumber(ARGV[7])
local total, given = 0, 0
local ids, messages, libraries, places = {{}, {}}, {{}, {}}, {{}, {}}, {{}, {}}
local needed, with_blobs = {}, not expected
local following, position_then, damaged, reason = '', '', '', ''
local child, library, same, before, lowest = nil, nil, 0, nil, ''

local function add(column, text)
  local sizes, texts = column[1], column[2]
  sizes[#sizes + 1], texts[#texts + 1] = #text, text
end

local function end_of_library()
  if same > 0 then
    local sizes = libraries[1]
    sizes[#sizes + 1] = same
    add(libraries, library)
  end
end

while true do
  local text = redis.call('HGET', entries, id)
  if not text then
    if not child then return false end
    damaged, reason = child, 'the entry before it is missing'
    break
  end
  local position, apart, parent, hashes, data, name, blobs_at = entry_of(text)
  if not position then
    damaged, reason = id, 'it is not as graphkeep writes it'
  elseif expected and position ~= expected or (position == 0) ~= (parent == nil) then
    damaged, reason = id, 'its position does not fit'
  end
  if damaged ~= '' or position < start or given >= most then break end
  if position <= stop then
    local size = #text
    if apart then size = size + redis.call('HSTRLEN', long, id) end
    if given > 0 and total + size > limit then
      following, position_then = id, position
      break
    end
    local message
    if apart then
      message = redis.call('HGET', long, id)
      if not message then
        damaged, reason = id, 'its message is missing'
        break
      end
    else
      message = string.sub(text, data)
    end
    add(ids, id)
    add(messages, message)
    if name ~= library then
      end_of_library()
      library, same = name, 0
    end
    same = same + 1
    if hashes ~= '' or blobs_at < data then
      local sizes = places[1]
      sizes[#sizes + 1], sizes[#sizes + 2] = given, #hashes
      add(places, hashes .. string.sub(text, blobs_at, data - 1))
      if with_blobs then needed[#needed + 1] = hashes end
    end
    given, total, before, lowest = given + 1, total + size, parent, position
  end
  if not parent or position == start or given >= most then break end
  child, id, expected, steps = id, parent, position - 1, steps - 1
  if steps == 0 then
    following, position_then = id, expected
    break
  end
end
if before then add(ids, before) end
end_of_library()

local names, parts, seen = {}, {}, {}
for _, hashes in ipairs(needed) do
  for hash in string.gmatch(hashes, '%S+') do
    local size = seen[hash] and 0 or redis.call('HSTRLEN', blobs, hash)
    seen[hash] = true
    if size > 0 and total + size <= limit then
      names[#names + 1], total = hash .. ' ' .. size, total + size
      parts[#parts + 1] = redis.call('HGET', blobs, hash)
    end
  end
end
local function columns(...)
  local reply = {}
  for _, column in ipairs({...}) do
    reply[#reply + 1] = table.concat(column[1], ' ')
    reply[#reply + 1] = table.concat(column[2])
  end
  return reply
end
return {
  following, tostring(position_then), tostring(lowest),
  columns(ids, messages, libraries, places, {names, parts}),
  damaged, reason,
}
