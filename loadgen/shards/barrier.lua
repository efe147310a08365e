-- One step at the barrier, by the clock of the store; asked again and again until a start is set.
-- KEYS[1]: hash of this barrier. ARGV: count of shards, index, token of the caller, hash of the plan, salt that the
-- caller would take, seconds from "all ready" to the start, seconds after which a silent shard counts as gone,
-- seconds that the hash outlives its last caller, 1 when the caller is ready to send.
-- Returns {what, salt, start, present, ready, now}: what is ok, count, plan or taken; start is "" until all are ready.
local now = redis.call('TIME')
now = now[1] + now[2] / 1000000
local key, count, index, token, plan = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local function fresh(seen) return seen and now - tonumber(seen) < tonumber(ARGV[7]) end
local others = false
for other = 0, (tonumber(redis.call('HGET', key, 'count')) or 0) - 1 do
  local fields = redis.call('HMGET', key, 'token:' .. other, 'seen:' .. other)
  others = others or (fields[1] and fields[1] ~= token and fresh(fields[2]))
end
local start = redis.call('HGET', key, 'start')
local mine = redis.call('HGET', key, 'token:' .. index) == token
if not mine and ((start and tonumber(start) < now) or not others) then
  redis.call('DEL', key)  -- that run has begun, or all have gone: whoever comes now begins another one
  start = false
end
local known = redis.call('HMGET', key, 'count', 'plan', 'token:' .. index, 'seen:' .. index)
if known[1] and tonumber(known[1]) ~= count then return {'count', known[1], '', 0, 0, string.format('%.6f', now)} end
if known[2] and known[2] ~= plan then return {'plan', known[2], '', 0, 0, string.format('%.6f', now)} end
if known[3] and known[3] ~= token and fresh(known[4]) then
  return {'taken', '', '', 0, 0, string.format('%.6f', now)}
end
redis.call('HSETNX', key, 'salt', ARGV[5])
redis.call('HSET', key, 'count', ARGV[1], 'plan', plan, 'token:' .. index, token,
  'seen:' .. index, string.format('%.6f', now), 'ready:' .. index, ARGV[9])
redis.call('EXPIRE', key, ARGV[8])
local present, ready = 0, 0
for other = 0, count - 1 do
  local fields = redis.call('HMGET', key, 'seen:' .. other, 'ready:' .. other)
  if fresh(fields[1]) then
    present = present + 1
    if fields[2] == '1' then ready = ready + 1 end
  end
end
if not start and ready == count then
  start = string.format('%.6f', now + tonumber(ARGV[6]))
  redis.call('HSET', key, 'start', start)
end
return {'ok', redis.call('HGET', key, 'salt'), start or '', present, ready, string.format('%.6f', now)}
