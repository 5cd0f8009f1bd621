
-- release: gives the lock up, if the value has it.  Only for locks of our own:
-- their count is 1.

-- Where Redisson's waiting clients listen.
local function channel()
	if key:find('{', 1, true) then
		return 'redisson_lock__channel:' .. key
	end
	return 'redisson_lock__channel:{' .. key .. '}'
end

local state, left = look(value)

if state ~= HELD and state ~= NO_EXPIRY then
	return { state, left }
end
if kind == 'string' then
	return refused('DEL', key) or { HELD, 0 }
end

-- Nothing depends on it, and it is refused when memory is full.
redis.pcall('HINCRBY', key, value, -1)

local problem
if redis.call('HLEN', key) == 1 then
	problem = refused('DEL', key)
else
	problem = refused('HDEL', key, value)
end
if problem then
	return problem
end
-- By a user who may not publish, the lock is released all the same.
redis.pcall('PUBLISH', channel(), '0')
return { HELD, 0 }
