-- Reads and changes the adjustments, which are one text: nobody sees a part of a change, and of two who write at once
-- the later one sees what the earlier has written. The twin of src/store/adjustments.rs.
--
-- KEYS[1]  the version, which a reader asks for before the rest: a number that changes whenever the text does
-- KEYS[2]  for each adjustment a line of when it began and ends, in milliseconds since the epoch, its id and its
--          content, with a space between them
-- ARGV[1]  what to do: read, begin or end
-- ARGV[2]  the id of the one that begins or ends
-- ARGV[3]  how long the one that begins lasts, in milliseconds
-- ARGV[4]  its content, which has no end of a line
-- ARGV[5]  how many there may be
-- reply    the time, what has happened, the version, and the lines
local command, id, content = ARGV[1], ARGV[2], ARGV[4]
local lasts, most = tonumber(ARGV[3]), tonumber(ARGV[5])
local version, lines = redis.call('GET', KEYS[1]) or '0', redis.call('GET', KEYS[2]) or ''
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if command == 'read' then
  return {now, 'read', version, lines}
end

local outcome = command == 'end' and 'unknown' or 'done'
local kept, latest = {}, now
for line in string.gmatch(lines, '[^\n]+') do
  local since, ends, name, said = string.match(line, '^(%d+) (%d+) (%S+) (.*)$')
  since, ends = tonumber(since), tonumber(ends)
  if since > now then
    -- The clock was set back: it lasts no longer than it was to.
    since, ends = now, now + ends - since
  end
  if ends > now then
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
  lines = table.concat(kept)
  if #kept > 0 then
    -- By the clock, so that it is none of those before the key expired.
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
