-- Closes what has passed its deadline to answers.
--
-- Invariant: only what is open expires, so a request is answered or expired, never both.
--
-- KEYS: requests, open, listed.  ARGV: run id.
local requests, open, listed = unpack(KEYS)
check_open(open, listed)
for _, id in ipairs(ids_of(requests)) do expire(requests, open, listed, ARGV[1], id) end
