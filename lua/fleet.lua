-- Stores the heartbeat of each Tollgate instance, and returns all heartbeats if the caller's list may be out of date:
-- the list has changed, or an instance is late, or nobody has read the list for a period. Silent instances expire.
--
-- Reading all heartbeats takes time for each of them. If each instance did so at each of its own heartbeats, the cost
-- would grow with the square of their number. So the list has a version, and one instance in each period looks for
-- silent ones.
--
-- KEYS[1]  a hash: the ID of each instance -> the time of its last heartbeat (ms since the epoch), a space, its text;
--          and the empty ID -> the version of the list, the time when somebody last read all, the number of late ones
-- KEYS[2]  the open questions of lua/questions.lua
-- ARGV[1]  the command: beat or leave
-- ARGV[2]  the ID of the calling instance
-- ARGV[3]  how long a silent instance stays in the list (ms)
-- ARGV[4]  the most instances
-- ARGV[5]  the period of heartbeats (ms)
-- ARGV[6]  the version of the list that the instance knows, 0 for none
-- ARGV[7]  the text of the heartbeat: JSON, whose durations have names that end in _ms
-- reply    the time, the outcome (done, full, or unchanged without a list), the version, each ID followed by its stored
--          value, and whether questions are open (1 or 0)
local instances, command, id = KEYS[1], ARGV[1], ARGV[2]
local ttl, most, period, known = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local has_questions = redis.call('PTTL', KEYS[2]) > 0 and 1 or 0
local read_at, late_before
-- One HMGET for each heartbeat: the tests count heartbeats by it.
local found = redis.call('HMGET', instances, '', id)
local version, about, own = 0, found[1], found[2]
if about then
  local first, second, third = string.match(about, '^(%d+) (%d+) (%d+)$')
  version, read_at, late_before = tonumber(first) or 0, tonumber(second), tonumber(third)
end
local before = version
local function note_change()
  -- Above every earlier version, and above the caller's: Redis may have lost the list that the caller knows.
  version = math.max(math.max(before, known) + 1, now)
end
local function keep(late)
  redis.call('HSET', instances, '', string.format('%.0f %.0f %.0f', version, read_at, late))
  redis.call('PEXPIRE', instances, ttl)
end

local function without_durations(text)
  return (string.gsub(text, '("[a-z_]+_ms":)%d+', '%1'))
end
-- Returns whether the text differs from the stored one in more than durations. The caller cannot know: a reply may be
-- lost, and so may a stored heartbeat in a failover.
local function is_news()
  return not own or without_durations(string.match(own, '^%d+ (.*)$') or '') ~= without_durations(ARGV[7])
end

local kept = string.format('%.0f %s', now, ARGV[7] or '')
local is_recent = read_at and read_at <= now and now < read_at + period
-- While an instance is late, every caller gets the whole list: it has the age of that instance's heartbeat.
if is_recent and known == version and late_before == 0 and own and command ~= 'leave' then
  if is_news() then
    note_change()
  end
  redis.call('HSET', instances, id, kept)
  keep(0)
  return {now, 'unchanged', version, {}, has_questions}
end

local listed, others, late = {}, 0, 0
local all = redis.call('HGETALL', instances)
for place = 1, #all, 2 do
  local name, published = all[place], all[place + 1]
  local heard = name ~= '' and tonumber(string.match(published, '^(%d+) '))
  if heard and heard > now then
    -- The clock was reset: the instance stays in the list no longer than usual.
    heard = now
    published = string.gsub(published, '^%d+', string.format('%.0f', now))
    redis.call('HSET', instances, name, published)
  end
  if name == '' then
    -- About the list.
  elseif not heard or heard + ttl <= now then
    redis.call('HDEL', instances, name)
    note_change()
  elseif name ~= id then
    others = others + 1
    late = late + (heard + 2 * period <= now and 1 or 0)
    listed[#listed + 1] = name
    listed[#listed + 1] = published
  end
end

read_at = now
-- The caller knows a newer version than Redis, so Redis has lost a list, which may have differed from this one.
if late ~= late_before or known > version then
  note_change()
end
local outcome = 'done'
if command == 'leave' then
  redis.call('HDEL', instances, id)
  note_change()
elseif others < most then
  if is_news() then
    note_change()
  end
  redis.call('HSET', instances, id, kept)
  listed[#listed + 1] = id
  listed[#listed + 1] = kept
else
  outcome = 'full'
end
keep(late)
return {now, outcome, version, listed, has_questions}
