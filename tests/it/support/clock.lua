-- Stands before the script under test and gives it another clock and another expiry: the time is what the key `clock`
-- says in milliseconds, and when a counter expires is written down in the hash `expiry` and does not happen. The script
-- itself is unchanged.
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
