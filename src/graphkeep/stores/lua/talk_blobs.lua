-- Reads blobs.
--
-- KEYS: blobs.  ARGV: most bytes of a reply beyond its first blob, then hashes.
-- Reply: the sizes of as many as there is room for, by spaces, '-' for one that is missing; and these.
local limit, total, sizes, parts = tonumber(ARGV[1]), 0, {}, {}
for i = 2, #ARGV do
  total = total + redis.call('HSTRLEN', KEYS[1], ARGV[i])
  if #parts > 0 and total > limit then break end
  local blob = redis.call('HGET', KEYS[1], ARGV[i])
  sizes[#sizes + 1] = blob and #blob or '-'
  if blob then parts[#parts + 1] = blob end
end
return {table.concat(sizes, ' '), table.concat(parts)}
