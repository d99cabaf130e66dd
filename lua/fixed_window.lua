-- Fixed window: one count for each window aligned to the clock, or to a calendar. The twin of
-- src/algorithm/fixed_window.rs.
-- state: '<dI4' window (ms since the epoch), count; and where the counter's name has the window, the count in digits,
--        as INCRBY leaves it
-- figure1: the window in the counter's name ends after so many ms; 0: there is none
-- figure2: such a counter expires after so many ms
-- figure2 to figure5: of a calendar, where four windows begin (ms since the epoch): the one before that of the process
--        that asks, by its clock, that one, and the two behind it; figure5 0: there is no calendar

-- A number that others may have written, within what is counted here.
local function named_count(state)
  if not string.find(state, '^-?%d+$') then
    error('the value is not an integer', 0)
  end
  return add(tonumber(state), 0)
end

-- STANDS_STILL_MS of the twin.
local STANDS_STILL = 3600000

-- Where the window of a time begins and ends.
local function window_at(time, period, before, first, second, last)
  if last == 0 then
    local start = time - time % period
    return start, start + period
  elseif time < before or time >= last then
    error('the clock of the process that asks is too far from that of Redis for a window of the calendar', 0)
  elseif time < first then
    return before, first
  elseif time < second then
    return first, second
  else
    return second, last
  end
end

algorithms[#algorithms + 1] = function(
  state, hits, denied, number, period, count_denied, now, charge, left, kept, first, second, last)
  local start, stop = window_at(now, period, kept, first, second, last)
  local began = start
  local count = 0
  local set_back = false
  local lasting = false
  if state and left > 0 then
    count = named_count(state)
  elseif state then
    local before, counted = struct.unpack('<dI4', state)
    local time
    time, set_back = steady(now, before, last > 0 and STANDS_STILL or period)
    if time > now then
      start, stop = window_at(time, period, kept, first, second, last)
      began = start
    end
    if set_back then
      count = counted
    elseif before >= began then
      began, count = before, counted
      lasting = true
    end
  end

  local allowed = hits < 0 or (not denied and count + hits <= number)
  -- What another window was charged has left with it.
  local is_past = charge and left == 0 and (charge.at < start or charge.at >= stop)
  local charged = hits ~= 0 and not is_past and (allowed or count_denied)
  if charged then
    count = add(count, hits)
  end

  local reset_after = left
  if left == 0 then
    reset_after = stop - now
    kept = reset_after
  end
  local retry_after = reset_after
  if allowed then
    retry_after = 0
  elseif hits > number then
    retry_after = NEVER
  end
  local changed = charged or set_back
  local after = left > 0 and string.format('%.0f', count) or struct.pack('<dI4', began, count)
  return changed and after,
    kept, allowed, number - count, reset_after, retry_after, lasting
end
