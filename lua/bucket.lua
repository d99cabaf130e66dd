-- The common part of the two bucket algorithms: hits fill the bucket, and `number` hits leak out per period, evenly and
-- without end. Hits beyond the burst may be delayed by up to max_delay. A bucket starts full, or empty if `kept` (how
-- long a full one is then kept) is not 0. The twin of src/engine/algorithm/bucket.rs.
-- state: '<dddd' at (ms since the epoch), missing (whole hits; those above the burst wait, or are debt), fraction (in
-- 1/period of a hit), until (expiry, ms since the epoch; from then on equivalent to a new bucket); then, if a charge
-- was taken back, '<d' the time of the last take-back (ms since the epoch)

-- Returns the hits that leak in `ms`, up to a whole refill, and the fraction in units of 1/period of a hit.
local function leaked_in(ms, number, period)
  local hits, fraction = mul_div(ms % period, number, period)
  return hits + math.floor(ms / period) * number, fraction
end

-- Subtracts whole hits and a fraction from an amount, down to 0.
local function less_by(from, from_fraction, hits, fraction, period)
  if from < hits or (from == hits and from_fraction < fraction) then
    return 0, 0
  elseif from_fraction >= fraction then
    return from - hits, from_fraction - fraction
  end
  return from - hits - 1, from_fraction + period - fraction
end

-- Unpacks a state; nothing if it is damaged.
local function unpack_bucket(state, period)
  if #state ~= 32 and #state ~= 40 then
    return
  end
  local at, missing, fraction, until_ = struct.unpack('<dddd', state)
  local taken_back = #state == 40 and struct.unpack('<d', state, 33) or 0
  if is_whole(at) and is_whole(missing) and is_whole(fraction) and fraction < period and is_whole(until_)
    and is_whole(taken_back)
  then
    return at, missing, fraction, until_, taken_back
  end
end

-- Returns the time in which this many hits and the fraction leak.
local function leak(hits, fraction, number, period)
  if hits == 0 and fraction == 0 then
    return 0
  end
  local quotient, rest = mul_div(period, hits, number)
  return quotient + math.ceil((rest + fraction) / number)
end

-- Returns when the key of a bucket expires, given the time of its state and its expiry, and the step to which that is
-- rounded up. The twin of `key_expiry`.
local function key_expiry(at, until_)
  local ttl = until_ - at
  local step = ttl < 8000 and 1 or ttl < 64000 and 1000 or ttl < 512000 and 8000 or 64000
  return until_ + -until_ % step, step
end

local function bucket(
  state, hits, denied, number, period, count_denied, now, charge, burst, deepest, refill, max_delay, kept)
  local most = count_denied and deepest + number or deepest
  local time = now
  local set_back = false
  local missing = 0
  local fraction = 0
  local until_ = 0
  local taken_back = 0
  local unseen = true
  local at
  local stored_missing, stored_fraction, stored_until, stored_taken_back
  local latest
  local too_far = false
  if state then
    at, stored_missing, stored_fraction, stored_until, stored_taken_back = unpack_bucket(state, period)
    damaged = damaged or not at
  end
  if at then
    missing, fraction, until_ = stored_missing, stored_fraction, stored_until
    -- A later expiry is from a slower limit before a rule change, or damaged. The latest one counts from the time of
    -- the state, so a request that charges nothing cannot extend it.
    latest = at + refill + kept + REMEMBERED
    too_far = until_ > latest
    until_ = math.min(until_, latest)
    unseen = now >= until_
  end
  if not unseen then
    taken_back = stored_taken_back
    time, set_back = steady(now, at, period)
    if missing >= most then
      missing, fraction = most, 0
    end
    local elapsed = set_back and 0 or time - at
    if elapsed >= refill then
      missing, fraction = 0, 0
    else
      local restored, restored_part = leaked_in(elapsed, number, period)
      missing, fraction = less_by(missing, fraction, restored, restored_part, period)
    end
  elseif kept > 0 then
    missing, fraction = burst, 0
  else
    missing, fraction = 0, 0
  end

  -- Hits that leak while a request is delayed.
  local queue, part = 0, 0
  if max_delay > 0 then
    queue, part = mul_div(max_delay, number, period)
  end
  local capacity = burst + queue
  -- Negative in debt.
  local room = capacity - missing - (fraction > part and 1 or 0)
  local allowed = hits < 0 or (not denied and hits <= room)
  local begins = unseen and kept > 0 and hits > 0
  -- A limit with the number 0 stores nothing, not even denials.
  local charged = hits ~= 0 and number > 0 and (allowed or count_denied)
  local retry_after = allowed and 0 or NEVER
  if charge then
    local left, left_part = 0, 0
    -- After a clock reset the time of the charge is unknown.
    if number > 0 and not unseen and not set_back and charge.at <= time then
      -- The bucket's level right after the charge. The verdict rounded its time up to a millisecond.
      local empties = math.min(math.max(charge.at + charge.reset_after - kept - time, 0), refill)
      local elapsed = time - charge.at
      -- If buckets start empty, the level is known only until the first take-back.
      local is_level_known = charge.at > taken_back and (kept == 0 or taken_back == 0)
      if is_level_known then
        left, left_part = leaked_in(math.max(empties - 1, 0), number, period)
        if left >= -hits then
          left, left_part = -hits, 0
        end
      elseif elapsed < refill then
        left, left_part = leaked_in(elapsed, number, period)
        left, left_part = less_by(-hits, 0, left, left_part, period)
      end
      -- No request waits behind the last charge.
      local level, level_part = leaked_in(empties, number, period)
      local is_last = is_level_known and (missing < level or (missing == level and fraction <= level_part))
      if (missing > burst or (missing == burst and fraction > 0)) and not is_last then
        left, left_part = 0, 0
      end
    end
    charged = left > 0 or left_part > 0
    if charged then
      missing, fraction = less_by(missing, fraction, left, left_part, period)
      taken_back = time
    end
  elseif charged then
    local sum = missing + hits
    if sum < 0 then
      missing, fraction = 0, 0
    elseif sum >= most then
      missing, fraction = most, 0
    else
      missing = sum
    end
  end
  if not allowed and not denied and hits <= capacity then
    local over = missing + hits - burst
    retry_after = time - now + leak(over, fraction, number, period) - max_delay
  end

  local empties = leak(missing, fraction, number, period)
  local is_empty = missing == 0 and fraction == 0
  -- A limit that became slower must keep its counter longer than was stored. A bucket that starts empty must be kept
  -- even when it is full, because a new one is not.
  local needed = time + empties + (kept > 0 and 1 or 0)
  local outlives = hits > 0 and not unseen and (too_far or (not is_empty and needed > until_))
  local changed = charged or begins or set_back
  if changed or outlives then
    -- Forgetting a bucket that starts empty cannot allow extra hits.
    local owed = kept > 0 and 0 or missing + (fraction > 0 and 1 or 0)
    local least = taken_back > 0 and not set_back and until_ or 0
    until_ = math.max(time + math.max(empties + kept, math.min(REMEMBERED, owed * period)), least)
    if not changed then
      until_ = math.min(until_, latest)
    end
  end
  local reset_after
  if kept == 0 then
    reset_after = is_empty and 0 or math.min(time - now + empties, until_ - now)
  elseif unseen and not changed then
    reset_after = 0
  else
    reset_after = until_ - now
  end
  if not unseen and retry_after ~= NEVER then
    retry_after = math.min(retry_after, until_ - now)
  end
  local delay = 0
  if allowed and hits > 0 and missing >= burst then
    delay = leak(missing - burst, fraction, number, period)
  end
  room = capacity - missing - (fraction > part and 1 or 0)
  local stored = false
  if changed then
    stored = struct.pack('<dddd', time, missing, fraction, until_)
  elseif outlives then
    -- A larger amount than the present limit can use may matter to another limit, so it is stored unchanged.
    stored = struct.pack('<dddd', at, stored_missing, stored_fraction, until_)
  end
  if stored and taken_back > 0 then
    stored = stored .. struct.pack('<d', taken_back)
  end
  local ttl, lasting = 0, false
  if stored and until_ > time then
    local expiry, step = key_expiry(changed and time or at, until_)
    ttl = expiry - now
    if not unseen then
      -- With the same step, the present TTL was computed from the same expiry.
      local stored_expiry, stored_step = key_expiry(at, stored_until)
      lasting = stored_expiry == expiry and stored_step == step
    end
  end
  return stored, ttl, allowed, math.max(room, 0), reset_after, retry_after, lasting, delay
end
