-- Claims a notice, so that one instance of the fleet tells it. Seen in src/notify/seen.rs does the same in memory.
--
-- KEYS[1]  the claim: the ID of the notice, until the claim ends
-- ARGV[1]  the command: claim, or keep (the notice was told: the claim lasts for this long from now)
-- ARGV[2]  the ID of the notice
-- ARGV[3]  the lifetime of the claim (ms)
-- reply    0 if the claim has this ID; otherwise the time until the claim of another notice ends (ms)
local command, id, lifetime = ARGV[1], ARGV[2], ARGV[3]
if command == 'keep' then
  redis.call('SET', KEYS[1], id, 'PX', lifetime)
  return 0
end
-- A command that is repeated after a lost reply finds its own claim.
if redis.call('SET', KEYS[1], id, 'NX', 'PX', lifetime) or redis.call('GET', KEYS[1]) == id then
  return 0
end
return math.max(redis.call('PTTL', KEYS[1]), 1)
