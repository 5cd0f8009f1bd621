-- renew, its first look: the usual case is decided before anything else is made.
-- A string that is a grant of that value, with less time left: all else is left to
-- lock.lua and renew.lua, refusals too.  The answer is ttl alone: a table costs
-- Redis as much as one more command.

if ARGV[1] == 's' and ARGV[2] ~= '' and ARGV[2]:sub(-14) ~= '_WRITERWAITING'
	and redis.pcall('STRLEN', KEYS[1]) == #ARGV[2] and redis.call('GET', KEYS[1]) == ARGV[2] then
	local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])

	if left >= 0 and left < ttl and redis.pcall('PEXPIRE', KEYS[1], ARGV[3]) == 1 then
		return ttl
	end
end

