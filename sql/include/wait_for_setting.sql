-- Waits until this session has seen that :setting is :value. A reloaded
-- configuration is looked at between statements only, so psql has to loop:
-- this file (:wait_for_setting) includes itself.
SELECT current_setting(:'setting') = :'value' AS there \gset
\if :there
\else
SELECT pg_sleep(0.05) AS slept \gset
\i :wait_for_setting
\endif
