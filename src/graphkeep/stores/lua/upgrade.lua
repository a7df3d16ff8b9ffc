-- Writes down that the keys are of a newer schema.
--
-- Invariant: the version only rises, and only from the one that was seen. Everything that was stored
-- before is of the newer schema too.
--
-- KEYS: meta.  ARGV: schema version before and after.
-- Reply: the layout that holds.
if redis.call('HMGET', KEYS[1], 'schema')[1] == ARGV[1] then
  redis.call('HSET', KEYS[1], 'schema', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'schema', 'buckets', 'hash')
