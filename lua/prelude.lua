-- Decides the requests of a call, one after the other, all at the same time. Each is a group of checks, decided
-- together.
--
-- This text, bucket.lua, penalty.lua, the algorithms beside them in the order of Algorithm::ALL, usage.lua, and
-- decide.lua make one script. Defining all of it costs Redis as much as a decision does. So a check that is all of its
-- call has a script of its own: alone.lua, with the algorithm and what that names of this text and of bucket.lua. A
-- paragraph here is a definition that is there or not.
--
-- KEYS[i]  the counters, in the order of the checks: that of its limit, and behind it that of its penalty where it has
--          one, and the page of its records where its use is kept
-- ARGV[1]  the checks, one after the other, each packed '<BBBBdddddddd': algorithm (1 is the first); flags (0 enforced,
--          1 quota, 2 shadow; and 4 if it is of the same rule as the check before, 8 if the next check is of the same
--          request); count_denied (0 or 1); extras (1 if a penalty follows, and 2 if it is a reset, or 4 if a charge
--          is taken back, and 8 if its use is kept); hits (negative: refunded or taken back), number, period (ms), and
--          five figures of the algorithm's own; where a charge is taken back, '<dd' at (ms since the epoch),
--          reset_after (ms) of it; where a penalty follows, '<dddd' after, within (ms), ban (ms), extend (0 or 1); and
--          where its use is kept, '<BBddddI4c0' occasion (0: what comes of the check; 1: the request is denied,
--          whatever that is; 2: one that passed is denied after all; 3: the limit lets pass what it is not asked for),
--          costs_denied (0 or 1), period (ms), for how long a page is kept (ms); of occasion 2 when it passed (ms since
--          the epoch) and what it cost, of 1 and 3 nothing and the hits; and the length of the counter's tag and that,
--          0 where its name has it
-- reply    a string: '<d' the time of all decisions (ms since the epoch); for each counter '<Bdddd': allowed (0 or 1; 2
--          where its request could not be decided, 3 where that is because this node of a cluster does not have one of
--          its counters), remaining (negative: a counter that counts denials is so much above its number), reset_after
--          (ms), retry_after (ms; -1: it can never pass), delay (ms), and for a page zeros; and behind them, if a
--          request could not be decided otherwise, why the last of them
--
-- Lua computes in doubles: every number here is whole and below 2^53. Redis prints a number that it is given with 17
-- digits, so that such a one may be given as it is.

local NEVER = -1
local MAX_COUNT = 4294967295
-- REMEMBERED_MS of src/algorithm/mod.rs.
local REMEMBERED = 3600000

-- function(state, hits, denied, number, period, count_denied, now, charge, figure, figure, figure, figure, figure)
--   denied: another limit of the request denies it, so that nothing is taken
--   charge: what is taken back, {at, reset_after}, where it is no refund; or nil
--   -> state (false: unchanged), ttl (ms; 0: as a fresh one it need not be kept), allowed, remaining, reset_after,
--      retry_after, lasting (it expires when it did before; or nothing), delay (or nothing)
local algorithms = {}

-- Of the algorithms whose state is a list, what opens it; of the others it is a string, or nil.
local lists = {}

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

-- A list in Redis as a check will have left it: what stands at the places from `first` to before `stop`, which are
-- those that it had when it was opened. Nothing is written before `write`.
local function open_list(key)
  local stored = redis.call('LLEN', key)
  return {key = key, stored = stored, first = 0, stop = stored, set = {}, write = list_write}
end

-- Each write sets the TTL, or leaves it as it is where the counter expires when it did before.
local function write(key, state, ttl, lasting)
  if lasting then
    redis.call('SET', key, state, 'KEEPTTL')
  elseif ttl == 0 then
    redis.call('DEL', key)
  elseif type(state) == 'table' then
    state:write(ttl)
  else
    redis.call('SET', key, state, 'PX', ttl)
  end
end

-- What a counter's clock reads at `now`, when it last read `at`; and whether it was set back.
-- A clock that stepped back stands still until it has caught up, unless that is more than `most` away.
local function steady(now, at, most)
  if at <= now then
    return now, false
  elseif at - now <= most then
    return at, false
  else
    return now, true
  end
end

-- a * b / c as whole quotient and remainder, exact where a and c are below 2^35 and b is below 2^34: b is taken in two
-- parts.
local function mul_div(a, b, c)
  local low = b % 65536
  local high = (b - low) / 65536
  local quotient = math.floor(a * high / c)
  local rest = a * high - quotient * c
  local sum = rest * 65536 + a * low
  local more = math.floor(sum / c)
  return quotient * 65536 + more, sum - more * c
end

-- A counter after `hits` more, at most 2^32-1; after negative hits, at least 0.
local function add(count, hits)
  return math.min(math.max(count + hits, 0), MAX_COUNT)
end
