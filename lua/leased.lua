-- Leases: the hits of a counter that instances hold in advance, and how they occupy it. The twin of
-- src/engine/algorithm/leased.rs, and of decide_leased in src/engine/check/group.rs.
-- state: '<dI4' for each end of leases, in ascending order: its time (ms since the epoch), and the hits that are out
-- until then
-- Hits that are out take room (0), or are charged when they are granted: until the window ends (1), or from tokens (2).
local ROOM, WINDOW, TOKENS = 0, 1, 2
-- MAX_TTL_MS, PART and MAX_ENDS of leased.rs.
local MAX_TTL, PART, MAX_ENDS = 30000, 8, 64

-- Unpacks a state: its ends and the hits of each; nil if it is damaged.
local function unpack_leased(state)
  if #state == 0 or #state % 12 ~= 0 or #state > 12 * MAX_ENDS then
    return nil
  end
  local ends, out = {}, {}
  for place = 1, #state, 12 do
    local until_, hits = struct.unpack('<dI4', state, place)
    if not is_whole(until_) or hits == 0 or (#ends > 0 and until_ <= ends[#ends]) then
      return nil
    end
    ends[#ends + 1], out[#out + 1] = until_, hits
  end
  return ends, out
end

local function sum_of(out)
  local sum = 0
  for _, hits in ipairs(out) do
    sum = sum + hits
  end
  return sum
end

-- Returns the end of a lease, rounded up so that few ends are stored.
local function end_of(ttl, now)
  local step = math.max(math.floor(ttl / 4), 1)
  return math.ceil((now + ttl) / step) * step
end

-- Ends leases by the time, and takes one back. Returns what is out, by ends, and what that changes.
local function settle_leased(state, now, returned_until, returned, used)
  local ends, out = {}, {}
  if state then
    ends, out = unpack_leased(state)
    if not ends then
      ends, out, damaged = {}, {}, true
    end
  end
  local settled = {changed = false, ended = {}, used = 0, unused = 0, occupied = sum_of(out)}
  local kept_ends, kept = {}, {}
  -- After the clock was set back, leases end later than any lease can.
  local latest = now + 2 * MAX_TTL
  for i = 1, #ends do
    local until_ = ends[i]
    if until_ > latest then
      until_ = latest
      settled.changed = true
    end
    if kept_ends[#kept_ends] == until_ then
      kept[#kept] = add(kept[#kept], out[i])
    elseif until_ > now then
      kept_ends[#kept_ends + 1], kept[#kept + 1] = until_, out[i]
    else
      settled.changed = true
      settled.ended[#settled.ended + 1] = {at = until_, hits = out[i]}
    end
  end
  if returned > 0 then
    for i = 1, #kept_ends do
      if kept_ends[i] == returned_until and kept[i] >= returned then
        settled.changed = true
        settled.used = used
        settled.unused = math.max(returned - used, 0)
        kept[i] = kept[i] - returned
        if kept[i] == 0 then
          table.remove(kept_ends, i)
          table.remove(kept, i)
        end
        break
      end
    end
  end
  settled.ends, settled.hits, settled.out = kept_ends, kept, sum_of(kept)
  return settled
end

-- Returns the hits of a new lease, where this many remain.
local function lends(settled, want, ttl, most, remaining, now)
  local until_, is_full = end_of(ttl, now), #settled.ends >= MAX_ENDS
  for _, other in ipairs(settled.ends) do
    is_full = is_full and other ~= until_
  end
  if want == 0 or is_full then
    return 0
  end
  local left = math.ceil(math.max(most - settled.out, 0) / 2)
  return math.min(want, math.floor(remaining / PART), left)
end

-- Adds a lease of these hits, and returns its end.
local function lend(settled, hits, ttl, latest, now)
  if hits == 0 then
    return 0
  end
  local until_ = end_of(ttl, now)
  if latest then
    until_ = math.min(until_, latest)
  end
  local place = 1
  while settled.ends[place] and settled.ends[place] < until_ do
    place = place + 1
  end
  if settled.ends[place] == until_ then
    settled.hits[place] = settled.hits[place] + hits
  else
    table.insert(settled.ends, place, until_)
    table.insert(settled.hits, place, hits)
  end
  settled.changed = true
  settled.out = settled.out + hits
  return until_
end

-- Returns the state to store and its TTL. It is kept for a period after the last end, because hits that are not
-- returned are charged at the next decision.
local function stored_leased(settled, period, now)
  if #settled.ends == 0 then
    return '', 0
  end
  local parts = {}
  for i = 1, #settled.ends do
    parts[i] = struct.pack('<dI4', settled.ends[i], settled.hits[i])
  end
  return table.concat(parts), settled.ends[#settled.ends] + period - now
end
