-- Sliding window: a period cut into segments, each with a count; the segment that is partly left counts in full
-- (strict), or for the part of it that is not left yet (linear). The twin of src/algorithm/sliding_window.rs.
-- state: '<dd' index (of the newest segment, counted from the epoch), sum (of all counts), then 'I4' a count for the
-- newest segment and each of the `segments` before it
algorithms[#algorithms + 1] = function(
  state, hits, denied, number, period, count_denied, now, charge, segment, segments, linear)
  local index = math.floor(now / segment)
  if hits >= 0 and linear == 0 and not denied then
    -- The short way, of most requests: what matters of the counts is mostly their sum.
    local stored, sum, newest = -math.huge, 0, 0
    if state then
      stored, sum, newest = struct.unpack('<ddI4', state)
    end
    local left = index - stored
    if left > segments then
      sum, newest = 0, 0
    elseif left > 0 then
      for place = #state - 3, #state - 4 * left + 1, -4 do
        sum = sum - struct.unpack('<I4', state, place)
      end
      newest = 0
    end
    local allowed = sum + hits <= number
    if left >= 0 and allowed and hits > 0 then
      local older
      if left == 0 then
        older = string.sub(state, 21)
      elseif left > segments then
        older = string.rep('\0', 4 * segments)
      else
        older = string.rep('\0', 4 * (left - 1)) .. string.sub(state, 17, -4 * left - 1)
      end
      sum = sum + hits
      state = struct.pack('<ddI4', index, sum, newest + hits) .. older
      local reset_after = (index + segments + 1) * segment - now
      return state, reset_after, true, number - sum, reset_after, 0, newest > 0
    elseif left >= 0 and (hits == 0 or not count_denied) then
      -- Nothing is charged. A count is gone when its segment lies wholly outside the window: the newest tells when all
      -- are.
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
        -- All the others may go, and the newest leaves no room.
        retry_after = reset_after
      elseif not allowed and hits <= number then
        -- The oldest go first, until what is left leaves room.
        age = segments + 1
        local younger = sum
        repeat
          age = age - 1
          younger = younger - count(age)
        until younger + hits <= number
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
  local stored
  if state then
    stored = {struct.unpack(layout, state)}
    index, set_back = steady(index, stored[1], segments)
    left = set_back and 0 or index - stored[1]
  end
  for age = 0, segments do
    counts[age + 1] = age >= left and stored[age - left + 3] or 0
  end
  if set_back then
    -- How much of the oldest is left, the new clock cannot tell: it counts as one younger.
    counts[oldest - 1] = add(counts[oldest - 1], counts[oldest])
    counts[oldest] = 0
  end
  -- What a count weighs that is as old as can be, now.
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
    -- From the segment that it was put in and no other. Which that is now, a clock that was set back cannot tell.
    local age = index - math.floor(charge.at / segment)
    charged = not set_back and age >= 0 and age <= segments
    if charged then
      counts[age + 1] = add(counts[age + 1], hits)
    end
  elseif charged and hits > 0 then
    counts[1] = add(counts[1], hits)
  elseif charged then
    -- Refunds take the newest hits first: a refund right after its charge leaves no trace.
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
      -- A count of this age is gone when its segment lies wholly outside the window.
      reset_after = (index + segments + 1 - age) * segment - now
      local slack = number - hits - younger
      if retry_after == NEVER and not denied and slack >= 0 then
        -- With linear weighting it weighs no more than the slack so long before.
        local early = linear == 0 and 0 or mul_div(segment, slack, count)
        retry_after = reset_after - early
      end
    end
  end
  local changed = charged or set_back
  return changed and struct.pack(layout, index, sum, unpack(counts)),
    reset_after, allowed, math.max(number - used(), 0), reset_after, retry_after
end
