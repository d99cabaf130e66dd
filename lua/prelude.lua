-- Decides the checks of one request, in one atomic call.
--
-- This text, bucket.lua, the algorithms beside it in the order of Algorithm::ALL, and decide.lua make one script.
--
-- KEYS[i]  the counter of check i
-- ARGV[i]  check i, packed '<BBBddddddd': algorithm (1 is the first), role (0 enforced, 1 quota, 2 shadow; and 4 if it is of the same
--          rule as the check before), count_denied (0 or 1),
--          hits (negative: given back), number, period (ms), and four figures of the algorithm's own
-- reply    five integers a check: allowed (0 or 1), remaining, reset_after (ms), retry_after (ms; -1: it can never pass), delay (ms)
--
-- Lua computes in doubles: every number here is whole and below 2^53.

local NEVER = -1
local MAX_COUNT = 4294967295

-- function(state, hits, number, period, count_denied, now, figure, figure, figure, figure)
--   -> state (false: unchanged), allowed, remaining, reset_after, retry_after, delay (nil: none)
local algorithms = {}

-- What a counter's clock reads at `now`, when it last read `at`; and whether it was set back.
-- A clock that stepped back stands still until it has caught up, unless that is more than `patience` away.
local function hold(now, at, patience)
  if at <= now then
    return now, false
  elseif at - now <= patience then
    return at, false
  else
    return now, true
  end
end

-- a * b / c as whole quotient and remainder, exact where a and c are below 2^35 and b is below 2^34: b is taken in two parts.
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
