-- What counters were used, so that it can be billed. The twin of src/usage/mod.rs and of `added` in src/store/group.rs.
-- A page is a hash. In it are records: the index of a period -> '<i6I6i6' admitted, denied, cost; and where the
--          counter's name has but a hash of its tag, `tag` -> that tag
-- A usage is what a check asks to be recorded: {page, hits, is_taken_back, occasion, costs_denied, period, kept, at,
--          cost, tag}

local RECORD = '<i6I6i6'
local MAX_DENIED, MAX_SIGNED = 281474976710655, 140737488355327

-- What a usage adds: at what time, to admitted, denied and cost; or nothing.
local function added(usage, denied, now)
  local hits = (usage.occasion == 1 or usage.occasion == 3) and usage.cost or usage.hits
  if usage.occasion == 2 then
    return usage.at, -1, 1, -usage.cost
  elseif usage.occasion == 1 or (hits > 0 and denied) then
    return now, 0, 1, usage.costs_denied and hits or 0
  elseif hits > 0 then
    return now, 1, 0, hits
  elseif hits < 0 and (usage.occasion == 3 or not usage.is_taken_back) then
    return now, 0, 0, hits
  end
end

-- Adds a usage to the records of its request as they will be; a page may come several times. Nothing is written yet.
local function record(records, usage, denied, now)
  local time, admitted, over, cost = added(usage, denied, now)
  if not time then
    return
  end
  local page, index = usage.page, math.floor(time / usage.period)
  local found
  for _, other in ipairs(records) do
    if other.page == page and other.index == index then
      found = other
    end
  end
  if not found then
    local stored = redis.call('HGET', page, index)
    found = {page = page, index = index, is_new = not stored, tag = usage.tag, kept = usage.kept, 0, 0, 0}
    if stored then
      found[1], found[2], found[3] = struct.unpack(RECORD, stored)
    end
    records[#records + 1] = found
  end
  found[1] = math.min(math.max(found[1] + admitted, -MAX_SIGNED), MAX_SIGNED)
  found[2] = math.min(found[2] + over, MAX_DENIED)
  found[3] = math.min(math.max(found[3] + cost, -MAX_SIGNED), MAX_SIGNED)
end

local function write_records(records)
  for _, record in ipairs(records) do
    local packed = struct.pack(RECORD, record[1], record[2], record[3])
    if record.is_new and record.tag ~= '' then
      redis.call('HSET', record.page, record.index, packed, 'tag', record.tag)
    else
      redis.call('HSET', record.page, record.index, packed)
    end
    -- A rule that keeps records for less does not shorten what is promised for others.
    if record.is_new and redis.call('PTTL', record.page) < record.kept then
      redis.call('PEXPIRE', record.page, record.kept)
    end
  end
end
