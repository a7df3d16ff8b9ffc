-- Part of other scripts: what time it is.
--
-- Invariant: every time that is stored is the server's, a whole number of microseconds since 1970.

-- Redis 6.2 lets a script write after TIME only if its effects are replicated, not its source.
if redis.replicate_commands then redis.replicate_commands() end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A number below 2^53 with all its digits: `tostring` keeps fourteen.
local function whole(number)
  return string.format('%.0f', number)
end
