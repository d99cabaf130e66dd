-- Usage of counters, for billing. The twin of src/engine/usage/mod.rs, and of `added` in src/engine/check/group.rs.
-- A page is a hash of records: the index of a period -> '<i6I6i7' admitted, denied, cost; then '<d' the hits by which a
--          budget was topped up, if there are any. If the counter's name
--          contains only a hash of its tag, the page also has `tag` -> that tag.
-- A usage is a check's request for a record: {page, hits, used, is_taken_back, occasion, costs_denied, period, kept,
--          at, cost, tag, charged, topped_up}, where `used` are the used hits of the lease that is returned, and
--          `charged` and `topped_up` are what a budget charges and is topped up by, nil for others

local RECORD, TOPPED_UP = '<i6I6i7', '<i6I6i7d'
local MAX_DENIED, MAX_SIGNED, MAX_NUMBER = 281474976710655, 140737488355327, 9007199254740991

-- Returns the numbers of a record; nothing if it is damaged.
local function numbers_of(packed)
  if #packed == struct.size(RECORD) then
    local admitted, denied, cost = struct.unpack(RECORD, packed)
    return admitted, denied, cost, 0
  elseif #packed == struct.size(TOPPED_UP) then
    local admitted, denied, cost, topped_up = struct.unpack(TOPPED_UP, packed)
    if is_whole(topped_up) then
      return admitted, denied, cost, topped_up
    end
  end
end

-- The same for a budget: the streams that begin, and what it charges.
local function of_budget(usage, denied, now)
  local time, admitted, over = now, 0, 0
  local begins = usage.occasion == 3 and usage.cost > 0 or usage.occasion == 0 and usage.hits > 0
  if usage.occasion == 2 then
    time, admitted, over = usage.at, -1, 1
  elseif usage.occasion == 1 or (begins and denied) then
    over = 1
  elseif begins then
    admitted = 1
  end
  if admitted ~= 0 or over ~= 0 or usage.charged ~= 0 or usage.topped_up then
    return time, admitted, over, usage.charged
  end
end

-- Returns what a usage adds: the time, and the amounts for admitted, denied and cost; or nothing.
local function added(usage, denied, now)
  if usage.charged then
    return of_budget(usage, denied, now)
  end
  if usage.occasion == 4 then
    local waiting, taken = usage.at, math.max(usage.hits, 0)
    if denied then
      waiting, taken = 0, 0
    end
    local admitted, cost = waiting + usage.cost, taken + usage.used
    if admitted > 0 or cost > 0 then
      return now, admitted, 0, cost
    end
    return
  end
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

-- Returns the total cost of all records on a page, with pending changes.
local function charged_on(records, page)
  local sum, pending = 0, {}
  for _, record in ipairs(records) do
    if record.page == page then
      sum = sum + record[3]
      pending[string.format('%.0f', record.index)] = true
    end
  end
  local stored = ask('HGETALL', page) or {}
  for place = 1, #stored, 2 do
    local index, packed = stored[place], stored[place + 1]
    local _, _, cost = numbers_of(packed)
    if not pending[index] and index ~= 'tag' and cost then
      sum = sum + cost
    end
  end
  return sum
end

-- Returns the page to write: the page in KEYS, which follows the clock of the instance, or the page by Redis's clock if
-- the two are more than a page apart.
local PER_PAGE = {[60000] = 60, [3600000] = 24, [86400000] = 32}
local function near_page(page, period, now)
  local name, number = string.match(page, '^(.*:)(%d+)$')
  local own = math.floor(now / (period * PER_PAGE[period]))
  if math.abs(own - tonumber(number)) <= 1 then
    return page
  end
  return name .. string.format('%.0f', own)
end

-- Adds a usage to the pending records of its request. Several usages may be on one page. Nothing is written yet.
local function record(records, usage, denied, now)
  local time, admitted, over, cost = added(usage, denied, now)
  if not time then
    return
  end
  local page, index = near_page(usage.page, usage.period, now), math.floor(time / usage.period)
  if admitted == 0 and over == 0 and cost < 0 and not usage.charged then
    -- A refund cannot exceed the charges. What corrects a budget's charge may: that may be on another page.
    cost = math.max(cost, -math.max(charged_on(records, page), 0))
    if cost == 0 then
      return
    end
  end
  local found
  for _, other in ipairs(records) do
    if other.page == page and other.index == index then
      found = other
    end
  end
  if not found then
    local stored = ask('HGET', page, index)
    found = {page = page, index = index, is_new = not stored, is_replaced = damaged, tag = usage.tag, kept = usage.kept}
    found[1], found[2], found[3], found[4] = 0, 0, 0, 0
    if stored then
      local stored_admitted, stored_over, stored_cost, stored_topped_up = numbers_of(stored)
      if stored_admitted then
        found[1], found[2], found[3], found[4] = stored_admitted, stored_over, stored_cost, stored_topped_up
      else
        damaged = true
      end
    end
    records[#records + 1] = found
  end
  found[1] = math.min(math.max(found[1] + admitted, -MAX_SIGNED), MAX_SIGNED)
  found[2] = math.min(found[2] + over, MAX_DENIED)
  -- Refunds add up the costs of a page, which must stay below 2^53. Budgets have none there.
  local most = usage.charged and MAX_NUMBER or MAX_SIGNED
  found[3] = math.min(math.max(found[3] + cost, -most), most)
  found[4] = math.min(found[4] + (usage.topped_up or 0), MAX_NUMBER)
end

local function write_records(records)
  for _, record in ipairs(records) do
    local packed = struct.pack(RECORD, record[1], record[2], record[3])
    if record[4] > 0 then
      packed = struct.pack(TOPPED_UP, unpack(record, 1, 4))
    end
    if record.is_replaced then
      redis.call('DEL', record.page)
    end
    if record.is_new and record.tag ~= '' then
      redis.call('HSET', record.page, record.index, packed, 'tag', record.tag)
    else
      redis.call('HSET', record.page, record.index, packed)
    end
    -- The page's TTL must not shrink: another rule may have promised to keep its records longer.
    if record.is_new and redis.call('PTTL', record.page) < record.kept then
      redis.call('PEXPIRE', record.page, record.kept)
    end
  end
end
