-- CALL fails($$statement$$): runs it and tells all that its error says. What
-- differs from run to run (tokens, process ids, durations, identities) is
-- masked. The error ends a subtransaction, as a savepoint would.
SET client_min_messages = warning;
CREATE OR REPLACE PROCEDURE fails(statement text) LANGUAGE plpgsql AS $procedure$
DECLARE
    state text;
    message text;
    detail text;
    hint text;
    says text;
BEGIN
    EXECUTE statement;
    RAISE INFO 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    says := state || ': ' || message ||
        CASE WHEN detail <> '' THEN E'\n  DETAIL: ' || detail ELSE '' END ||
        CASE WHEN hint <> '' THEN E'\n  HINT: ' || hint ELSE '' END;
    says := regexp_replace(says, '\mpg:\d+:\d+:[0-9a-f]+', 'SESSION', 'g');
    says := regexp_replace(says, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'UUID', 'g');
    says := regexp_replace(says, '\m\d+\.\d{3} s\M', 'SECONDS', 'g');
    says := regexp_replace(says, '\m\d{12,}\M', 'TOKEN', 'g');
    says := regexp_replace(says, '\mProcess \d+', 'Process PID', 'g');
    RAISE INFO '%', says;
END
$procedure$;
RESET client_min_messages;
