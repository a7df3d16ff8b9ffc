-- Reads entries from one back to those before it, with their blobs as far as there is room.
--
-- KEYS: entries, long, blobs.
-- ARGV: the entry to begin with; the position that it must have, '' for any: then nothing was read
--   yet; most entries or ''; first and last position that are wanted, '' for any last; most bytes of
--   a reply beyond its first entry; most entries that are looked at.
-- Reply: nothing if the first entry that is looked at is not there; else the entry to go on with and
--   the position that it must have, or '' and ''; the id of the first that is given; the sizes of
--   all, by spaces, and all of them, the last one first, each with its message; hashes and sizes of
--   blobs, by spaces, and these; and the id of an entry that is damaged, and why, or '' and ''.
local entries, long, blobs = unpack(KEYS)
local id, expected = ARGV[1], tonumber(ARGV[2])
local most, start = tonumber(ARGV[3]) or math.huge, tonumber(ARGV[4])
local stop, limit, steps = tonumber(ARGV[5]) or math.huge, tonumber(ARGV[6]), tonumber(ARGV[7])
local sizes, texts, needed, total = {}, {}, {}, 0
local first, following, position_then, damaged, reason = '', '', '', '', ''
local child, with_blobs = nil, not expected

while true do
  local text = redis.call('HGET', entries, id)
  if not text then
    if not child then return false end
    damaged, reason = child, 'the entry before it is missing'
    break
  end
  local position, apart, parent, hashes = entry_of(text)
  if not position then
    damaged, reason = id, 'it is not as graphkeep writes it'
  elseif expected and position ~= expected or (position == 0) ~= (parent == nil) then
    damaged, reason = id, 'its position does not fit'
  end
  if damaged ~= '' or position < start or #texts >= most then break end
  if position <= stop then
    local size = #text
    if apart then size = size + redis.call('HSTRLEN', long, id) end
    if #texts > 0 and total + size > limit then
      following, position_then = id, position
      break
    end
    if apart then
      local data = redis.call('HGET', long, id)
      if not data then
        damaged, reason = id, 'its message is missing'
        break
      end
      text = text .. data
    end
    if #texts == 0 then first = id end
    texts[#texts + 1], sizes[#sizes + 1], total = text, #text, total + #text
    if with_blobs and hashes ~= '' then needed[#needed + 1] = hashes end
  end
  if not parent or position == start or #texts >= most then break end
  child, id, expected, steps = id, parent, position - 1, steps - 1
  if steps == 0 then
    following, position_then = id, expected
    break
  end
end

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
return {
  following, tostring(position_then), first, table.concat(sizes, ' '), table.concat(texts),
  table.concat(names, ' '), table.concat(parts), damaged, reason,
}
