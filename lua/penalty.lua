-- Penalty: who is denied `number` times within a period is banned for a while. The twin of src/algorithm/penalty.rs.
-- It stands behind the limit whose denials it counts; its hits are 0 (nothing was asked), 1 (the limit let pass), 2 (it denied), or
-- negative (a pardon).
-- state: '<d' since (ms since the epoch when a ban began; 0 where there is none), then 'd' for each denial, the newest last
algorithms[#algorithms + 1] = function(state, hits, number, period, count_denied, now, ban, extend)
  -- Time is cut to milliseconds: one more, lest a denial be forgotten before the whole of the period has passed.
  local held = period + 1
  local time = now
  local set_back = false
  local since = 0
  local denials = {}
  if state then
    local stored = {struct.unpack('<' .. string.rep('d', #state / 8), state)}
    -- The last value is where unpacking ended.
    local newest = stored[#stored - 1]
    time, set_back = hold(now, newest, period)
    local clock = set_back and newest or time
    if stored[1] + ban > clock then
      since = stored[1]
    end
    for i = 2, #stored - 1 do
      if stored[i] + held > clock then
        -- How long ago it was, a clock that was set back cannot tell: it is as if it were now.
        denials[#denials + 1] = set_back and time or stored[i]
      end
    end
    if set_back and since > 0 then
      since = time
    end
  end

  local banned = since > 0
  local pardoned = hits < 0
  local denied = hits == 2 and not banned
  local extended = hits > 0 and banned and extend == 1
  if pardoned then
    since = 0
    denials = {}
  elseif extended then
    since = time
  elseif denied then
    denials[#denials + 1] = time
    if #denials >= number then
      since = time
      denials = {}
    end
  end

  local remaining, reset_after, retry_after = number, 0, 0
  if since > 0 then
    remaining, reset_after, retry_after = 0, since + ban - now, since + ban - now
  elseif #denials > 0 then
    remaining, reset_after = math.max(number - #denials, 0), denials[#denials] + held - now
  end
  local changed = pardoned or extended or denied or set_back
  local layout = '<' .. string.rep('d', #denials + 1)
  return changed and struct.pack(layout, since, unpack(denials)), since == 0, remaining, reset_after, retry_after
end
