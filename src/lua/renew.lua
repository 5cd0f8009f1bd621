
-- renew: sets the time left to ttl, unless it is more, if the value has the lock.

local state, left = look(value)

if state ~= HELD then
	return { state, left }
end
return prolong(left)
