-- Decides a call of a single check: the fast path of decide.lua, with the same arguments and the same reply. Redis runs
-- every definition in every call, so src/store/redis/script/source.rs inserts only those that the algorithm needs, at
-- the cheapest place: inside the protected function. decide.lua finds them by the algorithm's number; here they have
-- the names `algorithm` and `open`.
local ok, reply = pcall(function(key, asked)
  -- DEFINITIONS
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local _, _, count_denied, _, hits, number, period,
    figure1, figure2, figure3, figure4, figure5 = struct.unpack('<BBBBdddddddd', asked)
  local before
  if open then
    before = open(key)
  else
    before = redis.pcall('GET', key)
    -- An error is a table, and a string has no such field.
    if before and before.err then
      before = unreadable(before)
    end
  end
  local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = algorithm(
    before, hits, false, number, period, count_denied == 1, now, nil, figure1, figure2, figure3, figure4, figure5)
  if state then
    write(key, state, ttl, lasting)
  elseif damaged and hits ~= 0 then
    redis.call('DEL', key)
  end
  local flags = (allowed and 1 or 0) + (damaged and 4 or 0)
  if told_behind then
    return struct.pack('<dBdddd', now, flags + 8, remaining, reset_after, retry_after, delay or 0) .. told_behind
  end
  return struct.pack('<dBdddd', now, flags, remaining, reset_after, retry_after, delay or 0)
end, KEYS[1], ARGV[1])

if ok then
  return reply
end
local failure = type(reply) == 'table' and reply.err or reply
return struct.pack('<dBdddd', 0, 2, 0, 0, -1, 0) .. KEYS[1] .. ': ' .. failure
