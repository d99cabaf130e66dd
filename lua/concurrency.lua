-- Concurrency: at most `number` requests in progress at once. A slot is released by its holder, or expires after the
-- period. A denied take absorbs its own release. The twin of src/engine/algorithm/concurrency.rs. A counter may have
-- thousands of slots, so they stay packed, and are unpacked only as needed.
-- state: '<I4I4' used (the hits of all slots), number of slots, then '<ddI4' for each slot, the newest last: holder, at
-- (ms since the epoch), hits; then the same for each holder with denied takes
local function decide_slots(state, hits, by_others, number, period, count_denied, now, charge, holder)
  local layout, size = '<ddI4', 20
  -- How long, and how many, denied takes are remembered.
  local DENIED, MAX_DENIED = 10000, 100
  -- Times are truncated to milliseconds, so a slot is kept one millisecond longer to cover the whole period.
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
    assert_sound(is_whole(at))
    return at
  end
  -- Returns the hits of all entries of a list. Their times must be in order.
  local function sum_of(list)
    local sum, before = 0, 0
    for from = 1, #list, size do
      local _, at, one_hits = struct.unpack(layout, list, from)
      assert_sound(is_whole(at) and at >= before and one_hits > 0)
      sum, before = sum + one_hits, at
    end
    return sum
  end
  local function moved_back(list, back)
    local moved = {}
    for from = 1, #list, size do
      local one, at, one_hits = struct.unpack(layout, list, from)
      moved[#moved + 1] = struct.pack(layout, one, math.max(at - back, 0), one_hits)
    end
    return table.concat(moved)
  end
  -- Returns the entries no older than `most`, and the hits of the others.
  local function without_old(list, most)
    local over, gone = 0, 0
    while over < #list do
      local _, at, one_hits = struct.unpack(layout, list, over + 1)
      if at + most > time then
        assert_sound(at <= time)
        break
      end
      over = over + size
      gone = gone + one_hits
    end
    return string.sub(list, over + 1), gone
  end

  if state then
    assert_sound(#state >= 8 and (#state - 8) % size == 0)
    local stored, count = struct.unpack('<I4I4', state)
    assert_sound(count * size <= #state - 8)
    used = stored
    slots, denied = string.sub(state, 9, 8 + count * size), string.sub(state, 9 + count * size)
    local newest = math.max(newest_of(slots), newest_of(denied))
    time, set_back = steady(now, newest, period)
    if hits > 0 and math.floor(newest / period) ~= math.floor(now / period) then
      -- All entries are checked once in a period, so damage persists no longer than that.
      assert_sound(sum_of(slots) == used)
      sum_of(denied)
    end
    if set_back then
      -- Moves all times by the clock's step, so each entry keeps its age.
      slots, denied = moved_back(slots, newest - now), moved_back(denied, newest - now)
    end
    local gone
    slots, gone = without_old(slots, held)
    used = used - gone
    assert_sound(used >= 0 and (used > 0 or #slots == 0) and (used == 0 or #slots > 0))
    denied = without_old(denied, remembered)
  end

  local allowed = hits < 0 or (not by_others and used + hits <= number)
  local changed = set_back
  -- Hits that the holder is denied, by this decision or by a take-back.
  local refused = 0
  if hits > 0 and allowed then
    slots = slots .. struct.pack(layout, holder, time, hits)
    used = used + hits
    changed = true
  elseif hits > 0 then
    refused = hits
  elseif hits < 0 then
    -- Removes up to `owed` hits of the entries with a mark, the newest first, and returns how many were removed. The
    -- list is built only once, because copying it for each entry takes seconds.
    local function release(list, its_mark, owed)
      local own = {}
      local from = find_entry(list, its_mark, 1)
      while from do
        own[#own + 1] = from
        from = find_entry(list, its_mark, from + size)
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
      -- Only from the slot taken at that time. After a clock reset that slot is unknown.
      slots, refused = release(slots, struct.pack('<dd', holder, charge.at), -hits)
      used = used - refused
      assert_sound(used >= 0)
    elseif not charge then
      local swallowed, released
      denied, swallowed = release(denied, mark, -hits)
      slots, released = release(slots, mark, -hits - swallowed)
      used = used - released
      assert_sound(used >= 0)
      changed = changed or swallowed > 0 or released > 0
    end
  end
  if refused > 0 then
    local all = refused
    local known = find_entry(denied, mark, 1)
    if known then
      local _, _, before = struct.unpack(layout, denied, known)
      all = all + before
      denied = string.sub(denied, 1, known - 1) .. string.sub(denied, known + size)
    end
    denied = denied .. struct.pack(layout, holder, time, math.min(all, MAX_COUNT))
    if #denied > MAX_DENIED * size then
      -- The oldest usually has no slot. If it has one, searching all slots for each of the others would take seconds.
      local has_slot = {}
      local from = 1
      if find_entry(slots, string.sub(denied, 1, 8), 1) then
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

  -- What is left in order is as young as its oldest entry.
  local function is_current(list, most)
    local newest = newest_of(list)
    return #list == 0 or (newest <= time and newest + most > time)
  end
  assert_sound(is_current(slots, held) and is_current(denied, remembered))
  local free = #slots > 0 and newest_of(slots) + held - now or 0
  local forgotten = #denied > 0 and newest_of(denied) + remembered - now or 0
  local reset_after = math.max(free, forgotten)
  local retry_after = allowed and 0 or NEVER
  if not allowed and not by_others and hits <= number then
    local younger = used
    local from = 1
    repeat
      assert_sound(from <= #slots)
      local _, at, slot_hits = struct.unpack(layout, slots, from)
      assert_sound(is_whole(at) and at <= time and at + held > time)
      younger = younger - slot_hits
      from = from + size
      retry_after = at + held - now
    until younger + hits <= number
  end
  local packed = changed and struct.pack('<I4I4', used, #slots / size) .. slots .. denied
  return packed, reset_after, allowed, math.max(number - used, 0), reset_after, retry_after
end

algorithms[#algorithms + 1] = function(state, hits, by_others, number, period, count_denied, now, charge, holder)
  return decide_mended(decide_slots, state, nil, hits, by_others, number, period, count_denied, now, charge, holder)
end
