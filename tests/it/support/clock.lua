-- Prepended to the script under test to replace its clock and expiry: the time is the key `clock` in milliseconds, and
-- the expiry of a counter is recorded in the hash `expiry` instead of set. The script itself is unchanged.
local real = redis
local function expire(key, ttl)
  real.call('HSET', 'expiry', key, string.format('%.0f', real.call('GET', 'clock') + ttl))
end
local redis = {
  call = function(command, ...)
    if command == 'TIME' then
      local now = real.call('GET', 'clock')
      local ms = now % 1000
      return {string.format('%.0f', (now - ms) / 1000), string.format('%.0f', ms * 1000 + 999)}
    elseif command == 'SET' then
      local key, value, option, ttl = ...
      if option == 'PX' then
        expire(key, ttl)
      else
        assert(option == 'KEEPTTL' and real.call('EXISTS', key) == 1, 'a counter is written without a TTL')
      end
      return real.call('SET', key, value)
    elseif command == 'PTTL' then
      local ends_at = real.call('HGET', 'expiry', ...)
      return ends_at and ends_at - real.call('GET', 'clock') or -1
    elseif command == 'PEXPIRE' then
      expire(...)
    else
      return real.call(command, ...)
    end
  end,
  pcall = real.pcall,
}
