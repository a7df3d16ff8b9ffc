-- Closes what has passed its deadline to answers.
--
-- Invariant: only what is open expires, so a request is answered or expired, never both.
--
-- KEYS: requests, open.  ARGV: run id.
local requests, open = unpack(KEYS)
check_indexes(open)
for _, id in ipairs(ids_of(requests)) do expire(requests, open, ARGV[1], id) end
