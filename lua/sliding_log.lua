-- Sliding log: stores every admitted hit with its time; exact in both directions. The twin of
-- src/engine/algorithm/sliding_log.rs.
-- state: a list, see open_list in prelude.lua; each item is '<ddI4' at (ms since the epoch), sum (of all hits up to and
-- including these), hits
openers[#algorithms + 1] = open_list
local function decide_log(log, hits, denied, number, period, count_denied, now, charge)
  local layout = '<ddI4'
  local MAX_BEHIND = 100
  -- The most hits in a log: twice the largest number, if denials count.
  local MAX_HITS = 200000
  local most = count_denied and 2 * number or number
  -- Times are truncated to milliseconds, so a hit is kept one millisecond longer to cover the whole period.
  local held = period + 1
  local time = now
  local set_back = false

  -- Time and sum of the newest entry, which no other entry may exceed. Sums leave room for a full log below 2^53.
  local newest, newest_sum = math.huge, 9007199254740992 - MAX_HITS
  -- Entries are younger than this, once the expired ones are known: entries are in order.
  local expired = -1
  local function get(place)
    local item = list_get(log, place)
    if log.set[place] then
      return struct.unpack(layout, item)
    end
    if not item or #item ~= 20 then
      error(DAMAGED, 0)
    end
    local at, sum, entry_hits = struct.unpack(layout, item)
    local is_entry = is_whole(at) and at > expired and at <= newest and is_whole(sum) and sum <= newest_sum
    if not is_entry or entry_hits == 0 or entry_hits > sum then
      error(DAMAGED, 0)
    end
    return at, sum, entry_hits
  end
  local function set(place, at, sum, hits)
    log.set[place] = struct.pack(layout, at, sum, hits)
  end
  -- Returns the first position from `from` on with an entry younger than `at` (-1: of any age) and with a sum of at
  -- least `sum`; or the end. The position is usually close to `from`, so the search starts with a step of one and
  -- doubles it.
  local function search(from, at, sum)
    local function holds(place)
      local entry_at, entry_sum = get(place)
      return entry_at > at and entry_sum >= sum
    end
    local to, stride = from, 1
    while to < log.stop and not holds(to) do
      from = to + 1
      to = to + stride
      stride = stride * 2
    end
    to = math.min(to, log.stop)
    while from < to do
      local middle = math.floor((from + to) / 2)
      if holds(middle) then
        to = middle
      else
        from = middle + 1
      end
    end
    return from
  end

  -- The running sums up to the newest entry, and up to the oldest entry that counts.
  local total, base = 0, 0
  local oldest = log.first
  if log.stop > log.first then
    newest, newest_sum = get(log.stop - 1)
    time, set_back = steady(now, newest, period)
    total = newest_sum
    local clock = set_back and newest or time
    oldest = search(oldest, clock - held, 0)
    expired = clock - held
    if oldest < log.stop then
      local _, sum, entry_hits = get(oldest)
      base = sum - entry_hits
      if total - base > MAX_HITS then
        error(DAMAGED, 0)
      end
    else
      -- The sums restart when a log is empty.
      total = 0
    end
    if set_back then
      -- After a clock reset the age of each hit is unknown, so all of them are dated now.
      oldest = log.stop - 1
      log.first = oldest
      set(oldest, time, total, total - base)
    end
  end

  local allowed = hits < 0 or (not denied and total - base + hits <= number)
  -- A limit with the number 0 stores nothing, not even denials.
  local charged = hits ~= 0 and (allowed or (count_denied and number > 0))
  if charge then
    -- Only from the entry of the charge. After a clock reset that entry is unknown.
    local nearest = math.max(oldest, log.stop - MAX_BEHIND - 1)
    local place = search(nearest, charge.at - 1, 0)
    local at, sum, put
    if place < log.stop then
      at, sum, put = get(place)
    end
    charged = not set_back and at == charge.at
    if charged then
      local taken = math.min(put, -hits)
      local to = place
      if put > taken then
        set(to, at, sum - taken, put - taken)
        to = to + 1
      end
      for behind = place + 1, log.stop - 1 do
        local entry_at, entry_sum, entry_hits = get(behind)
        set(to, entry_at, entry_sum - taken, entry_hits)
        to = to + 1
      end
      log.first = oldest
      log.stop = to
      total = total - taken
    end
  elseif charged and hits > 0 then
    local added = math.min(hits, most)
    total = total + added
    log.first = oldest
    if log.stop > oldest then
      local at, _, newest_hits = get(log.stop - 1)
      if at == time then
        log.stop = log.stop - 1
        added = added + newest_hits
      end
    end
    set(log.stop, time, total, added)
    log.stop = log.stop + 1
    if total - base > most then
      -- Drops the oldest hits. Only hits that affect decisions are kept.
      base = total - most
      oldest = search(oldest, -1, base + 1)
      local at, sum = get(oldest)
      log.first = oldest
      set(oldest, at, sum, sum - base)
    end
  elseif charged then
    -- Refunds remove the newest hits first, so a refund right after its charge leaves no trace.
    local left = math.max(total + hits, base)
    log.first = oldest
    if left == base then
      log.stop = oldest
    else
      local last = search(oldest, -1, left)
      local at, sum, entry_hits = get(last)
      log.stop = last + 1
      set(last, at, left, entry_hits - (sum - left))
    end
    total = left
  end

  local used = total - base
  local reset_after = used > 0 and get(log.stop - 1) + held - now or 0
  local retry_after = allowed and 0 or NEVER
  if not allowed and not denied and hits <= number then
    -- Number of the oldest hits that must expire first.
    local leaving = used + hits - number
    retry_after = get(search(oldest, -1, base + leaving)) + held - now
  end
  local changed = charged or set_back
  return changed and log, reset_after, allowed, math.max(number - used, 0), reset_after, retry_after
end

algorithms[#algorithms + 1] = function(log, hits, denied, number, period, count_denied, now, charge)
  return decide_mended(
    decide_log, log, list_of(log.key, 0), hits, denied, number, period, count_denied, now, charge)
end
