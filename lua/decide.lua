-- The checks of a request are one group: unless the whole of it passes, nothing is taken; only refunds happen, and
-- limits that count denials are charged. The twin of src/store/group.rs.
local CHECK, CHARGE, PENALTY, USAGE, ANSWER = '<BBBBdddddddd', '<dd', '<dddd', '<BBddddI4c0', '<Bdddd'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local asked = ARGV[1]
local answers = {}

-- In place of an answer, for a page of records.
local NOTHING = struct.pack(ANSWER, 0, 0, 0, 0, 0)

-- The counter that was read or written last.
local last_key

local function read(key, algorithm)
  last_key = key
  local open = lists[algorithm]
  if open then
    return open(key)
  end
  return redis.call('GET', key)
end

local function answer(i, allowed, remaining, reset_after, retry_after, delay)
  answers[i] = struct.pack(ANSWER, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

-- What the counter will be after the checks before it.
local function pending_state(pending, key, algorithm)
  local found = pending[key]
  if not found then
    return read(key, algorithm), nil
  end
  -- A list that is forgotten is there, and empty.
  return (found.ttl > 0 or lists[algorithm]) and found.state or nil, found
end

-- What a check takes back, where it does; and where the question goes on.
local function charge_of(extras, offset)
  if extras % 8 < 4 then
    return nil, offset
  end
  local at, reset_after, next_offset = struct.unpack(CHARGE, asked, offset)
  return {at = at, reset_after = reset_after}, next_offset
end

-- What is to be recorded of it, where something is; and where the question goes on.
local function usage_of(extras, offset)
  if extras < 8 then
    return nil, offset
  end
  local occasion, costs_denied, period, kept, at, cost, tag, next_offset = struct.unpack(USAGE, asked, offset)
  local usage = {occasion = occasion, costs_denied = costs_denied == 1, period = period, kept = kept}
  usage.at, usage.cost, usage.tag = at, cost, tag
  return usage, next_offset
end

-- Decides one check of a group.
local function decide(
  pending, key, extras, denied, hits, algorithm, count_denied, number, period, charge,
  figure1, figure2, figure3, figure4, figure5)
  local old, found = pending_state(pending, key, algorithm)
  if extras % 4 >= 2 then
    if lists[algorithm] then
      old.first = old.stop
    end
    pending[key] = {state = old, ttl = 0}
    old = lists[algorithm] and old or nil
  end
  local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[algorithm](
    old, hits, denied, number, period, count_denied == 1, now, charge, figure1, figure2, figure3, figure4, figure5)
  if state then
    pending[key] = {state = state, ttl = ttl, lasting = lasting and (not found or found.lasting)}
  end
  return allowed, remaining, reset_after, retry_after, delay
end

-- Decides the penalty behind a check whose limit has said this.
local function decide_penalty(pending, key, extras, hits, allowed, after, within, ban, extend)
  local old = pending_state(pending, key)
  if extras % 4 >= 2 then
    pending[key] = {ttl = 0}
    old = nil
  end
  local event = hits > 0 and (allowed and 1 or 2) or 0
  local state, ttl, unbanned, remaining, reset_after, retry_after =
    penalize(old, event, now, after, within, ban, extend)
  if state then
    pending[key] = {state = state, ttl = ttl}
  end
  return unbanned, remaining, reset_after, retry_after
end

-- Decides a denied request anew, where something of it was taken: gives what its counters will be, and answers anew
-- what remains of each.
local function decide_denied(first, offset)
  local pending = {}
  local i = first
  repeat
    local algorithm, flags, count_denied, extras, hits, number, period,
      figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
    local charge
    charge, next_offset = charge_of(extras, next_offset)
    local allowed, _, _, retry_after, delay = struct.unpack(ANSWER, answers[i])
    allowed = allowed == 1
    local _, remaining, reset_after = decide(
      pending, KEYS[i], extras, true, hits, algorithm, count_denied, number, period, charge,
      figure1, figure2, figure3, figure4, figure5)
    answer(i, allowed, remaining, reset_after, retry_after, delay)
    i, offset = i + 1, next_offset
    if extras % 2 == 1 then
      local after, within, ban, extend, behind = struct.unpack(PENALTY, asked, offset)
      decide_penalty(pending, KEYS[i], extras, hits, allowed, after, within, ban, extend)
      i, offset = i + 1, behind
    end
    if extras >= 8 then
      local _, behind = usage_of(extras, offset)
      i, offset = i + 1, behind
    end
  until flags < 8
  return pending
end

-- A node of a cluster does not have the counter: that it says when the counter is read, so that nothing is written.
-- Versions differ in how they say it.
local function is_elsewhere(err)
  local text = string.lower(err)
  return string.find(text, 'attempted to access a non local key', 1, true)
    or string.find(text, 'attempted to access a slot not served', 1, true)
    or string.find(text, 'while the cluster is down', 1, true)
end

-- Of a slot that moves, some versions have every counter until a script comes to its second slot, and none from then
-- on: so where counters lie in several slots each is read once more before any is written. A list or a page is no
-- string, and here.
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

-- Decides the checks of one request, from counter `first` and the check at `offset` on; tells where the next begins.
local function decide_group(first, offset)
  local pending, usages = {}, {}
  local refused, quotas, quotas_over, over, taken = false, 0, 0, false, false
  local i, at = first, offset
  repeat
    local algorithm, flags, count_denied, extras, hits, number, period,
      figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, at)
    local charge
    charge, next_offset = charge_of(extras, next_offset)
    local allowed, remaining, reset_after, retry_after, delay = decide(
      pending, KEYS[i], extras, false, hits, algorithm, count_denied, number, period, charge,
      figure1, figure2, figure3, figure4, figure5)
    answer(i, allowed, remaining, reset_after, retry_after, delay)
    taken = taken or (allowed and hits > 0 and count_denied == 0)
    i, at = i + 1, next_offset
    if extras % 2 == 1 then
      local after, within, ban, extend, behind = struct.unpack(PENALTY, asked, at)
      local unbanned
      unbanned, remaining, reset_after, retry_after = decide_penalty(
        pending, KEYS[i], extras, hits, allowed, after, within, ban, extend)
      answer(i, unbanned, remaining, reset_after, retry_after)
      allowed = allowed and unbanned
      i, at = i + 1, behind
    end
    local usage
    usage, at = usage_of(extras, at)
    if usage then
      usage.page, usage.hits, usage.is_taken_back = KEYS[i], hits, charge ~= nil
      usages[#usages + 1] = usage
      answers[i] = NOTHING
      i = i + 1
    end
    local role = flags % 4
    if role == 0 then
      refused = refused or not allowed
    elseif role == 1 and hits >= 0 then
      -- A refund needs no quota. A rule is over if any of its checks is.
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
    pending = decide_denied(first, offset)
  end
  local records = {}
  for _, usage in ipairs(usages) do
    last_key = usage.page
    record(records, usage, denied, now)
  end
  must_be_here(pending, records)
  -- First of all what not every user may do: where it fails, nothing is charged.
  write_records(records)
  for key, counter in pairs(pending) do
    last_key = key
    write(key, counter.state, counter.ttl, counter.lasting)
  end
  return i, at
end

local i, offset = 1, 1
local function decide_all()
  while i <= #KEYS do
    local algorithm, flags, count_denied, extras, hits, number, period,
      figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
    if flags < 8 and extras == 0 then
      -- One check alone, as in most requests: it decides for itself what it charges.
      local key = KEYS[i]
      local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[algorithm](
        read(key, algorithm), hits, false, number, period, count_denied == 1, now, nil,
        figure1, figure2, figure3, figure4, figure5)
      if state then
        write(key, state, ttl, lasting)
      end
      answer(i, allowed, remaining, reset_after, retry_after, delay)
      i, offset = i + 1, next_offset
    else
      i, offset = decide_group(i, offset)
    end
  end
end

-- A counter that Redis cannot read or write fails the request that asks for it, and no other.
local UNDECIDED, ELSEWHERE = struct.pack(ANSWER, 2, 0, 0, NEVER, 0), struct.pack(ANSWER, 3, 0, 0, NEVER, 0)
local failure = ''
repeat
  local ok, err = pcall(decide_all)
  if not ok then
    err = type(err) == 'table' and err.err or err
    local undecided = UNDECIDED
    if is_elsewhere(err) then
      undecided = ELSEWHERE
    else
      failure = last_key .. ': ' .. err
    end
    repeat
      local _, flags, _, extras = struct.unpack('<BBBB', asked, offset)
      answers[i] = undecided
      i, offset = i + 1, offset + struct.size(CHECK) + (extras % 8 >= 4 and struct.size(CHARGE) or 0)
      if extras % 2 == 1 then
        answers[i] = undecided
        i, offset = i + 1, offset + struct.size(PENALTY)
      end
      if extras >= 8 then
        local _, behind = usage_of(extras, offset)
        answers[i] = undecided
        i, offset = i + 1, behind
      end
    until flags < 8
  end
until ok
return struct.pack('<d', now) .. table.concat(answers) .. failure
