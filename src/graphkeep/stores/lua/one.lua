-- Reads one header.
--
-- KEYS: run.  Reply: nothing if there is no such run; the header.
if redis.call('HEXISTS', KEYS[1], 'status') == 0 then return false end
return header(KEYS[1])
