-- Token bucket: refilled with the number per period, evenly and without end, up to the burst; it starts full.
-- The twin of src/algorithm/token_bucket.rs.
-- state: '<ddd' at (ms since the epoch), missing (whole tokens; more than the burst is debt), fraction (in 1/period of a token)
algorithms[#algorithms + 1] = function(state, hits, number, period, count_denied, now, burst, refill)
  local most = count_denied and burst + number or burst
  local time = now
  local set_back = false
  local missing = 0
  local fraction = 0
  if state then
    local at
    at, missing, fraction = struct.unpack('<ddd', state)
    time, set_back = hold(now, at, period)
    if missing >= most then
      missing, fraction = most, 0
    end
    local elapsed = set_back and 0 or time - at
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

  -- Negative where there is debt.
  local room = burst - missing - (fraction > 0 and 1 or 0)
  local allowed = hits < 0 or hits <= room
  local charged = hits ~= 0 and (allowed or count_denied)
  -- How long until `tokens` and the fraction are restored.
  local function wait(tokens, fraction)
    if tokens == 0 and fraction == 0 then
      return 0
    end
    local quotient, rest = mul_div(period, tokens, number)
    return time - now + quotient + math.ceil((rest + fraction) / number)
  end
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

  local retry_after
  if allowed then
    retry_after = 0
  elseif hits > burst then
    retry_after = NEVER
  else
    retry_after = wait(missing + hits - burst, fraction)
  end
  local changed = charged or set_back
  room = burst - missing - (fraction > 0 and 1 or 0)
  return changed and struct.pack('<ddd', time, missing, fraction), allowed, math.max(room, 0), wait(missing, fraction), retry_after
end
