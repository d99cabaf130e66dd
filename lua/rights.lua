-- Tries each command that decisions need, on counters that are no request's.
--
-- KEYS[1]  a counter whose state is a string
-- KEYS[2]  one whose state is a list
-- KEYS[3]  a hash: a page of records, or what replicas say of themselves
-- reply    a line for each command that fails: its name, a space, and why

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
end
try('LLEN', list)
-- Nothing stays for longer than a second, whatever else this user may not do.
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
try('PTTL', hash)
try('HGETALL', hash)
try('HDEL', hash, 0)
try('DEL', text, list, hash)
return table.concat(failures)
