-- Carries questions between Tollgate instances: one instance asks, each other one answers once, and the first collects
-- the answers. A question and its answers expire soon, whether or not anybody collects them.
--
-- KEYS[1]  a hash of the open questions: ID -> the time when it expires (ms since the epoch), a space, its text
-- KEYS[2]  a hash of the answers to one question: the ID of an instance -> its answer; and the empty ID -> how many
--          have answered. For `read`: again the questions
-- ARGV[1]  the command: ask, read, answer or collect
-- ARGV[2]  the ID of the question; `read` has none
-- ask      opens the question. ARGV[3]: how long it is open (ms), ARGV[4]: the most open questions, ARGV[5]: its text
--          reply: 1, or 0 if too many questions are open
-- read     reply: the ID of each open question followed by its text
-- answer   ARGV[3]: the ID of the instance, ARGV[4]: its answer. reply: 1, or 0 if the question is closed
-- collect  ARGV[3]: how many answers to wait for. reply: each ID followed by its answer, and the question is closed;
--          or nothing, and it stays open, as long as there are fewer
local command, id = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- No question is open for longer, even if the clock was reset meanwhile.
local LONGEST = 60000

-- Returns the time until which a stored question is open, and its text; nothing if it has expired.
local function open(stored)
  local expires, text = string.match(stored, '^(%d+) (.*)$')
  expires = tonumber(expires)
  if expires and now < expires and expires <= now + LONGEST then
    return expires, text
  end
end

if command == 'ask' then
  local lasts, most = tonumber(ARGV[3]), tonumber(ARGV[4])
  local number, latest = 0, now + lasts
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    local expires = open(all[place + 1])
    if all[place] == id then
      -- Asked again after a lost reply.
    elseif expires then
      number, latest = number + 1, math.max(latest, expires)
    else
      redis.call('HDEL', KEYS[1], all[place])
    end
  end
  if number >= most then
    return 0
  end
  redis.call('HSET', KEYS[1], id, string.format('%.0f %s', now + lasts, ARGV[5]))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', latest - now))
  return 1
end

if command == 'read' then
  local found = {}
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    local _, text = open(all[place + 1])
    if text then
      found[#found + 1] = all[place]
      found[#found + 1] = text
    end
  end
  return found
end

if command == 'answer' then
  local stored = redis.call('HGET', KEYS[1], id)
  local expires = stored and open(stored)
  if not expires then
    return 0
  end
  if redis.call('HSET', KEYS[2], ARGV[3], ARGV[4]) == 1 then
    redis.call('HSET', KEYS[2], '', (tonumber(redis.call('HGET', KEYS[2], '')) or 0) + 1)
  end
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', expires - now))
  return 1
end

if (tonumber(redis.call('HGET', KEYS[2], '')) or 0) < tonumber(ARGV[3]) then
  return {}
end
local answers = redis.call('HGETALL', KEYS[2])
redis.call('HDEL', KEYS[1], id)
redis.call('DEL', KEYS[2])
return answers
