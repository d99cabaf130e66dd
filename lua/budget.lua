-- Budget: what streams have used in a sliding window, and what streams in progress hold of it. A hold reserves hits,
-- and its settle replaces them by those that were used. The twin of src/engine/algorithm/budget.rs. A counter may have
-- thousands of holds, so they stay packed, and are unpacked only as needed.
-- state: '<dddI4I4' at (the counter's own time when it last changed, ms), shift (how far that time is ahead of the
-- clock, ms), index (of the newest segment), reserved (hits of all holds), number of holds; then 'I4' the used hits of
-- the newest segment and each one before it; then '<ddI4' for each hold, in the order of their ends: holder, until,
-- hits; then '<ddI4I4' for each closed one, in the order of `at`: holder, at, paid, kind
-- figure1: holder; figure2: 1 for a settle; figure3: the hits that were used; figure4: how long a hold lasts (ms);
-- figure5: 1 if an unsettled hold is refunded, 0 if it is charged
local function decide_budget(
  state, hits, by_others, number, period, now, charge, holder, settles, actual, within, refunds)
  local HEADER, HOLD, CLOSED = '<dddI4I4', '<ddI4', '<ddI4I4'
  local HEADER_SIZE, HOLD_SIZE, CLOSED_SIZE = 32, 20, 24
  -- The same as in the twin.
  local SEGMENTS, MAX_HOLDS, MAX_CLOSED = 10, 10000, 100
  local SETTLED, OVERTOOK, DENIED, EXPIRED = 0, 1, 2, 3
  local segment = math.ceil(period / SEGMENTS)
  local segments = math.ceil(period / segment)
  -- Times are truncated to milliseconds, so a hold is kept one millisecond longer to cover the whole time.
  local held = within + 1
  local mark = struct.pack('<d', holder)

  -- The time on the counter's own clock, which never steps back, and the same by the clock of Redis.
  local time, clock, shift = now, now, 0
  local index = (now - now % segment) / segment
  local reserved, holds, closed = 0, '', {}
  local counts = {}
  for age = 0, segments do
    counts[age + 1] = 0
  end
  local changed, set_back = false, false
  local function count_at(at)
    return index - math.floor(at / segment) + 1
  end
  local function hold_at(place)
    local one, stop, one_hits = struct.unpack(HOLD, holds, place)
    assert_sound(is_whole(stop) and one_hits > 0)
    return one, stop, one_hits
  end
  -- Removes hits of a hold, and the whole hold if nothing is left of it.
  local function remove_hold(place, one_hits, rest)
    if not rest or select(3, struct.unpack(HOLD, rest)) == 0 then
      rest = ''
    end
    holds = string.sub(holds, 1, place - 1) .. rest .. string.sub(holds, place + HOLD_SIZE)
    reserved = reserved - one_hits
    assert_sound(reserved >= 0)
  end
  -- Returns the position of the first hold of this holder, from one position on.
  local function find(from)
    return find_entry(holds, mark, from)
  end
  local function close(kind, one, at, paid)
    local place = #closed + 1
    while place > 1 and closed[place - 1].at > at do
      place = place - 1
    end
    table.insert(closed, place, {holder = one, at = at, paid = math.min(paid, MAX_COUNT), kind = kind})
    if #closed > MAX_CLOSED then
      -- A late settle still has to correct what was charged at the end of a hold.
      local oldest = 1
      while oldest <= #closed and closed[oldest].kind == EXPIRED do
        oldest = oldest + 1
      end
      table.remove(closed, oldest <= #closed and oldest or 1)
    end
  end

  if state then
    local counts_size = 4 * (segments + 1)
    local first = HEADER_SIZE + counts_size + 1
    assert_sound(#state >= first - 1)
    local before, stored_shift, stored_index, stored_reserved, count = struct.unpack(HEADER, state)
    assert_sound(is_whole(before) and is_whole(stored_shift) and stored_index == math.floor(before / segment))
    local last = first - 1 + count * HOLD_SIZE
    assert_sound(last <= #state and (#state - last) % CLOSED_SIZE == 0)
    holds, reserved, shift = string.sub(state, first, last), stored_reserved, stored_shift
    clock = now + shift
    if before - clock > period then
      shift, clock, changed, set_back = before - now, before, true, true
    end
    assert_sound(is_whole(shift) and is_whole(clock))
    time = math.max(clock, before)
    if hits > 0 and math.floor(before / period) ~= math.floor(time / period) then
      -- All holds are checked once in a period, so damage persists no longer than that.
      local sum, previous = 0, 0
      for place = 1, #holds, HOLD_SIZE do
        local _, stop, one_hits = hold_at(place)
        assert_sound(stop >= previous)
        sum, previous = sum + one_hits, stop
      end
      assert_sound(sum == reserved)
    end
    index = math.floor(time / segment)
    local left = index - stored_index
    for age = left, segments do
      counts[age + 1] = struct.unpack('<I4', state, HEADER_SIZE + 4 * (age - left) + 1)
    end
    local previous = 0
    for place = last + 1, #state, CLOSED_SIZE do
      local one, at, paid, kind = struct.unpack(CLOSED, state, place)
      assert_sound(is_whole(at) and at >= previous and at <= before and kind <= EXPIRED)
      previous = at
      if at + REMEMBERED > time then
        closed[#closed + 1] = {holder = one, at = at, paid = paid, kind = kind}
      end
    end
    local over = 0
    while over < #holds do
      local one, stop, one_hits = hold_at(over + 1)
      if stop > time then
        break
      end
      over, reserved = over + HOLD_SIZE, reserved - one_hits
      local place = count_at(stop)
      if refunds == 0 and place <= segments + 1 then
        counts[place] = add(counts[place], one_hits)
      end
      if stop + REMEMBERED > time then
        close(EXPIRED, one, stop, refunds == 0 and one_hits or 0)
      end
    end
    holds = string.sub(holds, over + 1)
    assert_sound(reserved >= 0 and (reserved > 0) == (#holds > 0))
    local sum = 0
    for place = 1, segments + 1 do
      sum = sum + counts[place]
    end
    if sum == 0 and #holds == 0 and #closed == 0 then
      -- As a new counter.
      time, clock, shift, index, changed = now, now, 0, (now - now % segment) / segment, false
    end
  end

  -- Returns the closed one with this holder that `is_better` prefers.
  local function closed_of(is_one, is_better)
    local found
    for place = 1, #closed do
      local one = closed[place]
      if one.holder == holder and is_one(one) and (not found or is_better(one, closed[found])) then
        found = place
      end
    end
    return found
  end
  local function never()
    return false
  end
  local function used()
    local sum = 0
    for place = 1, segments + 1 do
      sum = sum + counts[place]
    end
    return sum
  end
  -- A stream that is denied settles as well. That must not close the hold of another stream with the same name.
  local function remember_denied()
    if find(1) then
      close(DENIED, holder, time, 0)
      changed = true
    end
  end

  local allowed = true
  if settles == 1 then
    local denied = actual == 0 and closed_of(function(one) return one.kind == DENIED end, never)
    local place = not denied and find(1)
    if denied then
      table.remove(closed, denied)
      changed = true
    elseif place then
      local _, _, one_hits = hold_at(place)
      remove_hold(place, one_hits)
      counts[1] = add(counts[1], actual)
      close(SETTLED, holder, time, actual)
      changed = true
    else
      local found = closed_of(function(one) return one.kind ~= DENIED end, function(one, other)
        if (one.kind == EXPIRED) ~= (other.kind == EXPIRED) then
          return one.kind == EXPIRED
        end
        return one.kind ~= EXPIRED and one.paid < other.paid
      end)
      local one = closed[found]
      if one and one.kind == EXPIRED then
        local age = count_at(one.at)
        if actual < one.paid and age <= segments + 1 then
          counts[age] = add(counts[age], actual - one.paid)
        end
        counts[1] = add(counts[1], math.max(actual - one.paid, 0))
        one.paid, one.kind, changed = math.min(actual, MAX_COUNT), SETTLED, true
      elseif one and actual > one.paid then
        counts[1] = add(counts[1], actual - one.paid)
        one.paid, changed = math.min(actual, MAX_COUNT), true
      elseif not one and actual > 0 then
        counts[1] = add(counts[1], actual)
        close(OVERTOOK, holder, time, actual)
        changed = true
      end
    end
  elseif charge and not set_back then
    -- The hold that began with the charge, or what it was charged when it ended. After a clock reset it is unknown.
    local stop = charge.at + shift + held
    local expired = closed_of(function(one)
      return one.kind == EXPIRED and one.paid == -hits and one.at == stop
    end, never)
    local its = struct.pack(HOLD, holder, stop, -hits)
    local place = not expired and find(1)
    while place and string.sub(holds, place, place + HOLD_SIZE - 1) ~= its do
      place = find(place + HOLD_SIZE)
    end
    if place then
      remove_hold(place, -hits)
    elseif expired then
      local count = count_at(closed[expired].at)
      if count <= segments + 1 then
        counts[count] = add(counts[count], hits)
      end
      table.remove(closed, expired)
    end
    if place or expired then
      changed = true
      remember_denied()
    end
  elseif hits < 0 and not charge then
    -- Releases the newest hits of the holder.
    local own, owed = {}, -hits
    local place = find(1)
    while place do
      own[#own + 1] = place
      place = find(place + HOLD_SIZE)
    end
    for i = #own, 1, -1 do
      local one, stop, one_hits = hold_at(own[i])
      local released = math.min(owed, one_hits)
      if released > 0 then
        remove_hold(own[i], released, struct.pack(HOLD, one, stop, one_hits - released))
        owed, changed = owed - released, true
      end
    end
  elseif hits > 0 then
    local overtook = closed_of(function(one) return one.kind == OVERTOOK end, never)
    if overtook then
      allowed = not by_others
      if allowed then
        closed[overtook].kind, changed = SETTLED, true
      end
    else
      allowed = not by_others and used() + reserved + hits <= number and #holds < MAX_HOLDS * HOLD_SIZE
      if allowed then
        local place, stop = #holds + 1, time + held
        while place > 1 and select(2, hold_at(place - HOLD_SIZE)) > stop do
          place = place - HOLD_SIZE
        end
        holds = string.sub(holds, 1, place - 1) .. struct.pack(HOLD, holder, stop, hits) .. string.sub(holds, place)
        reserved, changed = reserved + hits, true
      else
        remember_denied()
      end
    end
  end

  -- The time when the hits of a hold are free at the latest.
  local function free_at(stop)
    return refunds == 1 and stop or (math.floor(stop / segment) + segments + 1) * segment
  end
  local function gone(place)
    return (index + segments + 2 - place) * segment
  end
  local retry_after = allowed and 0 or NEVER
  if not allowed and not by_others and hits <= number then
    local owed = used() + reserved + hits - number
    local at = #holds >= MAX_HOLDS * HOLD_SIZE and (select(2, hold_at(1))) or 0
    local place, hold = segments + 1, 1
    while owed > 0 do
      local hold_time, hold_hits = math.huge, 0
      if hold < #holds then
        local _, stop, one_hits = hold_at(hold)
        hold_time, hold_hits = free_at(stop), one_hits
      end
      assert_sound(place > 0 or hold < #holds)
      if place > 0 and gone(place) <= hold_time then
        if counts[place] > 0 then
          owed, at = owed - counts[place], math.max(at, gone(place))
        end
        place = place - 1
      else
        owed, at, hold = owed - hold_hits, math.max(at, hold_time), hold + HOLD_SIZE
      end
    end
    retry_after = at - clock
  end
  local reset_at = clock
  for place = segments + 1, 1, -1 do
    if counts[place] > 0 then
      reset_at = math.max(reset_at, gone(place))
    end
  end
  local kept = reset_at
  if #holds > 0 then
    -- As if it were charged when it ends, since a rule change may say so.
    local _, stop = hold_at(#holds - HOLD_SIZE + 1)
    reset_at = math.max(reset_at, free_at(stop))
    kept = math.max(reset_at, (math.floor(stop / segment) + segments + 1) * segment, stop + REMEMBERED)
  end
  if #closed > 0 then
    kept = math.max(kept, closed[#closed].at + REMEMBERED)
  end
  local packed = false
  if changed then
    local parts = {
      struct.pack(HEADER, time, shift, index, reserved, #holds / HOLD_SIZE),
      struct.pack('<' .. string.rep('I4', segments + 1), unpack(counts)),
      holds,
    }
    for _, one in ipairs(closed) do
      parts[#parts + 1] = struct.pack(CLOSED, one.holder, one.at, one.paid, one.kind)
    end
    packed = table.concat(parts)
  end
  return packed, kept - clock, allowed, math.max(number - used() - reserved, 0), reset_at - clock, retry_after
end

algorithms[#algorithms + 1] = function(
  state, hits, by_others, number, period, count_denied, now, charge, holder, settles, actual, within, refunds)
  return decide_mended(
    decide_budget, state, nil, hits, by_others, number, period, now, charge, holder, settles, actual, within, refunds)
end
