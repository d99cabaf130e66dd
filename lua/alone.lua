-- Decides a check that is all of its call: the short way of decide.lua, with the same arguments and the same reply.
-- Nothing is defined here but what can fail.
local key = KEYS[1]
local now = 0
local function decide()
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local _, _, count_denied, _, hits, number, period,
    figure1, figure2, figure3, figure4, figure5 = struct.unpack('<BBBBdddddddd', ARGV[1])
  local open = lists[1]
  local state, ttl, allowed, remaining, reset_after, retry_after, lasting, delay = algorithms[1](
    open and open(key) or redis.call('GET', key), hits, false, number, period, count_denied == 1, now, nil,
    figure1, figure2, figure3, figure4, figure5)
  if state then
    write(key, state, ttl, lasting)
  end
  return struct.pack('<dBdddd', now, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

local ok, reply = pcall(decide)
if ok then
  return reply
end
local failure = type(reply) == 'table' and reply.err or reply
return struct.pack('<dBdddd', now, 2, 0, 0, NEVER, 0) .. key .. ': ' .. failure
