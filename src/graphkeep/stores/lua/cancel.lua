-- Ends a run for good.
--
-- Invariant: the epoch rises with the status, so that whoever holds the run cannot write it any
-- more, and none of its requests stays open. What is done stays done; cancelling twice changes
-- nothing.
--
-- KEYS: run, requests, open, listed, wake, index of `cancelled`, indexes of the other statuses.
-- ARGV: run id, then the other statuses.
-- Reply: nothing if there is no such run; 'done' or 'cancelled', and the header.
local run, requests, open, listed, wake, cancelled = unpack(KEYS, 1, 6)
local found = redis.call('HMGET', run, 'status', 'epoch', 'created_at')
local status, epoch, created_at = unpack(found, 1, 3)
if not status then return false end
if status == 'done' or status == 'cancelled' then return {status, header(run)} end

local index
for i = 2, #ARGV do
  if ARGV[i] == status then index = KEYS[i + 5] end
end
if not index then return redis.error_reply('ERR the run has the unknown status ' .. status) end
check_indexes(index, cancelled, wake)
check_open(open, listed)
local ids = ids_of(requests)
-- Removing comes first: it is allowed where the memory is full, and then so is what follows.
redis.call('HDEL', run, 'owner', 'lease_until', 'wake_at')
redis.call('ZREM', wake, ARGV[1])
redis.call('HSET', run, 'status', 'cancelled', 'epoch', whole(epoch + 1), 'updated_at', whole(now))
move(ARGV[1], created_at, index, cancelled)
for _, id in ipairs(ids) do close(requests, open, listed, ARGV[1], id) end
return {'cancelled', header(run)}
