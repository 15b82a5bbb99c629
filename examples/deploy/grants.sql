-- Four roles besides the owner of the tables, which runs `shieldtx db upgrade`. Run this file as the owner. For tables in a
-- schema of their own: SET search_path to it first, and GRANT USAGE ON SCHEMA to each role. A superuser also runs
-- `GRANT pg_read_all_stats TO shop_reader`: without it, the reconciliation judges nothing.

-- shop_web writes events.
GRANT INSERT ON shield_outbox TO shop_web;

-- shop_worker runs `shieldtx relay` and `shieldtx consume`. Handlers also need grants on the tables of the service.
GRANT SELECT ON shield_version TO shop_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    shield_outbox, shield_inbox, shield_parked, shield_relay, shield_barrier, shield_purged, shield_audit, shield_trace,
    shield_pause
    TO shop_worker;
GRANT SELECT, UPDATE ON shield_shard TO shop_worker;
GRANT SELECT ON SEQUENCE shield_outbox_seq_seq, shield_inbox_seq_seq TO shop_worker;

-- shop_reader runs `shieldtx status`, `shieldtx trace`, `shieldtx dead list`, `shieldtx consumers list`, and reads for the reconciliation.
GRANT SELECT ON
    shield_version, shield_outbox, shield_inbox, shield_parked, shield_relay, shield_shard, shield_barrier, shield_purged,
    shield_audit, shield_trace, shield_reconcile_run, shield_pause
    TO shop_reader;

-- shop_repair runs `shieldtx reconcile repair`.
GRANT SELECT ON
    shield_version, shield_outbox, shield_inbox, shield_parked, shield_relay, shield_shard, shield_barrier, shield_purged,
    shield_audit, shield_trace, shield_reconcile_run
    TO shop_repair;
GRANT INSERT, UPDATE ON shield_outbox, shield_inbox TO shop_repair;
GRANT INSERT ON shield_audit TO shop_repair;

-- The reconciliation stores its runs in the database of the first service of reconcile.toml. There:
GRANT INSERT, UPDATE, DELETE ON shield_reconcile_run TO shop_reader;
