-- Reads the id of the newest answer that was told of.
--
-- KEYS: answers.  Reply: an id of the stream; 0-0 where there is none.
local entry = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return entry and entry[1] or '0-0'
