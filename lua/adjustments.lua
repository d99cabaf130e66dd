-- Reads and changes the adjustments, and keeps the audit trail. The adjustments are stored as one text, so readers
-- never see a partial change, and each writer sees the changes of earlier writers. A change and its record are written
-- together. The twin of src/shared/adjustment/board.rs.
--
-- KEYS[1]  the version, a number that changes with the text; readers ask for it first
-- KEYS[2]  the text: a line for each adjustment with its start and end (ms since the epoch), its ID and its content,
--          separated by spaces
-- KEYS[3]  the trail of changes: a list of records, the newest last. Each is its time (ms since the epoch), its action,
--          the ID of the adjustment or a dash, and a note in JSON, separated by spaces; then a line end, and the
--          content of the adjustment
-- KEYS[4]  the trail of refusals, of the same form: separate, so that many refusals do not displace changes
-- ARGV[1]  the command: read, begin, offer (begin one that has held at one instance for some time, if nothing has
--          changed since it read the text), end, sweep (remove the adjustments that are over), record or trail
-- ARGV[2]  the ID of the adjustment to begin or end; the action to record; the most records of each trail to return
-- ARGV[3]  the duration of the adjustment to begin (ms); the age of the record (ms)
-- ARGV[4]  the content of the adjustment to begin, without a line end
-- ARGV[5]  the most adjustments
-- ARGV[6]  the note to record, without a line end
-- ARGV[7]  how long the offered adjustment has held (ms)
-- ARGV[8]  the version that the offering instance has read
-- reply    the time, the outcome, the version, and the text; to record, only the time and the outcome; to trail, the
--          time, the outcome, and the records of each trail
local command, id, content, note = ARGV[1], ARGV[2], ARGV[4], ARGV[6] or '{}'
local lasts, most = tonumber(ARGV[3]), tonumber(ARGV[5])
-- The bounds of src/shared/adjustment/audit.rs: the most records of changes and of refusals, and their lifetime (ms).
local CHANGES, REFUSALS, KEPT = 2000, 500, 2592000000
-- Adjustments that are over stay this long (ms) unless an instance removes them, which records their end.
local GRACE = 86400000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Returns the reply to a command, or nil if its key has another type. Raises any other error.
local function attempt(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
end

-- Adds a record to a trail, and removes records that are too old or too many. A key of another type is replaced.
local function record(trail, at, action, name, about, said)
  local line = string.format('%.0f', at) .. ' ' .. action .. ' ' .. name .. ' ' .. about .. '\n' .. said
  if not attempt('RPUSH', trail, line) then
    redis.call('DEL', trail)
    redis.call('RPUSH', trail, line)
  end
  redis.call('LTRIM', trail, trail == KEYS[3] and -CHANGES or -REFUSALS, -1)
  -- Some for each record suffice, because each record adds one.
  for _ = 1, 10 do
    local oldest = redis.call('LINDEX', trail, 0)
    local time = oldest and tonumber(string.match(oldest, '^(%d+) '))
    if not oldest or time and time + KEPT > now then
      break
    end
    redis.call('LTRIM', trail, 1, -1)
  end
  redis.call('PEXPIRE', trail, KEPT)
end

-- Returns the newest records of a trail, the newest first. Asks for each: decisions need no command that returns many.
local function newest(trail)
  local found = {}
  for place = 1, math.min(attempt('LLEN', trail) or 0, tonumber(id)) do
    found[place] = redis.call('LINDEX', trail, -place)
  end
  return found
end

if command == 'trail' then
  return {now, 'trail', newest(KEYS[3]), newest(KEYS[4])}
end
if command == 'record' then
  local trail = id == 'refused' and KEYS[4] or KEYS[3]
  -- The command may be a repetition, after a lost reply. Each note is unique.
  for place = 1, math.min(attempt('LLEN', trail) or 0, 20) do
    if string.find(redis.call('LINDEX', trail, -place), note, 1, true) then
      return {now, 'same'}
    end
  end
  record(trail, math.max(now - lasts, 0), id, '-', note, '')
  return {now, 'done'}
end

-- A key of another type counts as missing: the next change replaces it.
local version, lines = attempt('GET', KEYS[1]) or '0', attempt('GET', KEYS[2]) or ''
-- The largest exact whole number in a double, and the upper bound of LASTS in src/engine/adjustment/mod.rs.
local LARGEST, LONGEST = 9007199254740991, 604800000
if not string.find(version, '^%d+$') or tonumber(version) > LARGEST then
  version = '0'
end
if command == 'read' or command == 'offer' and tonumber(version) ~= tonumber(ARGV[8]) then
  return {now, 'read', version, lines}
end

local outcome = ({begin = 'done', offer = 'done', sweep = 'read'})[command] or 'unknown'
local begins = command == 'begin' or command == 'offer'
local kept, latest = {}, now
local unread, over, own = {}, {}, nil
for line in string.gmatch(lines, '[^\n]+') do
  local since, ends, name, said = string.match(line, '^(%d+) (%d+) (%S+) (.*)$')
  since, ends = tonumber(since), tonumber(ends)
  local is_read = since and since <= LARGEST and ends >= since and ends <= LARGEST
  if is_read then
    ends = math.min(ends, since + LONGEST)
  end
  if is_read and since > now then
    -- The clock was reset: the adjustment keeps its duration from now on.
    since, ends = now, now + ends - since
  end
  if not is_read then
    -- Written by another version, or damaged: the line is kept unchanged until the present text would expire.
    unread[#unread + 1] = line .. '\n'
  elseif ends > now then
    local is_it = name == id
    if is_it and begins then
      outcome = ends - since == lasts and said == content and 'same' or 'taken'
    end
    if is_it and command == 'end' then
      outcome = 'done'
      own = {now, 'ended', name, note, said}
    else
      kept[#kept + 1] = string.format('%.0f %.0f %s %s\n', since, ends, name, said)
      latest = math.max(latest, ends)
    end
  else
    over[#over + 1] = {ends, 'expired', name, '{}', said}
    outcome = command == 'sweep' and 'done' or outcome
  end
end
if begins and outcome == 'done' then
  local since = math.max(now - (tonumber(ARGV[7]) or 0), 0)
  if since + lasts <= now then
    outcome = 'unknown'
  elseif #kept >= most then
    outcome = 'full'
  else
    kept[#kept + 1] = string.format('%.0f %.0f %s %s\n', since, since + lasts, id, content)
    latest = math.max(latest, since + lasts)
    own = {now, 'began', id, note, content}
  end
end
if outcome == 'done' then
  -- First, because Redis may refuse to write: then nothing has changed.
  over[#over + 1] = own
  for _, one in ipairs(over) do
    record(KEYS[3], unpack(one))
  end
  local ttl = #kept > 0 and latest - now + GRACE or 0
  if #unread > 0 then
    local left = redis.call('PTTL', KEYS[2])
    ttl = math.max(ttl, math.min(left > 0 and left or LONGEST, LONGEST + GRACE))
  end
  lines = table.concat(kept) .. table.concat(unread)
  if #lines > 0 then
    -- Based on the clock, so the version differs from all those before the key expired.
    version = string.format('%.0f', math.max(version + 1, clock[1] * 1000000 + clock[2]))
    ttl = string.format('%.0f', ttl)
    redis.call('SET', KEYS[1], version, 'PX', ttl)
    redis.call('SET', KEYS[2], lines, 'PX', ttl)
  else
    version = '0'
    redis.call('DEL', KEYS[1], KEYS[2])
  end
end
return {now, outcome, version, lines}
