-- pauses
SELECT shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind, timezone('UTC',
    shield_pause.paused_at) AS paused_at, shield_pause.paused_by, shield_pause.reason, timezone('UTC',
    shield_pause.probe_at) AS probe_at, shield_pause.probes, coalesce(shield_pause.probe_at <=
    statement_timestamp(), False) AS is_due
FROM shield_pause
WHERE shield_pause.consumer_group = :of_group::VARCHAR
ORDER BY shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind;

-- every_pause
SELECT shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind, timezone('UTC',
    shield_pause.paused_at) AS paused_at, shield_pause.paused_by, shield_pause.reason, timezone('UTC',
    shield_pause.probe_at) AS probe_at, shield_pause.probes, coalesce(shield_pause.probe_at <=
    statement_timestamp(), False) AS is_due
FROM shield_pause
ORDER BY shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind;

-- trip
INSERT INTO shield_pause (consumer_group, event_type, tx_kind, paused_at, paused_by, reason, probe_at)
VALUES ('sample', 'orders.placed', 'COMMIT', statement_timestamp(), 'breaker', 'sample',
    (statement_timestamp() + :param_1))
ON CONFLICT DO NOTHING
RETURNING shield_pause.event_type;

-- waiting
SELECT count(*) AS count_1
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.settled_at IS NULL AND shield_inbox.event_type =
    'orders.placed' AND shield_inbox.tx_kind = 'COMMIT';

-- has_succeeded
SELECT EXISTS (SELECT *
  FROM shield_inbox
  WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.event_type = 'orders.placed' AND
      shield_inbox.tx_kind = 'COMMIT' AND shield_inbox.status = :status_1::VARCHAR AND shield_inbox.settled_at
      > statement_timestamp() + :param_1) AS anon_1;

-- claim_probe
UPDATE shield_pause
SET probe_at=(statement_timestamp() + :param_1), probes=(shield_pause.probes + 1),
    probe_token=:probe_token::UUID
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_at <= statement_timestamp()
RETURNING shield_pause.probes;

-- settle_probe
UPDATE shield_pause
SET reason='sample', probe_at=(statement_timestamp() + :param_1), probe_token=NULL
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_token = :probe_token_1::UUID;

-- close
DELETE FROM shield_pause
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_token = :probe_token_1::UUID;

-- pause
INSERT INTO shield_pause (consumer_group, event_type, tx_kind, paused_at, paused_by, reason)
VALUES ('sample', 'sample', '*', statement_timestamp(), 'sample', 'sample')
ON CONFLICT (consumer_group, event_type, tx_kind) DO UPDATE
SET paused_at = statement_timestamp(), paused_by = 'sample', reason = 'sample';

-- resume
DELETE FROM shield_pause
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'sample'
RETURNING shield_pause.event_type, shield_pause.tx_kind, shield_pause.paused_by, shield_pause.reason;
