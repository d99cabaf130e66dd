-- The checks of a request are decided as a group: if any check denies the request, no hits are taken; refunds still
-- happen, and limits that count denials are charged. The twin of src/engine/check/group.rs.
local CHECK, CHARGE, PENALTY, USAGE = '<BBBBdddddddd', '<dd', '<dddd', '<BBddddI4c0'
local LEASE, ANSWER = '<dddddddd', '<Bdddd'
-- In place of a check: it is the same as the previous one, of another counter.
local REPEATED = 0
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local asked = ARGV[1]
local answers = {}
-- What follows behind all answers, by the answer.
local behind = {}

-- The counter that was last read or written.
local last_key

-- Defines and returns an algorithm. Redis runs the script anew in every call, and each definition costs time.
local function define(number)
  -- ALGORITHMS
  return algorithms[number]
end

local function read(key, algorithm)
  last_key = key
  local open = openers[algorithm]
  if open then
    return open(key)
  end
  return ask('GET', key)
end

local function answer(i, allowed, remaining, reset_after, retry_after, delay)
  behind[i] = told_behind
  local flags = (allowed and 1 or 0) + (damaged and 4 or 0) + (told_behind and 8 or 0)
  damaged, told_behind = false, nil
  answers[i] = struct.pack(ANSWER, flags, remaining, reset_after, retry_after, delay or 0)
end

-- Returns whether the error means that this cluster node does not have a counter. Redis reports this when the counter
-- is read, before anything is written. The text depends on its version.
local function is_elsewhere(err)
  local text = string.lower(err)
  return string.find(text, 'attempted to access a non local key', 1, true)
    or string.find(text, 'attempted to access a slot not served', 1, true)
    or string.find(text, 'while the cluster is down', 1, true)
end

-- Defines and returns the function that decides a group. Most calls have none.
local function define_groups()
  -- Returns a counter's state after the preceding checks.
  local function pending_state(pending, key, algorithm)
    local found = pending[key]
    if not found then
      return read(key, algorithm), nil
    end
    -- After a reset, the state of a list or a hash is an empty one, not nil.
    return (found.ttl > 0 or openers[algorithm]) and found.state or nil, found
  end

  -- Returns the charge that a check takes back, and the offset of the next part.
  local function charge_of(offset)
    local at, reset_after, next_offset = struct.unpack(CHARGE, asked, offset)
    return {at = at, reset_after = reset_after}, next_offset
  end

  -- Returns the usage to record, and the offset of the next part.
  local function usage_of(offset)
    local occasion, costs_denied, period, kept, at, cost, tag, next_offset = struct.unpack(USAGE, asked, offset)
    local usage = {occasion = occasion, costs_denied = costs_denied == 1, period = period, kept = kept}
    usage.at, usage.cost, usage.tag = at, cost, tag
    return usage, next_offset
  end

  -- Decides one check of a group, at this time.
  local function decide(
    pending, key, at, extras, denied, hits, algorithm, count_denied, number, period, charge,
    figure1, figure2, figure3, figure4, figure5)
    local run = algorithms[algorithm] or define(algorithm)
    local old, found
    if extras % 4 >= 2 then
      -- A reset deletes the key without reading it, whatever its content.
      old = openers[algorithm] and openers[algorithm](key, 'empty') or nil
      pending[key] = {state = old, ttl = 0}
    else
      old, found = pending_state(pending, key, algorithm)
    end
    local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay, charged, topped_up = run(
      old, hits, denied, number, period, count_denied == 1, at, charge, figure1, figure2, figure3, figure4, figure5)
    if state and lasting and lasting ~= true then
      state, lasting = string.sub(old, 1, lasting) .. state .. string.sub(old, lasting + #state + 1), true
    end
    if state then
      local left = ttl - (now - at)
      ttl = ttl > 0 and math.max(left, 1) or 0
      pending[key] = {state = state, ttl = ttl, lasting = lasting and left > 0 and (not found or found.lasting)}
    elseif damaged and hits ~= 0 then
      pending[key] = {state = openers[algorithm] and openers[algorithm](key, 'empty'), ttl = 0}
    end
    return allowed, remaining, reset_after, retry_after, delay, charged, topped_up
  end

  -- Replaced by leased.lua in the script for calls with leases.
  local lease_of, decide_leased, answer_leases

  local penalty
  local function define_penalty()
  -- PENALTY
    return penalize
  end

  -- Decides the penalty of a check, given the result of its limit.
  local function decide_penalty(pending, key, extras, hits, allowed, after, within, ban, extend)
    penalty = penalty or define_penalty()
    local old
    if extras % 4 >= 2 then
      pending[key] = {ttl = 0}
    else
      old = pending_state(pending, key)
    end
    local event = hits > 0 and (allowed and 1 or 2) or 0
    local state, ttl, unbanned, remaining, reset_after, retry_after =
      penalty(old, event, now, after, within, ban, extend)
    if state then
      pending[key] = {state = state, ttl = ttl}
    elseif damaged and event > 0 then
      pending[key] = {ttl = 0}
    end
    return unbanned, remaining, reset_after, retry_after
  end

  -- Decides a denied request again if hits were taken for it. Returns its counters' states, and what budgets charge, by
  -- the places of their pages; and updates the remaining hits in their answers.
  local function decide_denied(first, offset)
    local pending, charges = {}, {}
    local i = first
    repeat
      local algorithm, flags, count_denied, extras, hits, number, period,
        figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
      local charge
      if extras % 8 >= 4 then
        charge, next_offset = charge_of(next_offset)
      end
      local allowed, _, _, retry_after, delay = struct.unpack(ANSWER, answers[i])
      allowed = allowed % 4 == 1
      local _, remaining, reset_after, leases, charged
      if extras >= 16 then
        local lease
        lease, next_offset = lease_of(next_offset)
        _, remaining, reset_after, _, _, leases = decide_leased(
          pending, KEYS[i], KEYS[i + 1], lease, extras, true, hits, algorithm, count_denied, number, period, charge,
          figure1, figure2, figure3, figure4, figure5)
      else
        _, remaining, reset_after, _, _, charged = decide(
          pending, KEYS[i], now, extras, true, hits, algorithm, count_denied, number, period, charge,
          figure1, figure2, figure3, figure4, figure5)
      end
      answer(i, allowed, remaining, reset_after, retry_after, delay)
      i, offset = i + 1, next_offset
      if leases then
        -- The damage is already part of the answer.
        leases[4] = struct.unpack('<B', answers[i]) >= 4
        answer_leases(i, leases)
        i = i + 1
      end
      if extras % 2 == 1 then
        local after, within, ban, extend, behind = struct.unpack(PENALTY, asked, offset)
        decide_penalty(pending, KEYS[i], extras, hits, allowed, after, within, ban, extend)
        -- The damage is already part of the answer.
        damaged = false
        i, offset = i + 1, behind
      end
      if extras % 16 >= 8 then
        local _, behind = usage_of(offset)
        charges[i] = charged
        i, offset = i + 1, behind
      end
    until flags < 8
    return pending, charges
  end

  -- Reads all counters again before any is written, if they are in several slots of a cluster. While a slot moves, some
  -- versions of Redis allow access to all its counters until a script uses a second slot, and to none of them
  -- afterwards. An error that a key holds a list or a hash, not a string, is ignored: it shows that this node has the
  -- key.
  local function must_be_here(pending, records)
    if #ARGV == 1 then
      return
    end
    local keys = {}
    for key in pairs(pending) do
      keys[#keys + 1] = key
    end
    for _, record in ipairs(records) do
      keys[#keys + 1] = record.page
    end
    for _, key in ipairs(keys) do
      local reply = redis.pcall('GET', key)
      if type(reply) == 'table' and is_elsewhere(reply.err) then
        error(reply.err, 0)
      end
    end
  end

  local record_usage, write_usage
  local function define_usage()
  -- USAGE
    return record, write_records
  end

  -- Decides the checks of one request, starting with counter `first` and the check at `offset`; returns where the next
  -- request begins.
  local function decide_group(first, offset)
    local pending, usages = {}, nil
    local refused, quotas, quotas_over, over, taken = false, 0, 0, false, false
    local i, at = first, offset
    repeat
      local algorithm, flags, count_denied, extras, hits, number, period,
        figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, at)
      local charge
      if extras % 8 >= 4 then
        charge, next_offset = charge_of(next_offset)
      end
      local allowed, remaining, reset_after, retry_after, delay, leases, charged, topped_up
      local used = 0
      if extras >= 16 then
        local lease
        lease, next_offset = lease_of(next_offset)
        used = lease.returned > 0 and lease.used or 0
        allowed, remaining, reset_after, retry_after, delay, leases = decide_leased(
          pending, KEYS[i], KEYS[i + 1], lease, extras, false, hits, algorithm, count_denied, number, period, charge,
          figure1, figure2, figure3, figure4, figure5)
      else
        allowed, remaining, reset_after, retry_after, delay, charged, topped_up = decide(
          pending, KEYS[i], now, extras, false, hits, algorithm, count_denied, number, period, charge,
          figure1, figure2, figure3, figure4, figure5)
      end
      answer(i, allowed, remaining, reset_after, retry_after, delay)
      taken = taken or (allowed and hits > 0 and count_denied == 0)
      i, at = i + 1, next_offset
      if leases then
        answer_leases(i, leases)
        i = i + 1
      end
      if extras % 2 == 1 then
        local after, within, ban, extend, behind = struct.unpack(PENALTY, asked, at)
        local unbanned
        unbanned, remaining, reset_after, retry_after = decide_penalty(
          pending, KEYS[i], extras, hits, allowed, after, within, ban, extend)
        answer(i, unbanned, remaining, reset_after, retry_after)
        allowed = allowed and unbanned
        i, at = i + 1, behind
      end
      if extras % 16 >= 8 then
        local usage
        usage, at = usage_of(at)
        usage.place, usage.page, usage.hits, usage.used, usage.is_taken_back = i, KEYS[i], hits, used, charge ~= nil
        usage.charged, usage.topped_up = charged, topped_up
        usages = usages or {}
        usages[#usages + 1] = usage
        answers[i] = struct.pack(ANSWER, 0, 0, 0, 0, 0)
        i = i + 1
      end
      local role = flags % 4
      if role == 0 then
        refused = refused or not allowed
      elseif role == 1 and hits >= 0 then
        -- A refund does not depend on a quota. A rule is over its limit if any of its checks is.
        if flags % 8 < 4 then
          quotas, over = quotas + 1, false
        end
        if not allowed and not over then
          quotas_over, over = quotas_over + 1, true
        end
      end
    until flags < 8

    local denied = refused or (quotas > 0 and quotas_over == quotas)
    if taken and denied then
      local charges
      pending, charges = decide_denied(first, offset)
      for _, usage in ipairs(usages or {}) do
        usage.charged = charges[usage.place]
      end
    end
    local records = {}
    if usages then
      if not record_usage then
        record_usage, write_usage = define_usage()
      end
      for _, usage in ipairs(usages) do
        last_key = usage.page
        record_usage(records, usage, denied, now)
        if damaged then
          answer(usage.place, false, 0, 0, 0)
        end
      end
    end
    must_be_here(pending, records)
    if usages then
      -- Usage records first: not every Redis user may write them, and if this fails, nothing is charged.
      write_usage(records)
    end
    for key, counter in pairs(pending) do
      last_key = key
      write(key, counter.state, counter.ttl, counter.lasting)
    end
    return i, at
  end

  return decide_group
end

local i, offset = 1, 1
-- The offset of the last check that was given in full.
local given
local decide_group
local function decide_all()
  -- Locals cost less than globals.
  local call, try, pack, byte = redis.call, redis.pcall, struct.pack, string.byte
  local keys, count = KEYS, #KEYS
  local algorithm, flags, count_denied, extras, hits, number, period,
    figure1, figure2, figure3, figure4, figure5, next_offset
  local run, open
  while i <= count do
    local is_given = byte(asked, offset) ~= REPEATED
    given = is_given and offset or given
    -- After an error, `run` is nil.
    if is_given or not run then
      algorithm, flags, count_denied, extras, hits, number, period,
        figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, given)
      run, count_denied = algorithms[algorithm] or define(algorithm), count_denied == 1
      open = openers[algorithm]
    end
    if flags < 8 and extras == 0 then
      -- The fast path for most requests: a single check, which decides alone what it charges.
      local key = keys[i]
      last_key = key
      local state
      if open then
        state = open(key)
      else
        state = try('GET', key)
        -- An error is a table, and a string has no such field.
        if state and state.err then
          state = unreadable(state)
        end
      end
      local ttl, allowed, remaining, reset_after, retry_after, lasting, delay
      state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = run(
        state, hits, false, number, period, count_denied, now, nil, figure1, figure2, figure3, figure4, figure5)
      if lasting == true and state then
        call('SET', key, state, 'KEEPTTL')
      elseif lasting and state then
        call('SETRANGE', key, lasting, state)
      elseif state then
        write(key, state, ttl)
      elseif damaged and hits ~= 0 then
        call('DEL', key)
      end
      if damaged or told_behind then
        answer(i, allowed, remaining, reset_after, retry_after, delay)
      else
        answers[i] = pack(ANSWER, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
      end
      i, offset = i + 1, is_given and next_offset or offset + 1
    else
      decide_group = decide_group or define_groups()
      i, offset = decide_group(i, offset)
    end
  end
end

-- If Redis cannot read or write a counter, only the request that uses it fails.
local failure = ''
repeat
  local ok, err = pcall(decide_all)
  if not ok then
    damaged, told_behind = false, nil
    err = type(err) == 'table' and err.err or err
    local mark = 2
    if is_elsewhere(err) then
      mark = 3
    else
      failure = last_key .. ': ' .. err
    end
    local undecided = struct.pack(ANSWER, mark, 0, 0, NEVER, 0)
    local algorithm, flags, extras, _
    repeat
      algorithm, flags, _, extras = string.byte(asked, offset, offset + 3)
      if algorithm == REPEATED then
        flags, extras, offset = 0, 0, offset + 1
      else
        offset = offset + struct.size(CHECK) + (extras % 8 >= 4 and struct.size(CHARGE) or 0)
      end
      answers[i], behind[i] = undecided, nil
      i = i + 1
      if extras >= 16 then
        answers[i] = undecided
        i, offset = i + 1, offset + struct.size(LEASE)
      end
      if extras % 2 == 1 then
        answers[i] = undecided
        i, offset = i + 1, offset + struct.size(PENALTY)
      end
      if extras % 16 >= 8 then
        answers[i] = undecided
        i, offset = i + 1, (select(8, struct.unpack(USAGE, asked, offset)))
      end
    until flags < 8
  end
until ok
local last = ''
if next(behind) then
  for place = 1, #answers do
    last = last .. (behind[place] or '')
  end
end
return struct.pack('<d', now) .. table.concat(answers) .. last .. failure
