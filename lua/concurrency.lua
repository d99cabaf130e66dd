-- Concurrency: no more than the number in progress at once; a slot is given back by its holder, or frees itself after the period.
-- The twin of src/algorithm/concurrency.rs. There may be thousands of slots, so that they stay packed: none is looked at in vain.
-- state: '<I4' used (the hits of all slots), then for each slot, the newest last, '<ddI4' holder, at (ms since the epoch), hits
algorithms[#algorithms + 1] = function(state, hits, number, period, count_denied, now, holder)
  local layout, size = '<ddI4', 20
  -- Time is cut to milliseconds: one more, lest a slot be free before it was held for the whole of the period.
  local held = period + 1
  local time = now
  local set_back = false
  local used = 0
  local slots = state and string.sub(state, 5) or ''
  if #slots > 0 then
    local _, newest = struct.unpack(layout, slots, #slots - size + 1)
    time, set_back = hold(now, newest, period)
    used = struct.unpack('<I4', state)
    if set_back then
      -- Every slot is as old as the old clock left it.
      local back = newest - now
      local moved = {}
      for from = 1, #slots, size do
        local slot_holder, at, slot_hits = struct.unpack(layout, slots, from)
        moved[#moved + 1] = struct.pack(layout, slot_holder, math.max(at - back, 0), slot_hits)
      end
      slots = table.concat(moved)
    end
    local over = 0
    while over < #slots do
      local _, at, slot_hits = struct.unpack(layout, slots, over + 1)
      if at + held > time then
        break
      end
      over = over + size
      used = used - slot_hits
    end
    slots = string.sub(slots, over + 1)
  end

  local allowed = hits < 0 or used + hits <= number
  local charged = false
  if hits > 0 and allowed then
    slots = slots .. struct.pack(layout, holder, time, hits)
    used = used + hits
    charged = true
  elseif hits == -9007199254740992 then
    -- All that can be given back: a reset by hand, which frees every slot, whoever holds it.
    charged = #slots > 0
    slots = ''
    used = 0
  elseif hits < 0 then
    local own = {}
    local mark = struct.pack('<d', holder)
    local from = string.find(slots, mark, 1, true)
    while from do
      -- The same bytes may stand across others.
      if from % size == 1 then
        own[#own + 1] = from
      end
      from = string.find(slots, mark, from + 1, true)
    end
    local owed = -hits
    for i = #own, 1, -1 do
      local _, at, slot_hits = struct.unpack(layout, slots, own[i])
      local given = math.min(owed, slot_hits)
      local rest = given < slot_hits and struct.pack(layout, holder, at, slot_hits - given) or ''
      slots = string.sub(slots, 1, own[i] - 1) .. rest .. string.sub(slots, own[i] + size)
      used = used - given
      owed = owed - given
      charged = charged or given > 0
    end
  end

  local reset_after = 0
  if #slots > 0 then
    local _, newest = struct.unpack(layout, slots, #slots - size + 1)
    reset_after = newest + held - now
  end
  local retry_after = allowed and 0 or NEVER
  if not allowed and hits <= number then
    local younger = used
    local from = 1
    repeat
      local _, at, slot_hits = struct.unpack(layout, slots, from)
      younger = younger - slot_hits
      from = from + size
      retry_after = at + held - now
    until younger + hits <= number
  end
  local changed = charged or set_back
  return changed and struct.pack('<I4', used) .. slots, allowed, math.max(number - used, 0), reset_after, retry_after
end
