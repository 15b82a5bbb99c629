-- without_timeouts
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout');

-- session_without_timeouts
SELECT set_config(name, '0', false) FROM pg_settings
WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout');

-- lock_timeout
SELECT set_config('lock_timeout', '86400000ms', True) AS set_config_1;

-- lock_timeout (in_session)
SELECT set_config('lock_timeout', '86400000ms', False) AS set_config_1;

-- nothing
SHOW lock_timeout;

-- lock_for_changes
LOCK TABLE "sample".shield_outbox IN SHARE UPDATE EXCLUSIVE MODE;

-- oldest_holder
SELECT a.pid, c.relname, coalesce(nullif(a.application_name, ''), a.backend_type) AS name,
coalesce(a.state, 'active') AS state,
extract(epoch FROM clock_timestamp() - a.xact_start)::float AS age_s
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
AND l.database = (SELECT oid FROM pg_database
  WHERE datname = current_database())
AND n.nspname = coalesce('sample', current_schema()) AND c.relname IN ('shield_outbox')
ORDER BY a.xact_start NULLS LAST LIMIT 1;

-- validity_of_index
SELECT i.indisvalid FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'sample' AND n.nspname = coalesce('sample', current_schema());

-- validity_of_check
SELECT k.convalidated FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'shield_outbox' AND k.conname = 'sample'
AND n.nspname = coalesce('sample', current_schema());

-- replace_check
ALTER TABLE "sample".shield_outbox DROP CONSTRAINT IF EXISTS sample, ADD CONSTRAINT sample CHECK (shard < 4)
    NOT VALID;

-- validate
ALTER TABLE "sample".shield_outbox VALIDATE CONSTRAINT sample;
