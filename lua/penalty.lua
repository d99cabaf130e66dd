-- Penalty: a client that a limit denies `after` times within a while is banned for a while. The twin of
-- src/algorithm/penalty.rs. It is asked behind its limit; event: 0 (the request only peeked), 1 (the limit let it
-- pass), 2 (it denied it).
-- state: '<dd' since (ms since the epoch when a ban began; 0 where there is none), until (from then on it is as fresh),
-- then 'd' for each denial, the newest last
local function penalize(state, event, now, after, within, ban, extend)
  -- Time is cut to milliseconds: one more, lest a denial be forgotten before the whole of the period has passed.
  local held = within + 1
  local time = now
  local set_back = false
  local since = 0
  local until_ = 0
  local denials = {}
  local stored = state and {struct.unpack('<' .. string.rep('d', #state / 8), state)}
  if stored and now < stored[2] then
    -- The last value is where unpacking ended.
    local newest = #stored > 3 and stored[#stored - 1] or stored[1]
    time, set_back = steady(now, newest, within)
    local clock = set_back and newest or time
    until_ = stored[2]
    if stored[1] + ban > clock then
      since = stored[1]
    end
    for i = 3, #stored - 1 do
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
  local denied = event == 2 and not banned
  local extended = event > 0 and banned and extend == 1
  -- A ban that has become longer needs it for longer than was stored.
  local outlives = event > 0 and banned and since + ban > until_
  if extended then
    since = time
  elseif denied then
    denials[#denials + 1] = time
    if #denials >= after then
      since = time
      denials = {}
    end
  end

  local newest = denials[#denials] or 0
  local changed = extended or denied or set_back or outlives
  if changed then
    if since > 0 then
      until_ = since + math.max(ban, REMEMBERED)
    else
      until_ = newest > 0 and newest + held or 0
    end
  end
  local left = math.max(math.min(since + ban, until_) - now, 0)
  local remaining, reset_after = after, 0
  if since > 0 then
    remaining, reset_after = 0, left
  elseif newest > 0 then
    remaining, reset_after = math.max(after - #denials, 0), newest + held - now
  end
  local retry_after = since > 0 and left or 0
  local layout = '<dd' .. string.rep('d', #denials)
  local state_after = changed and struct.pack(layout, since, until_, unpack(denials))
  return state_after, math.max(until_ - now, 0), since == 0, remaining, reset_after, retry_after
end
