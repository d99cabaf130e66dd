-- Sliding window: a period cut into segments with one count each. The oldest segment, which the window covers only in
-- part, counts in full (strict) or for the part that is covered (linear). The twin of
-- src/engine/algorithm/sliding_window.rs.
-- state: '<dd' index (of the newest segment, counted from the epoch), sum (of all counts), then 'I4' a count for the
-- newest segment and each of the `segments` before it

-- Returns whether a state of the right length is valid. The sum is compared with the counts once in a period, so a
-- wrong sum persists no longer than that.
local function is_sound(state, stored, sum, newest, index, segments)
  if not is_whole(stored) or not is_whole(sum) or sum < newest then
    return false
  end
  if math.floor(stored / segments) == math.floor(index / segments) or index - stored > segments then
    return true
  end
  for place = 17, #state, 4 do
    sum = sum - struct.unpack('<I4', state, place)
  end
  return sum == 0
end

local function sliding_window(
  state, hits, denied, number, period, count_denied, now, charge, segment, segments, linear)
  local index = (now - now % segment) / segment
  local is_usual = hits >= 0 and linear == 0 and not denied
  local stored, sum, newest
  if state and #state == 20 + 4 * segments then
    stored, sum, newest = struct.unpack('<ddI4', state)
    if stored == index and is_usual and hits > 0 and sum + hits <= number and sum >= newest and sum % 1 == 0 then
      -- The fast path for most requests: they are allowed, and there is a count for the present segment.
      sum = sum + hits
      local reset_after = (index + segments + 1) * segment - now
      if newest > 0 then
        return struct.pack('<dI4', sum, newest + hits), reset_after, true, number - sum, reset_after, 0, '8'
      end
      state = struct.pack('<ddI4', index, sum, hits) .. string.sub(state, 21)
      return state, reset_after, true, number - sum, reset_after, 0
    end
  end
  if state and not (stored and is_sound(state, stored, sum, newest, index, segments)) then
    state, damaged = nil, true
  end
  if not state then
    stored, sum, newest = -math.huge, 0, 0
  end
  if is_usual then
    -- Usually only the sum of the counts matters.
    local left = index - stored
    if left > segments then
      sum, newest = 0, 0
    elseif left > 0 then
      for place = #state - 3, #state - 4 * left + 1, -4 do
        sum = sum - struct.unpack('<I4', state, place)
      end
      newest = 0
    end
    if sum < 0 then
      damaged = true
      return sliding_window(
        nil, hits, denied, number, period, count_denied, now, charge, segment, segments, linear)
    end
    local allowed = sum + hits <= number
    if left >= 0 and allowed and hits > 0 then
      local older
      if left > segments then
        older = string.rep('\0', 4 * segments)
      else
        older = string.rep('\0', 4 * (left - 1)) .. string.sub(state, 17, -4 * left - 1)
      end
      sum = sum + hits
      state = struct.pack('<ddI4', index, sum, hits) .. older
      local reset_after = (index + segments + 1) * segment - now
      return state, reset_after, true, number - sum, reset_after, 0
    elseif left >= 0 and (hits == 0 or not count_denied) then
      -- Nothing is charged. A count expires when its segment lies completely outside the window; when the newest count
      -- expires, all have.
      local function gone(age)
        return (index + segments + 1 - age) * segment - now
      end
      local function count(age)
        return struct.unpack('<I4', state, 17 + 4 * (age - left))
      end
      local age = newest > 0 and 0 or left - 1
      while newest == 0 and age < segments do
        age = age + 1
        newest = count(age)
      end
      local reset_after = newest > 0 and gone(age) or 0
      local retry_after = allowed and 0 or NEVER
      if newest + hits > number and hits <= number then
        -- Even if all other counts expire, the newest leaves no room.
        retry_after = reset_after
      elseif not allowed and hits <= number then
        -- The oldest counts expire first, until the rest leaves room.
        age = segments + 1
        local younger = sum
        repeat
          age = age - 1
          younger = younger - count(age)
        until younger + hits <= number or age <= left
        if younger + hits > number then
          -- The stored sum exceeds the counts.
          damaged = true
          return sliding_window(
            nil, hits, denied, number, period, count_denied, now, charge, segment, segments, linear)
        end
        retry_after = gone(age)
      end
      return false, 0, allowed, math.max(number - sum, 0), reset_after, retry_after
    end
  end

  local layout = '<dd' .. string.rep('I4', segments + 1)
  local oldest = segments + 1
  local counts = {}
  local set_back = false
  local left = segments + 1
  local values
  if state then
    values = {struct.unpack(layout, state)}
    index, set_back = steady(index, stored, segments)
    left = set_back and 0 or index - stored
  end
  for age = 0, segments do
    counts[age + 1] = age >= left and values[age - left + 3] or 0
  end
  if set_back then
    -- After a clock reset it is unknown how much of the oldest segment is covered, so its hits move to the next one.
    counts[oldest - 1] = add(counts[oldest - 1], counts[oldest])
    counts[oldest] = 0
  end
  -- The present weight of the oldest segment's count.
  local into = math.max(now - index * segment, 0)
  local function weigh(count)
    if linear == 0 then
      return count
    end
    local whole, part = mul_div(segment - into, count, segment)
    return whole + (part > 0 and 1 or 0)
  end
  local function used()
    local sum = weigh(counts[oldest])
    for i = 1, segments do
      sum = sum + counts[i]
    end
    return sum
  end

  local allowed = hits < 0 or (not denied and used() + hits <= number)
  local charged = hits ~= 0 and (allowed or count_denied)
  if charge then
    -- Only from the segment of the charge. After a clock reset that segment is unknown.
    local age = index - math.floor(charge.at / segment)
    charged = not set_back and age >= 0 and age <= segments
    if charged then
      counts[age + 1] = add(counts[age + 1], hits)
    end
  elseif charged and hits > 0 then
    counts[1] = add(counts[1], hits)
  elseif charged then
    -- Refunds remove the newest hits first, so a refund right after its charge leaves no trace.
    local owed = hits
    for i = 1, oldest do
      local kept = add(counts[i], owed)
      owed = owed + counts[i] - kept
      counts[i] = kept
    end
  end

  local reset_after = 0
  local retry_after = allowed and 0 or NEVER
  local sum = 0
  for i = 1, oldest do
    sum = sum + counts[i]
  end
  local younger = sum
  for age = segments, 0, -1 do
    local count = counts[age + 1]
    if count > 0 then
      younger = younger - count
      -- A count of this age expires when its segment lies completely outside the window.
      reset_after = (index + segments + 1 - age) * segment - now
      local slack = number - hits - younger
      if retry_after == NEVER and not denied and slack >= 0 then
        -- With linear weighting, already this much earlier the count weighs no more than the slack.
        local early = linear == 0 and 0 or mul_div(segment, slack, count)
        retry_after = reset_after - early
      end
    end
  end
  local changed = charged or set_back
  return changed and struct.pack(layout, index, sum, unpack(counts)),
    reset_after, allowed, math.max(number - used(), 0), reset_after, retry_after
end
algorithms[#algorithms + 1] = sliding_window
