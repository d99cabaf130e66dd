-- Fixed window: one count for each window. Windows are aligned with the clock or with a calendar, or each starts with
-- the first request that is counted in it. The twin of
-- src/engine/algorithm/fixed_window.rs.
-- state: '<dI4' window (ms since the epoch), count; if the counter's name contains the window, the count in digits, as
--        INCRBY stores it
-- figure1: time until the window in the counter's name ends (ms); 0 if the name contains none
-- figure2: TTL of such a counter (ms)
-- figure2 to figure5: for a calendar, the starts of four windows (ms since the epoch) by the clock of the instance that
--        asks: the previous window, the present one, and the next two; figure5 is 0 without a calendar
-- figure4: without a calendar, 1 if a window starts with its first request

-- Returns whether the state is valid: a number, which other programs may have written, or a window's start and count.
local function is_sound(state, is_named)
  if is_named then
    return string.find(state, '^-?%d+$')
  end
  return #state == 12 and is_whole((struct.unpack('<d', state)))
end

-- STANDS_STILL_MS of the twin.
local STANDS_STILL = 3600000

-- Returns the start and the end of the window that contains `time`.
local function window_at(time, period, before, first, second, last)
  if last == 0 and second == 1 then
    return time, time + period
  elseif last == 0 then
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
  if state and hits > 0 and not denied and left == 0 and second == 0 and #state == 12 then
    -- The fast path for most requests: they are allowed, in a window aligned with the clock that was counted before.
    local start, counted = struct.unpack('<dI4', state)
    if start == now - now % period and counted + hits <= number then
      counted = counted + hits
      local reset_after = start + period - now
      return struct.pack('<dI4', start, counted), reset_after, true, number - counted, reset_after, 0, true
    end
  end
  local start, stop = window_at(now, period, kept, first, second, last)
  local began = start
  local count = 0
  local set_back = false
  local lasting = false
  local starts = last == 0 and second == 1
  -- Whether the window would start with this request.
  local is_new = starts
  if state and not is_sound(state, left > 0) then
    state, damaged = nil, true
  end
  if state and left > 0 then
    -- Limited to the range of counts.
    count = add(tonumber(state), 0)
  elseif state then
    local before, counted = struct.unpack('<dI4', state)
    local time
    time, set_back = steady(now, before, last > 0 and STANDS_STILL or period)
    if starts and not set_back and time < before + period then
      start, stop = before, before + period
      began = start
    elseif time > now then
      start, stop = window_at(time, period, kept, first, second, last)
      began = start
    end
    if set_back then
      count = counted
    elseif before >= began then
      began, count = before, counted
      lasting = true
      is_new = false
    end
  end

  local allowed = hits < 0 or (not denied and count + hits <= number)
  -- A charge of another window is no longer in the count.
  local is_past = charge and left == 0 and (charge.at < start or charge.at >= stop)
  local begins = not is_new or hits > 0
  local charged = hits ~= 0 and begins and not is_past and (allowed or count_denied)
  if charged then
    count = add(count, hits)
  end

  local reset_after = left
  if left == 0 then
    -- Where nothing is counted, no window has started.
    local is_empty = starts and count == 0
    reset_after = is_empty and 0 or stop - now
    kept, lasting = reset_after, lasting and not is_empty
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
