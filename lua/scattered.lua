-- Before the text for any call, where its counters lie in several slots of a Redis Cluster: no call may name keys of
-- several slots as such, so that they come as arguments.
--
-- ARGV[1]  the checks
-- ARGV[i]  the counters, from 2 on
local KEYS = {}
for i = 2, #ARGV do
  KEYS[i - 1] = ARGV[i]
end
