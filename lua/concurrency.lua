-- Concurrency: no more than the number in progress at once; a slot is released by its holder, or expires after the
-- period; a denied take swallows its own release. The twin of src/algorithm/concurrency.rs. There may be thousands of
-- slots, so that they stay packed: none is unpacked in vain.
-- state: '<I4I4' used (the hits of all slots), how many slots there are, then for each slot, the newest last, '<ddI4'
-- holder, at (ms since the epoch), hits; and then the same for each holder that was denied
algorithms[#algorithms + 1] = function(state, hits, by_others, number, period, count_denied, now, charge, holder)
  local layout, size = '<ddI4', 20
  -- So long, and so many, denied takes are remembered.
  local DENIED, MAX_DENIED = 10000, 100
  -- Time is cut to milliseconds: one more, lest a slot be free before it was held for the whole of the period.
  local held = period + 1
  local remembered = math.min(DENIED, period) + 1
  local time = now
  local set_back = false
  local used = 0
  local slots, denied = '', ''
  local mark = struct.pack('<d', holder)

  local function newest_of(list)
    if #list == 0 then
      return 0
    end
    local _, at = struct.unpack(layout, list, #list - size + 1)
    return at
  end
  local function moved_back(list, back)
    local moved = {}
    for from = 1, #list, size do
      local one, at, one_hits = struct.unpack(layout, list, from)
      moved[#moved + 1] = struct.pack(layout, one, math.max(at - back, 0), one_hits)
    end
    return table.concat(moved)
  end
  -- What is not older than `most`, and the hits of the rest.
  local function without_old(list, most)
    local over, gone = 0, 0
    while over < #list do
      local _, at, one_hits = struct.unpack(layout, list, over + 1)
      if at + most > time then
        break
      end
      over = over + size
      gone = gone + one_hits
    end
    return string.sub(list, over + 1), gone
  end
  -- Where this holder stands in a list, from one place on.
  local function find(list, its_mark, from)
    local at = string.find(list, its_mark, from, true)
    -- The same bytes may stand across others.
    while at and at % size ~= 1 do
      at = string.find(list, its_mark, at + 1, true)
    end
    return at
  end

  if state then
    local stored, count = struct.unpack('<I4I4', state)
    used = stored
    slots, denied = string.sub(state, 9, 8 + count * size), string.sub(state, 9 + count * size)
    local newest = math.max(newest_of(slots), newest_of(denied))
    time, set_back = steady(now, newest, period)
    if set_back then
      -- All of them are as old as the old clock left them.
      slots, denied = moved_back(slots, newest - now), moved_back(denied, newest - now)
    end
    local gone
    slots, gone = without_old(slots, held)
    used = used - gone
    denied = without_old(denied, remembered)
  end

  local allowed = hits < 0 or (not by_others and used + hits <= number)
  local changed = set_back
  -- What the holder is denied, now or after all.
  local refused = 0
  if hits > 0 and allowed then
    slots = slots .. struct.pack(layout, holder, time, hits)
    used = used + hits
    changed = true
  elseif hits > 0 then
    refused = hits
  elseif hits < 0 then
    -- Removes up to so many hits of those with a mark, the newest first, and tells how many there were. The list is
    -- made once: to copy it for each of them takes seconds.
    local function release(list, its_mark, owed)
      local own = {}
      local from = find(list, its_mark, 1)
      while from do
        own[#own + 1] = from
        from = find(list, its_mark, from + size)
      end
      local released, first = 0, #own + 1
      local rests = {}
      while owed > 0 and first > 1 do
        first = first - 1
        local one, at, one_hits = struct.unpack(layout, list, own[first])
        local given = math.min(owed, one_hits)
        rests[first] = given < one_hits and struct.pack(layout, one, at, one_hits - given) or ''
        owed = owed - given
        released = released + given
      end
      if first > #own then
        return list, 0
      end
      local parts = {string.sub(list, 1, own[first] - 1)}
      for i = first, #own do
        parts[#parts + 1] = rests[i]
        parts[#parts + 1] = string.sub(list, own[i] + size, (own[i + 1] or #list + 1) - 1)
      end
      return table.concat(parts), released
    end
    if charge and not set_back then
      -- Only the slot of that time. Which that is now, a clock that was set back cannot tell.
      slots, refused = release(slots, struct.pack('<dd', holder, charge.at), -hits)
      used = used - refused
    elseif not charge then
      local swallowed, released
      denied, swallowed = release(denied, mark, -hits)
      slots, released = release(slots, mark, -hits - swallowed)
      used = used - released
      changed = changed or swallowed > 0 or released > 0
    end
  end
  if refused > 0 then
    local all = refused
    local known = find(denied, mark, 1)
    if known then
      local _, _, before = struct.unpack(layout, denied, known)
      all = all + before
      denied = string.sub(denied, 1, known - 1) .. string.sub(denied, known + size)
    end
    denied = denied .. struct.pack(layout, holder, time, math.min(all, MAX_COUNT))
    if #denied > MAX_DENIED * size then
      -- Mostly the oldest has no slot. Where it has, to search all slots for each of the others takes seconds.
      local has_slot = {}
      local from = 1
      if find(slots, string.sub(denied, 1, 8), 1) then
        for place = 1, #slots, size do
          has_slot[string.sub(slots, place, place + 7)] = true
        end
        while from <= #denied and has_slot[string.sub(denied, from, from + 7)] do
          from = from + size
        end
      end
      denied = string.sub(denied, 1, from - 1) .. string.sub(denied, from + size)
    end
    changed = true
  end

  local free = #slots > 0 and newest_of(slots) + held - now or 0
  local forgotten = #denied > 0 and newest_of(denied) + remembered - now or 0
  local reset_after = math.max(free, forgotten)
  local retry_after = allowed and 0 or NEVER
  if not allowed and not by_others and hits <= number then
    local younger = used
    local from = 1
    repeat
      local _, at, slot_hits = struct.unpack(layout, slots, from)
      younger = younger - slot_hits
      from = from + size
      retry_after = at + held - now
    until younger + hits <= number
  end
  local packed = changed and struct.pack('<I4I4', used, #slots / size) .. slots .. denied
  return packed, reset_after, allowed, math.max(number - used, 0), reset_after, retry_after
end
