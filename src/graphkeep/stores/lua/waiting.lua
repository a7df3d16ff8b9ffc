-- Reads a stretch of the open requests of a bucket, longest waiting first.
--
-- KEYS: open.  ARGV: lowest score, most members.
-- Reply: a JSON array of members and scores, in turn.
local found = redis.call(
  'ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #found == 0 then return '[]' end
return cjson.encode(found)
