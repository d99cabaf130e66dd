-- The checks of a request are one group: unless the whole of it passes, only give-backs and limits that count denials are charged.
-- A penalty, the last of the algorithms, is told what became of the check before it. The twin of src/store/group.rs.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local checks = {}
for i = 1, #KEYS do
  local algorithm, role, count_denied, hits, number, period, figure1, figure2, figure3 = struct.unpack('<BBBdddddd', ARGV[i])
  checks[i] = {
    decide = algorithms[algorithm], is_list = lists[algorithm], is_penalty = algorithm == #algorithms, role = role % 4, joined = role >= 4, count_denied = count_denied == 1,
    hits = hits, number = number, period = period, figure1 = figure1, figure2 = figure2, figure3 = figure3,
  }
end

-- Decides check i of `hits` on what the counter will be after the checks before it.
local function decide(i, hits, pending)
  local key, check = KEYS[i], checks[i]
  local found = pending[key]
  local old
  if found then
    old = found.state
  elseif check.is_list then
    old = open_list(key)
  else
    old = redis.call('GET', key)
  end
  local state, allowed, remaining, reset_after, retry_after = check.decide(
    old, hits, check.number, check.period, check.count_denied, now, check.figure1, check.figure2, check.figure3)
  if state then
    pending[key] = {state = state, reset_after = reset_after}
  end
  return allowed, remaining, reset_after, retry_after
end

local pending = {}
local reply = {}
local before = true
local refused, quotas, quotas_over, over, taken = false, 0, 0, false, false
for i, check in ipairs(checks) do
  if check.is_penalty and check.hits > 0 then
    check.hits = before and 1 or 2
  end
  local allowed, remaining, reset_after, retry_after = decide(i, check.hits, pending)
  before = allowed
  reply[4 * i - 3], reply[4 * i - 2] = allowed and 1 or 0, remaining
  reply[4 * i - 1], reply[4 * i] = reset_after, retry_after
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

if taken and (refused or (quotas > 0 and quotas_over == quotas)) then
  pending = {}
  for i, check in ipairs(checks) do
    local charged = (check.count_denied or check.hits < 0) and check.hits or 0
    local _, remaining, reset_after = decide(i, charged, pending)
    reply[4 * i - 2], reply[4 * i - 1] = remaining, reset_after
  end
end

for key, counter in pairs(pending) do
  local ttl = string.format('%.0f', counter.reset_after)
  if counter.reset_after == 0 then
    redis.call('DEL', key)
  elseif type(counter.state) == 'table' then
    write_list(counter.state, ttl)
  else
    redis.call('SET', key, counter.state, 'PX', ttl)
  end
end
return reply
