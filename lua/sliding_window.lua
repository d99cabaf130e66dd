-- Sliding window: a period cut into segments, each with a count; the segment that is partly left still counts in full.
-- The twin of src/algorithm/sliding_window.rs.
-- state: '<d' index (of the newest segment, counted from the epoch), then 'I4' a count for it and each of the `segments` before it
algorithms[#algorithms + 1] = function(state, hits, number, period, count_denied, now, segment, segments)
  local index = math.floor(now / segment)
  local layout = '<d' .. string.rep('I4', segments + 1)
  local counts = {}
  local set_back = false
  local total = 0
  local left = segments + 1
  local stored
  if state then
    stored = {struct.unpack(layout, state)}
    index, set_back = hold(index, stored[1], segments)
    left = set_back and 0 or index - stored[1]
  end
  for age = 0, segments do
    local count = age >= left and stored[age - left + 2] or 0
    counts[age + 1] = count
    total = total + count
  end

  local allowed = hits < 0 or total + hits <= number
  local charged = hits ~= 0 and (allowed or count_denied)
  if charged and hits > 0 then
    local count = add(counts[1], hits)
    total = total + count - counts[1]
    counts[1] = count
  elseif charged then
    -- The newest hits come back first: a give-back right after its charge leaves no trace.
    local owed = hits
    for age = 0, segments do
      local count = counts[age + 1]
      local kept = add(count, owed)
      owed = owed + count - kept
      total = total - (count - kept)
      counts[age + 1] = kept
    end
  end

  local reset_after = 0
  local retry_after = allowed and 0 or NEVER
  local remaining_after = total
  for age = segments, 0, -1 do
    local count = counts[age + 1]
    if count > 0 then
      -- A count of this age goes when its segment lies wholly outside the window.
      reset_after = (index + segments + 1 - age) * segment - now
      remaining_after = remaining_after - count
      if retry_after == NEVER and remaining_after + hits <= number then
        retry_after = reset_after
      end
    end
  end
  local changed = charged or set_back
  return changed and struct.pack(layout, index, unpack(counts)), allowed, math.max(number - total, 0), reset_after, retry_after
end
