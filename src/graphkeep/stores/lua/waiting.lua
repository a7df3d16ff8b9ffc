-- Reads a stretch of the open requests of a bucket, longest waiting first.
--
-- KEYS: open.  ARGV: lowest and highest score, most members.
-- Reply: a JSON array of members and scores, in turn.
local found = redis.call(
  'ZRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', 0, ARGV[3])
if #found == 0 then return '[]' end
return cjson.encode(found)
