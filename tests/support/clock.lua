-- Stands before the script under test and gives it another clock and another expiry: the time is what the key `clock` says in
-- milliseconds, and a counter's TTL is written down in the hash `ttl` in place of running. The script itself is unchanged.
local real = redis
local redis = {
  call = function(command, ...)
    if command == 'TIME' then
      local now = real.call('GET', 'clock')
      local ms = now % 1000
      return {string.format('%.0f', (now - ms) / 1000), string.format('%.0f', ms * 1000 + 999)}
    elseif command == 'SET' then
      local key, value, px, ttl = ...
      assert(px == 'PX', 'a counter is written without its TTL')
      real.call('HSET', 'ttl', key, ttl)
      return real.call('SET', key, value)
    elseif command == 'PEXPIRE' then
      local key, ttl = ...
      real.call('HSET', 'ttl', key, ttl)
      return 1
    else
      return real.call(command, ...)
    end
  end,
}
