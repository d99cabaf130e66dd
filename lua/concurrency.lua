-- Concurrency: no more than the number in progress at once; a slot is given back by its holder, or frees itself after the period.
-- The twin of src/algorithm/concurrency.rs.
-- state: for each slot, the newest last, '<ddI4' holder, at (ms since the epoch), hits
algorithms[#algorithms + 1] = function(state, hits, number, period, count_denied, now, holder)
  -- Time is cut to milliseconds: one more, lest a slot be free before it was held for the whole of the period.
  local held = period + 1
  local time = now
  local set_back = false
  local slots = {}
  local used = 0
  if state and #state > 0 then
    local _, newest = struct.unpack('<ddI4', state, #state - 19)
    time, set_back = hold(now, newest, period)
    -- A clock that was set back finds every slot as old as the old clock left it.
    local back = set_back and newest - now or 0
    for from = 1, #state, 20 do
      local slot_holder, at, slot_hits = struct.unpack('<ddI4', state, from)
      at = math.max(at - back, 0)
      if at + held > time then
        slots[#slots + 1] = {holder = slot_holder, at = at, hits = slot_hits}
        used = used + slot_hits
      end
    end
  end

  local allowed = hits < 0 or used + hits <= number
  local charged = false
  if hits > 0 and allowed then
    slots[#slots + 1] = {holder = holder, at = time, hits = hits}
    used = used + hits
    charged = true
  elseif hits < 0 then
    local owed = -hits
    for i = #slots, 1, -1 do
      local slot = slots[i]
      if slot.holder == holder then
        local given = math.min(owed, slot.hits)
        slot.hits = slot.hits - given
        used = used - given
        owed = owed - given
        charged = charged or given > 0
      end
    end
  end

  local reset_after = 0
  local retry_after = allowed and 0 or NEVER
  local younger = used
  local packed = {}
  for _, slot in ipairs(slots) do
    if slot.hits > 0 then
      younger = younger - slot.hits
      reset_after = slot.at + held - now
      if retry_after == NEVER and younger + hits <= number then
        retry_after = reset_after
      end
      packed[#packed + 1] = struct.pack('<ddI4', slot.holder, slot.at, slot.hits)
    end
  end
  local changed = charged or set_back
  return changed and table.concat(packed), allowed, math.max(number - used, 0), reset_after, retry_after
end
