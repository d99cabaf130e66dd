-- Takes the beat of a Tollgate instance in the table of seats, and returns the table. Table in
-- src/engine/share/table.rs does the same in memory, and says why.
--
-- No clock is read here. A server that did not write the table last may lack beats, so it begins a new incarnation.
--
-- KEYS[1]  a hash: the ID of each instance -> the number of its last beat, its seat or -, and what it states;
--          and the empty ID -> the incarnation, the server that has it, and for how long instances have known it (ms)
-- ARGV[1]  the ID of the calling instance
-- ARGV[2]  the number of its beat
-- ARGV[3]  none, hold or take
-- ARGV[4]  the seat
-- ARGV[5]  for take: for how long the incarnation must be known (ms)
-- ARGV[6]  what the instance states
-- ARGV[7]  the name of a new incarnation
-- ARGV[8]  the incarnation that the instance knows, and ARGV[9]: for how long it has known it (ms)
-- ARGV[10] for how long the table is kept after the last beat (ms)
-- ARGV[11] and so on: the IDs of silent instances, each followed by the number of its last beat
-- reply    the incarnation, for how long it has been known (ms), and each ID followed by its entry
local instances, id, beat, ask, seat = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

-- Returns the beat, the seat and the statement of an entry.
local function parts(entry)
  local number, its, stated = string.match(entry, '^(%d+) (%S+) ?(.*)$')
  return tonumber(number), its, stated
end

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '?'
local entries = {}
local all = redis.call('HGETALL', instances)
for place = 1, #all, 2 do
  entries[all[place]] = all[place + 1]
end

-- One HMGET for each beat: the tests count beats by it, as in fleet.lua.
local about = redis.call('HMGET', instances, '')[1]
local incarnation, last, known_ms = string.match(about or '', '^(%S+) (%S+) (%d+)$')
entries[''] = nil
if last == server then
  known_ms = tonumber(known_ms)
  if incarnation == ARGV[8] then
    known_ms = math.max(known_ms, tonumber(ARGV[9]))
    for place = 11, #ARGV, 2 do
      local other = ARGV[place]
      if other ~= id and entries[other] and parts(entries[other]) == tonumber(ARGV[place + 1]) then
        entries[other] = nil
        redis.call('HDEL', instances, other)
      end
    end
  end
else
  incarnation, known_ms = ARGV[7] .. '@' .. server, 0
end

local before = entries[id] and parts(entries[id])
if not before or before <= beat then
  local is_free = ask == 'hold' or (ask == 'take' and known_ms >= tonumber(ARGV[5]))
  for other, entry in pairs(entries) do
    local _, its = parts(entry)
    is_free = is_free and (other == id or its ~= seat)
  end
  entries[id] = string.format('%.0f %s %s', beat, is_free and seat or '-', ARGV[6])
  redis.call('HSET', instances, id, entries[id])
end
redis.call('HSET', instances, '', string.format('%s %s %.0f', incarnation, server, known_ms))
redis.call('PEXPIRE', instances, ARGV[10])

local reply = {incarnation, known_ms}
for name, entry in pairs(entries) do
  reply[#reply + 1] = name
  reply[#reply + 1] = entry
end
return reply
