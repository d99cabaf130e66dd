-- Prepended to the scripts to turn them into those of a version with another layout, by name the second: every counter
-- has another first byte.
local real = redis
local function renamed(key)
  return (string.gsub(key, '|(%l+)1:', '|%12:'))
end
local function through(call)
  return function(command, key, ...)
    if command == 'TIME' then
      return call(command)
    end
    local arguments = {...}
    -- SET and RPUSH write the first of them, LSET the one behind the place.
    local written = ({SET = 1, RPUSH = 1, LSET = 2})[command]
    if written then
      arguments[written] = '2' .. arguments[written]
    elseif command == 'SETRANGE' then
      arguments[1] = arguments[1] + 1
    end
    local reply = call(command, renamed(key), unpack(arguments))
    if reply and (command == 'GET' or command == 'LINDEX') then
      assert(string.sub(reply, 1, 1) == '2', 'a counter of another layout')
      return string.sub(reply, 2)
    end
    return reply
  end
end
local redis = {call = through(real.call), pcall = through(real.pcall)}
