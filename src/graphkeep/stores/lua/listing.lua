-- Reads a stretch of an index, newest first.
--
-- KEYS: index.  ARGV: highest score, most members.
-- Reply: a JSON array of members and scores, in turn.
local found = redis.call(
  'ZREVRANGEBYSCORE', KEYS[1], ARGV[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #found == 0 then return '[]' end
return cjson.encode(found)
