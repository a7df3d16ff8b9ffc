-- Reads snapshots in order.
--
-- KEYS: run, log.  ARGV: first entry, last entry, most snapshots, most bytes of a reply.
-- Reply: when the run was created and the seq of its newest full snapshot; the snapshots.
local found = redis.call('HMGET', KEYS[1], 'created_at', 'full_seq')
return {
  (found[1] or '') .. ' ' .. (found[2] or ''),
  snapshots(KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])),
}
