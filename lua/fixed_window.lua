-- Fixed window: one count for each window aligned to the clock. The twin of src/algorithm/fixed_window.rs.
-- state: '<dI4' window (ms since the epoch), count; and where the counter's name has the window, the count in digits,
--        as INCRBY leaves it
-- figure1: the window in the counter's name ends after so many ms; 0: there is none
-- figure2: such a counter expires after so many ms

-- A number that others may have written, within what is counted here.
local function named_count(state)
  if not string.find(state, '^-?%d+$') then
    error('the value is not an integer', 0)
  end
  return add(tonumber(state), 0)
end

algorithms[#algorithms + 1] = function(state, hits, denied, number, period, count_denied, now, charge, left, kept)
  local window = now - now % period
  local count = 0
  local set_back = false
  local lasting = false
  if state and left > 0 then
    count = named_count(state)
  elseif state then
    local began, counted = struct.unpack('<dI4', state)
    local time
    time, set_back = steady(now, began, period)
    if set_back then
      count = counted
    else
      window = time - time % period
      if began == window then
        count = counted
        lasting = true
      end
    end
  end

  local allowed = hits < 0 or (not denied and count + hits <= number)
  -- What another window was charged has left with it.
  local is_past = charge and left == 0 and window ~= charge.at - charge.at % period
  local charged = hits ~= 0 and not is_past and (allowed or count_denied)
  if charged then
    count = add(count, hits)
  end

  local reset_after = left
  if left == 0 then
    reset_after = window + period - now
    kept = reset_after
  end
  local retry_after = reset_after
  if allowed then
    retry_after = 0
  elseif hits > number then
    retry_after = NEVER
  end
  local changed = charged or set_back
  local after = left > 0 and string.format('%.0f', count) or struct.pack('<dI4', window, count)
  return changed and after,
    kept, allowed, number - count, reset_after, retry_after, lasting
end
