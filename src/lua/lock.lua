-- What every script begins with, after a first look (*_first.lua) that some take:
-- the arguments, and who has the lock.
--
-- KEYS[1]  the lock's key, and no other: any slot of a cluster will do
-- ARGV     shape, value, ttl, instead.  Bytes; those at the end that a script does
--          not use may be missing.
--          shape: 's', a string that is the holder; 'h', a hash whose field is
--          the holder, as Redisson has it.  ttl: milliseconds.
--
-- Every answer is { state, milliseconds left }, left -1: not known, or for ever; but
-- that of renew's first look, when it set the time left: ttl alone.
-- The states are numbered as in enum LfLockState.
--
-- There is no line "#!lua" at the top, on purpose: with one, Redis runs none of
-- these when its memory is full, not even those that only read.

local HELD, OTHER, ABSENT, NO_EXPIRY, WRONG_TYPE, NO_GRANT = 0, 1, 2, 3, 4, 5

local key = KEYS[1]
local shape, value, ttl, instead = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local kind = shape == 'h' and 'hash' or 'string'

-- Runs a command: nothing, or Redis' refusal to be answered as it is.  An error
-- raised by redis.call() comes with the refusal's name in front in some versions
-- of Redis only.
local function refused(...)
	local answer = redis.pcall(...)
	return type(answer) == 'table' and answer.err and answer or nil
end

-- What libraries keep in the place of a holder, and is none.
local function is_marker(holder)
	return holder == ''
		or holder:sub(-14) == '_WRITERWAITING'
		or (kind == 'hash' and holder == 'mode')
end

-- What a string says of that holder: nothing, or whether it is a grant.
local function look_string(holder)
	if redis.call('STRLEN', key) ~= #holder or redis.call('GET', key) ~= holder then
		return nil
	end
	return not is_marker(holder)
end

-- The same of a hash.  The field's value is a count, or with some a text about
-- the holder.  In a lock for readers and writers, which has a field `mode`, only
-- the writer is alone, and only its time is the key's.
local function look_hash(holder)
	local count = redis.call('HGET', key, holder)

	if not count then
		return nil
	end
	local number = tonumber(count)
	if is_marker(holder) or count == '' or (number and not (number >= 1)) then
		return false
	end
	local mode = redis.call('HGET', key, 'mode')
	return not mode or (mode == 'write' and holder:sub(-6) == ':write')
end

-- State and time left of the lock, as that holder sees it.
local function look(holder)
	local found = redis.call('TYPE', key).ok
	local left = redis.call('PTTL', key)

	if found == 'none' then
		return ABSENT, -1
	end
	if found ~= kind then
		return WRONG_TYPE, left
	end
	local granted = (kind == 'hash' and look_hash or look_string)(holder)
	if granted == nil then
		return OTHER, left
	end
	if not granted then
		return NO_GRANT, left
	end
	return left == -1 and NO_EXPIRY or HELD, left
end

-- Sets the time left to ttl, unless it is more.
local function prolong(left)
	if left >= tonumber(ttl) then
		return { HELD, left }
	end
	return refused('PEXPIRE', key, ttl) or { HELD, tonumber(ttl) }
end
