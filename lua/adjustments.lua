-- Reads and changes the adjustments. They are stored as one text, so readers never see a partial change, and each
-- writer sees the changes of earlier writers. The twin of src/shared/adjustment/board.rs.
--
-- KEYS[1]  the version, a number that changes with the text; readers ask for it first
-- KEYS[2]  the text: a line for each adjustment with its start and end (ms since the epoch), its ID and its content,
--          separated by spaces
-- ARGV[1]  the command: read, begin or end
-- ARGV[2]  the ID of the adjustment to begin or end
-- ARGV[3]  the duration of the adjustment to begin (ms)
-- ARGV[4]  its content, without a line end
-- ARGV[5]  the most adjustments
-- reply    the time, the outcome, the version, and the text
local command, id, content = ARGV[1], ARGV[2], ARGV[4]
local lasts, most = tonumber(ARGV[3]), tonumber(ARGV[5])

-- Returns a stored text. A key of another type counts as missing: the next change replaces it.
local function stored(key)
  local found = redis.pcall('GET', key)
  if type(found) ~= 'table' then
    return found
  end
  -- Raises any other error.
  return not string.find(found.err, 'WRONGTYPE', 1, true) and redis.call('GET', key)
end

local version, lines = stored(KEYS[1]) or '0', stored(KEYS[2]) or ''
-- The largest exact whole number in a double, and the upper bound of LASTS in src/engine/adjustment/mod.rs.
local LARGEST, LONGEST = 9007199254740991, 604800000
if not string.find(version, '^%d+$') or tonumber(version) > LARGEST then
  version = '0'
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if command == 'read' then
  return {now, 'read', version, lines}
end

local outcome = command == 'end' and 'unknown' or 'done'
local kept, latest = {}, now
local unread = {}
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
    if is_it and command == 'begin' then
      outcome = ends - since == lasts and said == content and 'same' or 'taken'
    end
    if is_it and command == 'end' then
      outcome = 'done'
    else
      kept[#kept + 1] = string.format('%.0f %.0f %s %s\n', since, ends, name, said)
      latest = math.max(latest, ends)
    end
  end
end
if command == 'begin' and outcome == 'done' then
  if #kept >= most then
    outcome = 'full'
  else
    kept[#kept + 1] = string.format('%.0f %.0f %s %s\n', now, now + lasts, id, content)
    latest = math.max(latest, now + lasts)
  end
end
if outcome == 'done' then
  if #unread > 0 then
    local left = redis.call('PTTL', KEYS[2])
    latest = math.max(latest, now + math.min(left > 0 and left or LONGEST, LONGEST))
  end
  lines = table.concat(kept) .. table.concat(unread)
  if #lines > 0 then
    -- Based on the clock, so the version differs from all those before the key expired.
    version = string.format('%.0f', math.max(version + 1, clock[1] * 1000000 + clock[2]))
    local ttl = string.format('%.0f', latest - now)
    redis.call('SET', KEYS[1], version, 'PX', ttl)
    redis.call('SET', KEYS[2], lines, 'PX', ttl)
  else
    version = '0'
    redis.call('DEL', KEYS[1], KEYS[2])
  end
end
return {now, outcome, version, lines}
