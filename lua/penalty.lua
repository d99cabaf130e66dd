-- Penalty: bans a client for a time after a limit denied it `after` times within a period. The twin of
-- src/engine/algorithm/penalty.rs. It runs after its limit. event: 0 (the request was a peek), 1 (the limit allowed
-- it), 2 (the limit denied it).
-- state: '<dd' since (start of the ban, ms since the epoch; 0 if there is none), until (expiry; from then on equivalent
-- to a new counter), then 'd' for each denial, the newest last
-- Unpacks a state; nil if it is damaged. The times of denials must be in order, and a ban must have none.
local function unpack_penalty(state)
  if #state % 8 ~= 0 or #state < 16 or #state > 16 + 8 * 1000 then
    return nil
  end
  local stored = {struct.unpack('<' .. string.rep('d', #state / 8), state)}
  -- The last value is the position where unpacking ended.
  stored[#stored] = nil
  for i = 1, #stored do
    if not is_whole(stored[i]) or (i > 2 and stored[1] > 0) or (i > 3 and stored[i] < stored[i - 1]) then
      return nil
    end
  end
  return stored
end

local function penalize(state, event, now, after, within, ban, extend)
  -- Times are truncated to milliseconds, so a denial is kept one millisecond longer to cover the whole period.
  local held = within + 1
  local time = now
  local set_back = false
  local since = 0
  local until_ = 0
  local denials = {}
  local stored = state and unpack_penalty(state)
  damaged = damaged or (state and not stored) or false
  if stored and now < stored[2] then
    local newest = #stored > 2 and stored[#stored] or stored[1]
    time, set_back = steady(now, newest, within)
    local clock = set_back and newest or time
    until_ = stored[2]
    if stored[1] + ban > clock then
      since = stored[1]
    end
    for i = 3, #stored do
      if stored[i] + held > clock then
        -- After a clock reset the age of the events is unknown, so they are dated now.
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
  -- A ban that a rule change made longer must be kept longer than was stored.
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
