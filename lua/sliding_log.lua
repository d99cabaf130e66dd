-- Sliding log: every admitted hit with its time; exact in both directions. The twin of src/algorithm/sliding_log.rs.
-- state: a list, see open_list in prelude.lua; each item is '<ddI4' at (ms since the epoch), sum (of all hits up to
-- these), hits
lists[#algorithms + 1] = open_list
algorithms[#algorithms + 1] = function(log, hits, denied, number, period, count_denied, now, charge)
  local layout = '<ddI4'
  local MAX_BEHIND = 100
  local most = count_denied and 2 * number or number
  -- Time is cut to milliseconds: one more, lest a hit be forgotten before the whole of the period has passed.
  local held = period + 1
  local time = now
  local set_back = false

  local function get(place)
    return struct.unpack(layout, list_get(log, place))
  end
  local function set(place, at, sum, hits)
    log.set[place] = struct.pack(layout, at, sum, hits)
  end
  -- The first place from `from` on where an entry is younger than `at` (-1: of any age) and of a sum of at least `sum`;
  -- or the end. It is mostly near to `from`: so the stride begins with one place, and doubles.
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

  -- The running sums behind the newest entry, and before the oldest that counts.
  local total, base = 0, 0
  local oldest = log.first
  if log.stop > log.first then
    local newest, newest_sum = get(log.stop - 1)
    time, set_back = steady(now, newest, period)
    total = newest_sum
    local clock = set_back and newest or time
    oldest = search(oldest, clock - held, 0)
    if oldest < log.stop then
      local _, sum, entry_hits = get(oldest)
      base = sum - entry_hits
    else
      -- The sums begin anew with every empty log.
      total = 0
    end
    if set_back then
      -- How old each hit is, the new clock cannot tell: all are as young as can be.
      oldest = log.stop - 1
      log.first = oldest
      set(oldest, time, total, total - base)
    end
  end

  local allowed = hits < 0 or (not denied and total - base + hits <= number)
  -- Of a number of 0 nothing is kept, not even denials.
  local charged = hits ~= 0 and (allowed or (count_denied and number > 0))
  if charge then
    -- From the entry that it was put in and no other. Which that is now, a clock that was set back cannot tell.
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
      local newest, _, newest_hits = get(log.stop - 1)
      if newest == time then
        log.stop = log.stop - 1
        added = added + newest_hits
      end
    end
    set(log.stop, time, total, added)
    log.stop = log.stop + 1
    if total - base > most then
      -- The oldest of them leave first, so that nothing is kept that can make no difference.
      base = total - most
      oldest = search(oldest, -1, base + 1)
      local at, sum = get(oldest)
      log.first = oldest
      set(oldest, at, sum, sum - base)
    end
  elseif charged then
    -- Refunds take the newest hits first: a refund right after its charge leaves no trace.
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
    -- So many of the oldest hits have to leave.
    local leaving = used + hits - number
    retry_after = get(search(oldest, -1, base + leaving)) + held - now
  end
  local changed = charged or set_back
  return changed and log, reset_after, allowed, math.max(number - used, 0), reset_after, retry_after
end
