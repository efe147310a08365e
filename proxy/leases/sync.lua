-- One step of the leases of a group, on the server's clock. proxy/policy/leases/book.py says what the keys mean and what
-- the rules are; a test holds the two against each other. KEYS[1]: a hash, one field per member and "" for the group.
local key, request = KEYS[1], cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local me, group, members, live = request.m, {v = 0, c = 0}, {}, 0
local flat = redis.call('HGETALL', key)
for i = 1, #flat, 2 do
  if flat[i] == '' then
    group = cjson.decode(flat[i + 1])
  else
    local member = cjson.decode(flat[i + 1])
    if member.e <= now then
      redis.call('HDEL', key, flat[i])
    else
      members[flat[i]] = member
      live = live + 1
    end
  end
end
local before = members[me]
if before and request.q <= before.q then
  return cjson.encode({s = 1})
end
if before then
  members[me] = nil
  live = live - 1
end
if request.x == 1 then
  redis.call('HDEL', key, me)
  local in_line = 0
  for _, one in pairs(members) do
    for _, place in pairs(one.p) do
      if place.d then in_line = 1 end
    end
  end
  if in_line == 1 then redis.call('PUBLISH', key, me) end
  return cjson.encode({v = group.v, k = before and 1 or 0, c = 0, n = live, N = 1, p = {}, w = in_line})
end
if (not before and live == 0) or request.v > group.v then
  group.c = now + request.t
end
group.v = math.max(group.v, request.v) + 1
local calm = math.max(0, group.c - now)

local function limits_of(asked, others)
  local limits = {}
  for i, limit in ipairs(asked.l) do limits[i] = limit end
  for _, one in ipairs(others) do
    for i, limit in ipairs(one.l) do
      if limit ~= -1 and (limits[i] == -1 or limit < limits[i]) then limits[i] = limit end
    end
  end
  if asked.a == 1 then
    local weight = asked.k[1] + 1
    local total = asked.l[1] * weight
    for _, one in ipairs(others) do
      total = total + one.l[1] * (one.h[1] + 1)
      weight = weight + one.h[1] + 1
    end
    limits[1] = math.floor(total / weight)
  end
  return limits
end

local function precedes(o1, s1, m1, o2, s2, m2)
  if o1 ~= o2 then return o1 < o2 end
  if s1 ~= s2 then return s1 < s2 end
  return m1 < m2
end

local function place_of(name, asked, earlier)
  local others, names = {}, {}
  for member, one in pairs(members) do
    if one.p[name] then
      others[#others + 1] = one.p[name]
      names[#names + 1] = member
    end
  end
  local limits, held, needed = limits_of(asked, others), {}, asked.d
  local since = (earlier and earlier.d) and earlier.s or now
  local ahead, anybody, free, elsewhere, hungry = {}, {}, {}, 0, 0
  for i = 1, #limits do
    held[i], ahead[i], anybody[i] = asked.k[i], 0, 0
    free[i] = limits[i] == -1 and 1099511627776 or limits[i] - held[i]
  end
  for n, one in ipairs(others) do
    elsewhere = elsewhere + one.h[1]
    local before_me = needed and one.d and precedes(one.o, one.s, names[n], asked.o, since, me)
    if one.d then hungry = hungry + 1 end
    for i = 1, #limits do
      if limits[i] ~= -1 then free[i] = free[i] - one.h[i] end
      if one.d then
        local missing = math.max(0, one.d[i] - one.h[i])
        anybody[i] = anybody[i] + missing
        if before_me then ahead[i] = ahead[i] + missing end
      end
    end
  end
  local met = not needed
  if calm > 0 then
    for i = 1, #limits do held[i] = math.max(held[i], asked.f[i]) end
    needed = nil
  else
    if needed then
      met = true
      for i = 1, #limits do
        local missing = math.max(0, needed[i] - held[i])
        if missing > 0 and missing > free[i] - ahead[i] then met = false end
      end
      if met then
        for i = 1, #limits do
          local missing = math.max(0, needed[i] - held[i])
          held[i], free[i] = held[i] + missing, free[i] - missing
        end
      end
    end
    for i = 1, #limits do
      held[i] = held[i] + math.max(0, math.min(asked.w[i] - held[i], math.floor((free[i] - anybody[i]) / (1 + hungry))))
    end
  end
  local record = {l = asked.l, h = held, a = asked.a, o = asked.o}
  if needed and not met then record.d, record.s = needed, since end
  return record, {h = held, l = limits, e = elsewhere, y = math.min(1, hungry)}
end

local record = {e = now + request.t, q = request.q, n = request.n, p = {}}
local places, wake = {}, 0
for name, asked in pairs(request.p) do
  local earlier = before and before.p[name]
  record.p[name], places[name] = place_of(name, asked, earlier)
  if places[name].y == 1 and earlier then
    for i, held in ipairs(places[name].h) do
      if earlier.h[i] > held then wake = 1 end
    end
  end
end
redis.call('HSET', key, me, cjson.encode(record), '', cjson.encode(group))
redis.call('PEXPIRE', key, 20 * request.t)
if wake == 1 then redis.call('PUBLISH', key, me) end
local most = request.n
for _, one in pairs(members) do most = math.max(most, one.n) end
return cjson.encode({v = group.v, k = before and 1 or 0, c = calm, n = live + 1, N = most, p = places, w = wake})
