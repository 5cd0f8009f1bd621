
-- check: only looks.

return { look(value) }
