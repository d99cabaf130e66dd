-- Decides a check that is all of its call: the short way of decide.lua, with the same arguments and the same reply.
-- Redis runs every definition in every call. So only those that the algorithm needs are made, within the function that
-- may fail, where they cost least; src/store/redis/source.rs puts them in their place. What decide.lua looks up by the
-- number of an algorithm is `algorithm` and `open` here.
local ok, reply = pcall(function(key, asked)
  -- DEFINITIONS
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local _, _, count_denied, _, hits, number, period,
    figure1, figure2, figure3, figure4, figure5 = struct.unpack('<BBBBdddddddd', asked)
  local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = algorithm(
    open and open(key) or redis.call('GET', key), hits, false, number, period, count_denied == 1, now, nil,
    figure1, figure2, figure3, figure4, figure5)
  if state then
    write(key, state, ttl, lasting)
  end
  return struct.pack('<dBdddd', now, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end, KEYS[1], ARGV[1])

if ok then
  return reply
end
local failure = type(reply) == 'table' and reply.err or reply
return struct.pack('<dBdddd', 0, 2, 0, 0, -1, 0) .. KEYS[1] .. ': ' .. failure
