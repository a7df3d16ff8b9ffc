-- Part of other scripts: snapshots as a reply.
--
-- Five strings, however many snapshots: their seqs; the sizes of meta and data, in turn; every meta, joined by commas;
-- every data, joined by nothing; the entry to go on with where `limit` bytes were reached, else ''.
-- An entry that is not ours keeps its id and has an empty meta: the client names it.
local function snapshots(log, first, last, count, limit)
  local seqs, sizes, metas, datas = {}, {}, {}, {}
  local total, page, from, following = 0, 1, first, ''
  local more = count > 0
  while more do
    local entries = redis.call('XRANGE', log, from, last, 'COUNT', page)
    local largest = 1
    for _, entry in ipairs(entries) do
      local id, fields = entry[1], entry[2]
      local meta, data = '', ''
      if #fields == 4 and fields[1] == 'meta' and fields[3] == 'data' then
        meta, data = fields[2], fields[4]
      end
      local n = #seqs + 1
      if n > 1 and total + #data > limit then
        following, more = id, false
        break
      end
      seqs[n] = string.match(id, '^(%d+)%-1$') or id
      sizes[2 * n - 1], sizes[2 * n] = #meta, #data
      metas[n], datas[n] = meta, data
      total = total + #data
      largest = math.max(largest, #data)
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
  return table.concat(seqs, ' '), table.concat(sizes, ' '), table.concat(metas, ','), table.concat(datas),
    following
end
