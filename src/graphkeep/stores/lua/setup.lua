-- Writes down how the keys are laid out, once.
--
-- Invariant: the layout is written by whoever comes first, and never changed.
--
-- KEYS: meta.  ARGV: schema version, number of buckets, hash function.
-- Reply: the layout that holds.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'buckets', ARGV[2], 'hash', ARGV[3])
end
return redis.call('HMGET', KEYS[1], 'schema', 'buckets', 'hash')
