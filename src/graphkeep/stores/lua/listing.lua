-- Reads a stretch of an index, newest first.
--
-- KEYS: index.  ARGV: highest score or 'now', most members.
-- Reply: a JSON array of members and scores, in turn.
local highest = ARGV[1] == 'now' and whole(now) or ARGV[1]
local found = redis.call(
  'ZREVRANGEBYSCORE', KEYS[1], highest, '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #found == 0 then return '[]' end
return cjson.encode(found)
