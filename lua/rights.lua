-- Tries each command that decisions need, on counters that no request uses.
--
-- KEYS[1]  a counter with a string as state
-- KEYS[2]  a counter with a list as state
-- KEYS[3]  a hash, as for a budget, a usage page or the instances of the fleet
-- reply    a line for each command that failed: its name, a space, and the error

local text, list, hash = KEYS[1], KEYS[2], KEYS[3]
local failures = {}

local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local failed = type(reply) == 'table' and reply.err
  if failed then
    failures[#failures + 1] = command .. ' ' .. failed .. '\n'
  end
  return not failed
end

try('TIME')
try('GET', text)
if try('SET', text, '', 'PX', 1000) then
  try('SET', text, '', 'KEEPTTL')
  try('SETRANGE', text, 0, ' ')
end
try('LLEN', list)
-- Sets a TTL first, so nothing remains for more than a second even if other commands are forbidden.
if try('PEXPIRE', list, 1000) and try('RPUSH', list, '', '') then
  try('PEXPIRE', list, 1000)
end
try('LINDEX', list, 0)
try('LSET', list, 0, '')
try('LTRIM', list, 0, 0)
if try('HSET', hash, 0, '') then
  try('PEXPIRE', hash, 1000)
end
try('HGET', hash, 0)
try('HMGET', hash, 0)
try('PTTL', hash)
try('HGETALL', hash)
try('HDEL', hash, 0)
try('DEL', text, list, hash)
return table.concat(failures)
