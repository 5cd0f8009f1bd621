-- check, its first look: a string that is a grant of that value and runs out.  All
-- else is left to lock.lua and check.lua.

if ARGV[1] == 's' and ARGV[2] ~= '' and ARGV[2]:sub(-14) ~= '_WRITERWAITING'
	and redis.pcall('STRLEN', KEYS[1]) == #ARGV[2] and redis.call('GET', KEYS[1]) == ARGV[2] then
	local left = redis.call('PTTL', KEYS[1])

	if left >= 0 then
		return { 0, left }
	end
end

