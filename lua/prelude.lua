-- Decides the requests of a call in order, all at the same time. Each request is a group of checks that are decided
-- together.
--
-- The script consists of the definitions of this file that decide.lua uses, and of decide.lua. That has the algorithms,
-- penalty.lua and usage.lua within functions, each with the definitions that only it uses, and a call runs those
-- functions that it needs: running all definitions costs Redis as much as a decision does. A call with a single check
-- has a separate script: alone.lua, with the algorithm and the definitions that it uses from this file and from
-- bucket.lua. Each paragraph of these two files is one definition, which is included or left out as a whole.
--
-- KEYS[i]  the counters in the order of the checks: the counter of the limit, then that of its leases and that of its
--          penalty if they are asked, then the page of usage records if the limit keeps usage
-- ARGV[1]  the checks in order, each packed as '<BBBBdddddddd': algorithm (1 is the first); flags (0 enforced, 1 quota,
--          2 shadow; plus 4 if the check is for the same rule as the previous one, plus 8 if the next check belongs to
--          the same request); count_denied (0 or 1); extras (1 if a penalty follows, plus 2 for a reset, or 4 to take a
--          charge back, plus 8 to record usage, plus 16 for leases); hits (negative: refunded or taken back), number,
--          period (ms), and five algorithm-specific figures. To take a charge back, then '<dd': its at (ms since the
--          epoch) and reset_after (ms). For leases, then '<dddddddd': how hits that are out occupy the counter (0, 1 or
--          2 of leased.lua), the most hits that the limit admits at once, the lease that is returned (its end, its
--          hits, 0 if there is none, and those that were used), the most hits of a new lease, its TTL (ms), and the
--          most hits that may be out. For a penalty, then '<dddd': after, within (ms), ban (ms), extend (0 or 1). To
--          record usage, then '<BBddddI4c0': occasion (0: the result of the check; 1: the request is denied in any
--          case; 2: a request that passed is denied after all; 3: the limit is not asked and lets the request pass; 4:
--          a lease is returned, and hits are taken for requests that wait), costs_denied (0 or 1), period (ms), TTL of
--          the page (ms); for occasion 2 the time when the request passed (ms since the epoch) and its cost, for 1 and
--          3 zero and the hits, for 4 the number of requests that wait and of those that the lease has decided; and the
--          length and text of the counter's tag, with length 0 if the counter's name contains the tag. In place of a
--          check that is decided alone and is the same as the previous one except for its counter, a byte 0
-- reply    a string: '<d' the time of all decisions (ms since the epoch); for each counter '<Bdddd': allowed (0 or 1; 2
--          if its request could not be decided, 3 if that is because this cluster node does not have one of its
--          counters; plus 4 if the counter was damaged and was decided as a new one), remaining (negative: by how much
--          a counter that counts denials, or a budget, exceeds its number), reset_after (ms), retry_after (ms; -1:
--          never), delay (ms). A budget that allows tells what streams hold instead of the last two: the number of
--          holds plus 16384 times the time until the first of them ends (ms), and their hits; plus 8 in `allowed` if
--          '<dd' follows for it behind all answers: its hits beyond its number (topped up, or carried over), and for a
--          peek what it has learned (hits; 0 if nothing). For leases 1, the hits of a new one, its end (ms since the
--          epoch), all hits that are out, and 0; for a page zeros; then, if a request could not be decided for another
--          reason, the error of the last such request
--
-- Lua computes in doubles: all numbers here are whole and below 2^53. Redis formats number arguments with 17 digits, so
-- such numbers can be passed as they are.

local NEVER = -1
local MAX_COUNT = 4294967295
-- REMEMBERED_MS of src/engine/algorithm/mod.rs.
local REMEMBERED = 3600000

-- Whether the counter decided last was damaged: its key has another type, or a state that no decision writes. Such a
-- counter is decided as a new one, and the next take or refund replaces it.
local damaged = false

-- What the budget decided last tells behind all answers, if anything.
local told_behind

-- The error for damage that is found during a decision.
local DAMAGED = 'the counter is damaged'

local function is_whole(number)
  return number >= 0 and number < 9007199254740992 and number % 1 == 0
end

-- Handles the error of a command that reads a counter; returns nil if the key has another type.
local function unreadable(reply)
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then
    error(reply.err, 0)
  end
  damaged = true
end

-- Runs a command that reads a counter; returns nil if the key has another type.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    return unreadable(reply)
  end
  return reply
end

-- Decides on a state, with the other arguments. If the decision finds the state damaged, it is repeated on the fresh
-- state.
local function decide_mended(decide, state, fresh, ...)
  local ok, after, ttl, allowed, remaining, reset_after, retry_after, lasting, delay, charged, topped_up =
    pcall(decide, state, ...)
  if not ok then
    if after ~= DAMAGED then
      error(after, 0)
    end
    damaged = true
    return decide(fresh, ...)
  end
  return after, ttl, allowed, remaining, reset_after, retry_after, lasting, delay, charged, topped_up
end

-- function(state, hits, denied, number, period, count_denied, now, charge, figure, figure, figure, figure, figure)
--   denied: another limit denies the request, so no hits are taken
--   charge: the charge to take back, {at, reset_after}; nil for anything else, including a refund
--   -> state (false: unchanged), ttl (ms; 0: equivalent to a new counter, delete it), allowed, remaining, reset_after,
--      retry_after, lasting (true: keep the present TTL; digits: keep it, and all of the present state but for these
--      bytes behind so many; optional), delay (optional), charged (what a budget charges; nil for others), topped_up
--      (what a budget was topped up by; nil for others)
local algorithms = {}

-- For algorithms with a list or a hash as state, the function that opens it. The state of others is a string or nil.
local openers = {}

local function list_get(list, place)
  return list.set[place] or redis.call('LINDEX', list.key, place)
end

local function list_write(list, ttl)
  local kept = math.min(list.stop, list.stored)
  if list.first >= kept then
    redis.call('DEL', list.key)
  elseif list.first > 0 or kept < list.stored then
    redis.call('LTRIM', list.key, list.first, kept - 1)
  end
  for place, item in pairs(list.set) do
    if place >= list.first and place < kept then
      redis.call('LSET', list.key, place - list.first, item)
    end
  end
  for place = math.max(list.first, kept), list.stop - 1 do
    redis.call('RPUSH', list.key, list.set[place])
  end
  redis.call('PEXPIRE', list.key, ttl)
end

-- A list in Redis as it is after a check: items at the positions from `first` to before `stop`, numbered as in the
-- stored list. Nothing is written before `write`, which replaces the whole list if `stored` is 0.
local function list_of(key, stored)
  return {key = key, stored = stored, first = 0, stop = stored, set = {}, write = list_write}
end

local function open_list(key, is_empty)
  return list_of(key, not is_empty and ask('LLEN', key) or 0)
end

-- Returns the values of fields of a hash; false or nil for those that are not there.
local function hash_get(hash, ...)
  local values = hash.is_stored and ask('HMGET', hash.key, ...) or {}
  if next(hash.set) then
    for place = 1, select('#', ...) do
      local changed = hash.set[select(place, ...)]
      if changed ~= nil then
        values[place] = changed
      end
    end
  end
  return unpack(values, 1, select('#', ...))
end

local function hash_write(hash, ttl)
  local set, removed = {}, {}
  for field, value in pairs(hash.set) do
    if value then
      set[#set + 1], set[#set + 2] = field, value
    else
      removed[#removed + 1] = field
    end
  end
  if not hash.is_stored then
    redis.call('DEL', hash.key)
  elseif #removed > 0 then
    redis.call('HDEL', hash.key, unpack(removed))
  end
  redis.call('HSET', hash.key, unpack(set))
  redis.call('PEXPIRE', hash.key, ttl)
end

-- A hash in Redis as it is after a check: as stored, or empty, but for the fields in `set`, of which those that are
-- false are removed. Nothing is written before `write`.
local function open_hash(key, is_empty)
  return {key = key, is_stored = not is_empty, set = {}, write = hash_write}
end

-- Writes a counter. Each write sets the TTL, unless `lasting` keeps the present one.
local function write(key, state, ttl, lasting)
  if lasting == true then
    redis.call('SET', key, state, 'KEEPTTL')
  elseif lasting then
    redis.call('SETRANGE', key, lasting, state)
  elseif ttl == 0 then
    redis.call('DEL', key)
  elseif type(state) == 'table' then
    state:write(ttl)
  else
    redis.call('SET', key, state, 'PX', ttl)
  end
end

-- Returns the time of a counter's own clock at `now`, given its previous time `at`, and whether the clock was reset. If
-- the clock stepped back, the counter's clock pauses until it catches up, unless that takes more than `most`.
local function steady(now, at, most)
  if at <= now then
    return now, false
  elseif at - now <= most then
    return at, false
  else
    return now, true
  end
end

-- Returns the whole quotient and the remainder of a * b / c; exact if a and c are below 2^35 and b is below 2^34. It
-- splits b into two parts.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local low = b % 65536
  local high = (b - low) / 65536
  local quotient = math.floor(a * high / c)
  local rest = a * high - quotient * c
  local sum = rest * 65536 + a * low
  local more = math.floor(sum / c)
  return quotient * 65536 + more, sum - more * c
end

-- Returns the count after adding `hits`, kept within 0 and 2^32-1.
local function add(count, hits)
  return math.min(math.max(count + hits, 0), MAX_COUNT)
end

local function assert_sound(is_sound)
  if not is_sound then
    error(DAMAGED, 0)
  end
end

-- Returns the position of the first entry, of 20 bytes, that begins with these bytes, from one position on; nil if
-- there is none. The same bytes may also occur across entries.
local function find_entry(list, mark, from)
  local place = string.find(list, mark, from, true)
  while place and place % 20 ~= 1 do
    place = string.find(list, mark, place + 1, true)
  end
  return place
end
