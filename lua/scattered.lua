-- Precedes the script if a call's counters are in several slots of a Redis Cluster. KEYS must be in one slot, so the
-- names of the counters are passed as arguments.
--
-- ARGV[1]  the checks
-- ARGV[i]  the counters, from 2 on
local KEYS = {}
for i = 2, #ARGV do
  KEYS[i - 1] = ARGV[i]
end
