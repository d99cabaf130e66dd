-- The checks of a request are one group: unless the whole of it passes, only give-backs and limits that count denials are charged.
-- A penalty, the last of the algorithms, is told what became of the check before it. The twin of src/store/group.rs.
local CHECK, ANSWER = '<BBBdddddddd', '<BI4ddd'
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

-- Decides the checks of one request, from check `first` at `offset` on; tells where the next begins.
local function decide_group(first, offset)
  local checks = {}
  local i = first
  repeat
    local algorithm, flags, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5
    algorithm, flags, count_denied, hits, number, period, figure1, figure2, figure3, figure4, figure5, offset = struct.unpack(CHECK, asked, offset)
    checks[#checks + 1] = {
      key = KEYS[i], algorithm = algorithm, is_penalty = algorithm == #algorithms, role = flags % 4, joined = flags % 8 >= 4,
      count_denied = count_denied == 1, hits = hits, number = number, period = period,
      figure1 = figure1, figure2 = figure2, figure3 = figure3, figure4 = figure4, figure5 = figure5,
    }
    i = i + 1
  until flags < 8

  -- Decides a check of `hits` on what the counter will be after the checks before it.
  local function decide(check, hits, pending)
    local found = pending[check.key]
    local old
    if found then
      old = found.state
    else
      old = read(check.key, check.algorithm)
    end
    local state, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[check.algorithm](
      old, hits, check.number, check.period, check.count_denied, now, check.figure1, check.figure2, check.figure3, check.figure4, check.figure5)
    if state then
      lasting = lasting and (not found or found.lasting)
      pending[check.key] = {state = state, reset_after = reset_after, lasting = lasting}
    end
    return allowed, remaining, reset_after, retry_after, delay
  end

  -- When all checks of the counter of a denied check pass, which is asked several times: each of them on what those before it have
  -- taken. As told already where it is asked once, or something is given back to it, which nobody will do again.
  local function retry_together(denied)
    local together = {}
    for _, check in ipairs(checks) do
      if check.key == denied.key then
        if check.hits < 0 then
          return denied.retry_after
        end
        together[#together + 1] = check
      end
    end
    if #together < 2 then
      return denied.retry_after
    end
    local hits, longest = 0, 0
    for _, check in ipairs(together) do
      hits = math.min(hits + check.hits, MAX_HITS)
      local _, _, _, retry_after = decide(check, hits, {})
      -- What can never pass never passes.
      if retry_after == NEVER or longest == NEVER then
        longest = NEVER
      else
        longest = math.max(longest, retry_after)
      end
    end
    return longest
  end

  local pending = {}
  local before = true
  local refused, quotas, quotas_over, over, taken = false, 0, 0, false, false
  for _, check in ipairs(checks) do
    if check.is_penalty and check.hits > 0 then
      check.hits = before and 1 or 2
    end
    check.allowed, check.remaining, check.reset_after, check.retry_after, check.delay = decide(check, check.hits, pending)
    local allowed = check.allowed
    before = allowed
    if check.role == 0 then
      refused = refused or not allowed
    elseif check.role == 1 and check.hits >= 0 then
      -- Giving back needs no quota. A rule is over if any of its checks is.
      if not check.joined then
        quotas, over = quotas + 1, false
      end
      if not allowed and not over then
        quotas_over, over = quotas_over + 1, true
      end
    end
    taken = taken or (allowed and check.hits > 0 and not check.count_denied)
  end

  local deny = refused or (quotas > 0 and quotas_over == quotas)
  if taken and deny then
    pending = {}
    for _, check in ipairs(checks) do
      local charged = 0
      if check.count_denied or check.hits < 0 then
        charged = check.hits
      elseif check.hits > 0 and not check.allowed then
        -- More than ever passes: that costs nothing, but a bucket that begins empty begins with a denied request, too.
        charged = MAX_HITS
      end
      local _
      _, check.remaining, check.reset_after = decide(check, charged, pending)
    end
  end
  if deny then
    for _, check in ipairs(checks) do
      if not check.allowed and not check.is_penalty then
        check.retry_after = retry_together(check)
      end
    end
  end

  for key, counter in pairs(pending) do
    write(key, counter.state, counter.reset_after, counter.lasting)
  end
  for place, check in ipairs(checks) do
    answer(first + place - 1, check.allowed, check.remaining, check.reset_after, check.retry_after, check.delay)
  end
  return i, offset
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
