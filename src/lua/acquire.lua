
-- acquire: takes the lock for ttl, if it is free, or if `instead` has it.

-- Writes the hash as Redisson does.
local function take_hash(former)
	local problem = refused('HINCRBY', key, value, 1)

	if problem then
		return problem
	end
	problem = refused('PEXPIRE', key, ttl)
	if problem then
		redis.pcall('HDEL', key, value)	-- never a lock that does not run out
		return problem
	end
	return former and refused('HDEL', key, former)
end

local function take()
	if kind == 'hash' then
		return take_hash(nil)
	end
	return refused('SET', key, value, 'NX', 'PX', ttl)
end

local function replace()
	if kind == 'hash' then
		return take_hash(instead)
	end
	return refused('SET', key, value, 'PX', ttl)
end

-- Of a hash: alone, for then nobody else's lock is changed.
local function is_held_by(holder)
	local state = look(holder)

	return (state == HELD or state == NO_EXPIRY)
		and (kind == 'string' or redis.call('HLEN', key) == 1)
end

local state, left = look(value)

if is_marker(value) then
	return { NO_GRANT, left }
end
-- Asked before, and the answer was lost.
if state == HELD or state == NO_EXPIRY then
	return prolong(left)
end
if state == ABSENT then
	return take() or { HELD, tonumber(ttl) }
end
if state == OTHER and instead ~= '' and is_held_by(instead) then
	return replace() or { HELD, tonumber(ttl) }
end
return { state, left }
