-- Stores the heartbeat of each Tollgate instance and returns those of all instances. Silent instances expire.
--
-- KEYS[1]  a hash: the ID of each instance -> the time of its last heartbeat (ms since the epoch), a space, its text
-- ARGV[1]  the command: beat or leave
-- ARGV[2]  the ID of the calling instance
-- ARGV[3]  how long a silent instance stays in the list (ms)
-- ARGV[4]  the most instances
-- ARGV[5]  the text of the heartbeat
-- reply    the time, the outcome (done or full), and each ID followed by its stored value
local replicas, command, id = KEYS[1], ARGV[1], ARGV[2]
local ttl, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local listed, others = {}, 0
local all = redis.call('HGETALL', replicas)
for place = 1, #all, 2 do
  local name, kept = all[place], all[place + 1]
  local heard = tonumber(string.match(kept, '^(%d+) '))
  if heard and heard > now then
    -- The clock was reset: the instance stays in the list no longer than usual.
    heard = now
    kept = string.gsub(kept, '^%d+', string.format('%.0f', now))
    redis.call('HSET', replicas, name, kept)
  end
  if not heard or heard + ttl <= now then
    redis.call('HDEL', replicas, name)
  elseif name ~= id then
    others = others + 1
    listed[#listed + 1] = name
    listed[#listed + 1] = kept
  end
end

local outcome = 'done'
if command == 'leave' then
  redis.call('HDEL', replicas, id)
elseif others < most then
  local kept = string.format('%.0f %s', now, ARGV[5])
  redis.call('HSET', replicas, id, kept)
  redis.call('PEXPIRE', replicas, ttl)
  listed[#listed + 1] = id
  listed[#listed + 1] = kept
else
  outcome = 'full'
end
return {now, outcome, listed}
