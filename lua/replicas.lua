-- Keeps what each replica of Tollgate says of itself, and tells it to all. Who has been silent for too long goes.
--
-- KEYS[1]  a hash: of each replica by its id when it was heard, in milliseconds since the epoch, and what it says, with
--          a space between them
-- ARGV[1]  what to do: beat or leave
-- ARGV[2]  the id of the replica that asks
-- ARGV[3]  for how long a silent replica is listed, in milliseconds
-- ARGV[4]  how many there may be
-- ARGV[5]  what it says
-- reply    the time, what has happened (done or full), and the ids, each with what is kept of it behind it
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
    -- The clock was set back: it is listed for no longer than it was to be.
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
