-- The checks of a request are one group: unless the whole of it passes, only give-backs and limits that count denials are charged.
-- A penalty, the last of the algorithms, is told what became of the check before it. The twin of src/store/group.rs.
local CHECK, ANSWER = '<BBBdddddddd', '<BI4ddd'
-- Where in a check count_denied is, and where its number begins: with what follows, these make its limit.
local COUNT_DENIED, NUMBER = 2, 11
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local asked = ARGV[1]
local answers = {}
-- The most hits that a request may take: more than any limit lets pass.
local MAX_HITS = 2 ^ 53

-- The counter that was looked at last.
local looked_at

local function read(key, algorithm)
  looked_at = key
  if lists[algorithm] then
    return open_list(key)
  end
  return redis.call('GET', key)
end

-- Each write sets the time to live, or leaves it as it is where the counter expires when it did before.
local function write(key, state, reset_after, lasting)
  looked_at = key
  if reset_after == 0 then
    redis.call('DEL', key)
  elseif type(state) == 'table' then
    write_list(state, reset_after)
  elseif lasting then
    redis.call('SET', key, state, 'KEEPTTL')
  else
    redis.call('SET', key, state, 'PX', reset_after)
  end
end

local function answer(i, allowed, remaining, reset_after, retry_after, delay)
  answers[i] = struct.pack(ANSWER, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

-- Decides one check of a group, on what its counter will be after the checks before it.
local function decide(pending, key, hits, algorithm, count_denied, number, period, figure1, figure2, figure3, figure4, figure5)
  local found = pending[key]
  local old
  if found then
    old = found.state
  else
    old = read(key, algorithm)
  end
  local state, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[algorithm](
    old, hits, number, period, count_denied == 1, now, figure1, figure2, figure3, figure4, figure5)
  if state then
    pending[key] = {state = state, reset_after = reset_after, lasting = lasting and (not found or found.lasting)}
  end
  return allowed, remaining, reset_after, retry_after, delay
end

-- The hits of a check, where the one before it was allowed or not.
local function hits_after(before, algorithm, hits)
  if algorithm == #algorithms and hits > 0 then
    return before and 1 or 2
  end
  return hits
end

-- Charges what is charged of a denied request all the same, checks `first` to `last`: gives what their counters will be, and answers anew what
-- remains of each.
local function charge_denied(first, last, offset)
  local pending = {}
  local before = true
  for i = first, last do
    local algorithm, _, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
    local allowed, remaining, reset_after, retry_after, delay = struct.unpack(ANSWER, answers[i])
    allowed = allowed == 1
    hits = hits_after(before, algorithm, hits)
    local charged = 0
    if count_denied == 1 or hits < 0 then
      charged = hits
    elseif hits > 0 and not allowed then
      -- More than ever passes: that costs nothing, but a bucket that begins empty begins with a denied request, too.
      charged = MAX_HITS
    end
    local _
    _, remaining, reset_after = decide(
      pending, KEYS[i], charged, algorithm, count_denied, number, period, figure1, figure2, figure3, figure4, figure5)
    answer(i, allowed, remaining, reset_after, retry_after, delay)
    before, offset = allowed, next_offset
  end
  return pending
end

-- When all checks of a counter pass that is asked several times: each of them on what those before it have taken.
local function retry_together(key, places)
  local hits = 0
  local lasts = {}
  for _, place in ipairs(places) do
    hits = math.min(hits + place.hits, MAX_HITS)
    -- Of equal limits the last waits for as long as any.
    lasts[place.limit] = {hits = hits, offset = place.offset}
  end
  local longest = 0
  for _, last in pairs(lasts) do
    local algorithm, _, count_denied, _, number, period, figure1, figure2, figure3, figure4, figure5 = struct.unpack(CHECK, asked, last.offset)
    local _, _, _, retry_after = decide(
      {}, key, last.hits, algorithm, count_denied, number, period, figure1, figure2, figure3, figure4, figure5)
    -- What can never pass never passes.
    if retry_after == NEVER or longest == NEVER then
      longest = NEVER
    else
      longest = math.max(longest, retry_after)
    end
  end
  return longest
end

-- Of a denied request that asks a counter several times, answers anew when all of that passes. As told already where something is given back, which nobody
-- will do again.
local function tell_retries(first, last, offset)
  local counters, several = {}, false
  for i = first, last do
    several = several or counters[KEYS[i]]
    counters[KEYS[i]] = {}
  end
  if not several then
    return
  end
  for i = first, last do
    local algorithm, _, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
    local places = counters[KEYS[i]]
    places[#places + 1] = {hits = hits, offset = offset, limit = string.sub(asked, offset + COUNT_DENIED, offset + COUNT_DENIED) .. string.sub(asked, offset + NUMBER, next_offset - 1)}
    places.gives_back = places.gives_back or hits < 0
    places.is_penalty = algorithm == #algorithms
    offset = next_offset
  end
  for i = first, last do
    local places = counters[KEYS[i]]
    local allowed, remaining, reset_after, _, delay = struct.unpack(ANSWER, answers[i])
    if allowed == 0 and #places > 1 and not places.gives_back and not places.is_penalty then
      places.retry_after = places.retry_after or retry_together(KEYS[i], places)
      answer(i, false, remaining, reset_after, places.retry_after, delay)
    end
  end
end

-- Decides the checks of one request, from check `first` at `offset` on; tells where the next begins.
local function decide_group(first, offset)
  local pending = {}
  local before = true
  local refused, quotas, quotas_over, over, taken = false, 0, 0, false, false
  local i, at = first, offset
  repeat
    local algorithm, flags, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, at)
    local allowed, remaining, reset_after, retry_after, delay = decide(
      pending, KEYS[i], hits_after(before, algorithm, hits), algorithm, count_denied, number, period, figure1, figure2, figure3, figure4, figure5)
    answer(i, allowed, remaining, reset_after, retry_after, delay)
    before = allowed
    local role = flags % 4
    if role == 0 then
      refused = refused or not allowed
    elseif role == 1 and hits >= 0 then
      -- Giving back needs no quota. A rule is over if any of its checks is.
      if flags % 8 < 4 then
        quotas, over = quotas + 1, false
      end
      if not allowed and not over then
        quotas_over, over = quotas_over + 1, true
      end
    end
    taken = taken or (allowed and hits > 0 and count_denied == 0)
    i, at = i + 1, next_offset
  until flags < 8

  if refused or (quotas > 0 and quotas_over == quotas) then
    if taken then
      pending = charge_denied(first, i - 1, offset)
    end
    tell_retries(first, i - 1, offset)
  end
  for key, counter in pairs(pending) do
    write(key, counter.state, counter.reset_after, counter.lasting)
  end
  return i, at
end

local i, offset = 1, 1
local function decide_all()
  while i <= #KEYS do
    local algorithm, flags, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5, next_offset = struct.unpack(CHECK, asked, offset)
    if flags < 8 and algorithm < #algorithms then
      -- One check alone, as in most requests: it decides for itself what it charges.
      local key = KEYS[i]
      local state, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[algorithm](
        read(key, algorithm), hits, number, period, count_denied == 1, now, figure1, figure2, figure3, figure4, figure5)
      if state then
        write(key, state, reset_after, lasting)
      end
      answer(i, allowed, remaining, reset_after, retry_after, delay)
      i, offset = i + 1, next_offset
    else
      i, offset = decide_group(i, offset)
    end
  end
end

-- A counter that cannot be read or written fails the request that asks for it, and no other.
local UNDECIDED = struct.pack(ANSWER, 2, 0, 0, NEVER, 0)
local failure = ''
repeat
  local ok, err = pcall(decide_all)
  if not ok then
    failure = looked_at .. ': ' .. (type(err) == 'table' and err.err or err)
    repeat
      local _, flags = struct.unpack('<BB', asked, offset)
      answers[i] = UNDECIDED
      i, offset = i + 1, offset + struct.size(CHECK)
    until flags < 8
  end
until ok
return table.concat(answers) .. failure
