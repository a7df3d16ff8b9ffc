-- Reads the row of one conversation.
--
-- KEYS: rows.  ARGV: conversation id.
-- Reply: the time; and the row, if there is one.
return {whole(now), redis.call('HGET', KEYS[1], ARGV[1])}
