-- Part of other scripts, after clock.lua: what the rows of conversations and their entries say.
--
-- A row is a line and what follows it: when it was written, when it expires or '-', and how long
-- are its revision, its scope or '-', and each of its tips, by commas, or '-'; then these, and the
-- client's data. An entry too: its position, '+' where its message lies apart, else '-', and how
-- long are the id of its parent, its library, the hashes of its blobs, by spaces, and their places;
-- then these, and the message. Payloads go in and out as they are.

-- Sorts as text, as the number does.
local function sortable(number)
  return string.format('%018.0f', number)
end

-- Nothing where it is not as we write it.
local function row_of(text)
  local time, expires, revision, scope, tips, at =
    string.match(text, '^(%S+) (%S+) (%d+) (%S+) (%S+)\n()')
  if not time or not (expires == '-' or tonumber(expires)) then return nil end
  local function take(size)
    local part = string.sub(text, at, at + (tonumber(size) or math.huge) - 1)
    at = at + (tonumber(size) or math.huge)
    return part
  end
  local row = {time = time, tips = {}}
  if expires ~= '-' then row.expires = expires end
  row.revision = take(revision)
  if scope ~= '-' then row.scope = take(scope) end
  if tips ~= '-' then
    for size in string.gmatch(tips, '[^,]+') do row.tips[#row.tips + 1] = take(size) end
  end
  if at > #text + 1 then return nil end
  return row
end

-- Position, whether its message lies apart, parent, hashes, where its message begins, its library,
-- and where its places begin; nothing where it is not as we write it. Lua shows 14 digits of a
-- number.
local function entry_of(text)
  local position, apart, parent, library, hashes, places, at =
    string.match(text, '^(%d+) ([+-]) (%d+) (%d+) (%d+) (%d+)\n()')
  if not position or #position > 14 then return nil end
  local after = at + parent
  local from = after + library
  local blobs_at = from + hashes
  local data = blobs_at + places
  if data > #text + 1 then return nil end
  local parent_id = after > at and string.sub(text, at, after - 1) or nil
  return tonumber(position), apart == '+', parent_id, string.sub(text, from, blobs_at - 1), data,
    string.sub(text, after, from - 1), blobs_at
end
