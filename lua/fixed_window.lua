-- Fixed window: one count for each window aligned to the clock. The twin of src/algorithm/fixed_window.rs.
-- state: '<dI4' window (ms since the epoch), count
algorithms[#algorithms + 1] = function(state, hits, denied, number, period, count_denied, now)
  local window = now - now % period
  local count = 0
  local set_back = false
  local lasting = false
  if state then
    local state_window, state_count = struct.unpack('<dI4', state)
    local time
    time, set_back = steady(now, state_window, period)
    if set_back then
      count = state_count
    else
      window = time - time % period
      if state_window == window then
        count = state_count
        lasting = true
      end
    end
  end

  local allowed = hits < 0 or (not denied and count + hits <= number)
  local charged = hits ~= 0 and (allowed or count_denied)
  if charged then
    count = add(count, hits)
  end

  local reset_after = window + period - now
  local retry_after = reset_after
  if allowed then
    retry_after = 0
  elseif hits > number then
    retry_after = NEVER
  end
  local changed = charged or set_back
  return changed and struct.pack('<dI4', window, count),
    reset_after, allowed, number - count, reset_after, retry_after, lasting
end
