-- Part of other scripts: snapshots as a reply.
--
-- Five strings, however many snapshots: the ids of their entries and the sizes of their data, by
-- spaces; every meta, by line breaks; every data, by nothing; and the id to go on with where
-- `limit` bytes were reached, else ''. Of an entry that is not ours the meta is empty: the client
-- names it.
local function snapshots(log, first, last, count, limit)
  local ids, sizes, metas, datas = {}, {}, {}, {}
  local n, total, page, from, following = 0, 0, 1, first, ''
  local more = count > 0
  while more do
    local entries = redis.call('XRANGE', log, from, last, 'COUNT', page)
    local largest = 1
    for i = 1, #entries do
      local id, fields = entries[i][1], entries[i][2]
      local meta, data = '', ''
      if fields[1] == 'meta' and fields[3] == 'data' then meta, data = fields[2], fields[4] end
      local size = #data
      if n > 0 and total + size > limit then
        following, more = id, false
        break
      end
      n = n + 1
      ids[n], sizes[n], metas[n], datas[n] = id, size, meta, data
      total = total + size
      if size > largest then largest = size end
      if n == count then
        more = false
        break
      end
    end
    if #entries < page then more = false end
    if more then
      from = '(' .. entries[#entries][1]
      -- A page is in memory as a whole: one of large documents is short.
      page = math.max(1, math.min(page * 4, 256, math.floor(limit / largest)))
    end
  end
  return table.concat(ids, ' '), table.concat(sizes, ' '), table.concat(metas, '\n'),
    table.concat(datas), following
end
