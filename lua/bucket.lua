-- What the two buckets have in common: hits fill it, the number leaks per period, evenly and without end; what does not fit into the
-- burst may wait for max_delay. A bucket begins full, or empty where it is to be `kept` for so long when it is full.
-- The twin of src/algorithm/bucket.rs.
-- state: '<ddd' at (ms since the epoch), missing (whole hits; more than the burst waits, or is debt), fraction (in 1/period of a hit)
local function bucket(state, hits, number, period, count_denied, now, burst, deepest, refill, max_delay, kept)
  local most = count_denied and deepest + number or deepest
  -- How long so many hits and the fraction take to leak.
  local function leak(hits, fraction)
    if hits == 0 and fraction == 0 then
      return 0
    end
    local quotient, rest = mul_div(period, hits, number)
    return quotient + math.ceil((rest + fraction) / number)
  end
  local time = now
  local set_back = false
  local missing = 0
  local fraction = 0
  local unseen = true
  -- For how long it has been full.
  local idle = 0
  if state then
    local at
    at, missing, fraction = struct.unpack('<ddd', state)
    time, set_back = hold(now, at, period)
    if missing >= most then
      missing, fraction = most, 0
    end
    local elapsed = set_back and 0 or time - at
    unseen = false
    if kept > 0 then
      idle = math.max(elapsed - leak(missing, fraction), 0)
      unseen = idle >= kept
    end
    if elapsed >= refill then
      missing, fraction = 0, 0
    else
      local restored, part = mul_div(elapsed % period, number, period)
      restored = restored + math.floor(elapsed / period) * number
      if fraction >= part then
        fraction = fraction - part
      else
        fraction = fraction + period - part
        restored = restored + 1
      end
      if missing >= restored then
        missing = missing - restored
      else
        missing, fraction = 0, 0
      end
    end
  end
  if unseen and kept > 0 then
    missing, fraction = burst, 0
  end

  -- What leaks while a request is held.
  local queue, part = mul_div(max_delay, number, period)
  local capacity = burst + queue
  -- Negative where there is debt.
  local room = capacity - missing - (fraction > part and 1 or 0)
  local allowed = hits < 0 or hits <= room
  local begins = unseen and kept > 0 and hits > 0
  local charged = hits ~= 0 and (allowed or count_denied)
  local retry_after = allowed and 0 or NEVER
  if charged then
    local sum = missing + hits
    if sum < 0 then
      missing, fraction = 0, 0
    elseif sum >= most then
      missing, fraction = most, 0
    else
      missing = sum
    end
  end
  if not allowed and hits <= capacity then
    local over = missing + hits - burst
    retry_after = time - now + leak(over, fraction) - max_delay
  end

  local changed = charged or begins or set_back
  local reset_after = leak(missing, fraction)
  if kept > 0 and changed then
    reset_after = reset_after + kept
  elseif kept > 0 then
    reset_after = unseen and 0 or reset_after + kept - idle
  end
  reset_after = reset_after > 0 and time - now + reset_after or 0
  local delay = 0
  if allowed and hits > 0 and missing >= burst then
    delay = leak(missing - burst, fraction)
  end
  room = capacity - missing - (fraction > part and 1 or 0)
  local stored = changed and struct.pack('<ddd', time, missing, fraction)
  return stored, allowed, math.max(room, 0), reset_after, retry_after, false, delay
end
