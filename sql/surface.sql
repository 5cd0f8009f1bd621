-- The SQL surface: names, arguments and their order, results, columns of views.
-- What is here stays; what is new is added.
SELECT proname, pg_get_function_arguments(oid) AS arguments, pg_get_function_result(oid) AS result,
       provolatile AS volatile, proparallel AS parallel
FROM pg_proc WHERE pronamespace = 'lease_fence'::regnamespace
ORDER BY proname COLLATE "C", pg_get_function_arguments(oid) COLLATE "C";

SELECT c.relname, c.relkind, string_agg(format('%s %s', a.attname, format_type(a.atttypid, a.atttypmod)), E',\n' ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'lease_fence'::regnamespace AND c.relkind IN ('r', 'v')
GROUP BY c.relname, c.relkind ORDER BY c.relname COLLATE "C";

SELECT name, boot_val, unit, context, vartype FROM pg_settings
WHERE name LIKE 'lease\_fence.%' AND name <> 'lease_fence.test_point' ORDER BY name COLLATE "C";
