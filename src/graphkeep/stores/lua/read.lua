-- Reads a header, and the snapshots that make the document at some seq.
--
-- Invariant: header and snapshots are of one moment.
--
-- KEYS: run, log.  ARGV: seq or '' for the newest, most bytes of a reply.
-- Reply: nothing if there is no such run; the header, and the snapshots from the newest full one
--   not after that seq.
local run, log = KEYS[1], KEYS[2]
local found = redis.call('HMGET', run, 'status', 'seq', 'full_seq')
if not found[1] then return false end
local first, last, limit = found[3], found[2], tonumber(ARGV[2])

if ARGV[1] ~= '' then
  last = ARGV[1]
  if tonumber(last) < tonumber(first) then
    -- Backwards to a full one. There is none where older snapshots were dropped.
    local from, full = last, nil
    while not full do
      local entry = redis.call('XREVRANGE', log, from, '-', 'COUNT', 1)[1]
      if not entry then return {header(run), '', '', '', '', ''} end
      local fields = entry[2]
      if fields[1] == 'meta' and string.sub(fields[2], 1, 7) == '["full"' then full = entry[1] end
      from = '(' .. entry[1]
    end
    first = full
  end
end
return {header(run), snapshots(log, first, last, math.huge, limit)}
