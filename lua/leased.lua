-- Leases: the hits of a counter that instances hold in advance, and how they occupy it. The twin of
-- src/engine/algorithm/leased.rs, and of decide_leased in src/engine/check/group.rs. A part of decide.lua in the script
-- for calls with leases.
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

-- The answer about leases: the hits of a new one, its end, and all that are out.
local function answer_leases(i, leases)
  damaged = leases[4]
  answer(i, true, leases[1], leases[2], leases[3], 0)
end

-- Returns what a check asks of its counter's leases, and the offset of the next part.
local function lease_of(offset)
  local occupies, capacity, returned_until, returned, used, want, ttl, most, next_offset =
    struct.unpack(LEASE, asked, offset)
  local lease = {occupies = occupies, capacity = capacity, returned_until = returned_until, returned = returned}
  lease.used, lease.want, lease.ttl, lease.most = used, want, ttl, most
  return lease, next_offset
end

-- Decides a check of a limit with leases, whose counter of leases has this key. src/engine/algorithm/leased.rs says how
-- they occupy the limit's counter. Returns what `decide` does, and the answer about the leases.
local function decide_leased(
  pending, key, leased_key, lease, extras, denied, hits, algorithm, count_denied, number, period, charge,
  figure1, figure2, figure3, figure4, figure5)
  local before, leases_before = pending[key], pending[leased_key]
  local damaged_before = damaged
  damaged = false
  local settled = settle_leased(
    pending_state(pending, leased_key), now, lease.returned_until, lease.returned, lease.used)
  local damaged_leases = damaged
  damaged = damaged_before
  local occupies = lease.occupies
  local function also(other_hits, charges, at)
    return decide(
      pending, key, at or now, 0, false, other_hits, algorithm, charges or count_denied, number, period, nil,
      figure1, figure2, figure3, figure4, figure5)
  end
  -- Takes the tokens for which there is no room, as so many hits were out until then.
  local function spill(out, at)
    local _, tokens = also(0, nil, at)
    -- One more, because there may be a fraction of a token.
    local excess = math.max(tokens, 0) - math.max(lease.capacity - out - 1, 0)
    if excess > 0 then
      also(excess, nil, at)
    end
  end
  if occupies == TOKENS then
    local out = settled.occupied
    for _, ended in ipairs(settled.ended) do
      spill(out, ended.at)
      out = out - ended.hits
    end
    if out > 0 then
      spill(out, now)
    end
  end
  local own_number = number
  if occupies == ROOM then
    for _, ended in ipairs(settled.ended) do
      if ended.at + period > now then
        also(ended.hits, 1, ended.at)
      end
    end
    if settled.used > 0 then
      also(settled.used, 1)
    end
    own_number = math.max(number - settled.out, 0)
  elseif settled.unused > 0 then
    also(-settled.unused)
  end

  local allowed, remaining, reset_after, retry_after, delay = decide(
    pending, key, now, extras, denied, hits, algorithm, count_denied, own_number, period, charge,
    figure1, figure2, figure3, figure4, figure5)
  local is_reset = extras % 4 >= 2
  if is_reset and occupies == WINDOW and settled.out > 0 then
    also(settled.out)
    allowed, remaining, reset_after, retry_after, delay = also(0)
  end
  local last = settled.ends[#settled.ends]
  if last and occupies == ROOM then
    -- At the latest, all that is out is charged then, and a period later it is gone.
    local gone = last + period - now
    reset_after = math.max(reset_after, gone)
    if not allowed and retry_after == NEVER and hits <= number then
      retry_after = gone
    end
  end
  local lent, latest = 0, nil
  if allowed and not denied and hits >= 0 and not is_reset and not charge then
    lent = lends(settled, lease.want, lease.ttl, lease.most, remaining, now)
  end
  if lent > 0 and occupies ~= ROOM then
    local taken, _, ends_after = also(lent)
    lent = taken and lent or 0
    latest = occupies == WINDOW and now + ends_after or nil
  end
  local until_ = lend(settled, lent, lease.ttl, latest, now)
  if settled.changed or (damaged_leases and hits ~= 0) then
    local state, ttl = stored_leased(settled, period, now)
    pending[leased_key] = {state = state, ttl = ttl}
  end
  if hits == 0 and not is_reset and lease.returned == 0 and lease.want == 0 then
    -- Nothing is written, so a replica can answer, too.
    pending[key], pending[leased_key] = before, leases_before
  end
  return allowed, remaining, reset_after, retry_after, delay, {lent, until_, settled.out, damaged_leases}
end
