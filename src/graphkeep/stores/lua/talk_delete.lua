-- Removes a conversation, and what only it needs.
--
-- Invariant: only what has the expected revision goes, and no entry or blob of another one.
--
-- KEYS: all of conversations.  ARGV: conversation id, revision.
-- Reply: 'deleted'; 'refused'; or 'damaged'.
local stored = redis.call('HGET', rows, ARGV[1])
if not stored then return 'refused' end
local row = row_of(stored)
if not row then return 'damaged' end
if row.revision ~= ARGV[2] then return 'refused' end
for _, tip in ipairs(row.tips) do change(tip, -1) end
sweep()
-- Removing comes first: it is allowed where the memory is full, and then so is what follows.
redis.call('HDEL', rows, ARGV[1])
unlist(ARGV[1], row)
write_counts({})
return 'deleted'
