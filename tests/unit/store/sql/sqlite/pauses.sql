-- pauses
SELECT shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind, shield_pause.paused_at AS
    paused_at, shield_pause.paused_by, shield_pause.reason, shield_pause.probe_at AS probe_at,
    shield_pause.probes, coalesce(shield_pause.probe_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now'), False) AS
    is_due
FROM shield_pause
WHERE shield_pause.consumer_group = :of_group
ORDER BY shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind;

-- every_pause
SELECT shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind, shield_pause.paused_at AS
    paused_at, shield_pause.paused_by, shield_pause.reason, shield_pause.probe_at AS probe_at,
    shield_pause.probes, coalesce(shield_pause.probe_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now'), False) AS
    is_due
FROM shield_pause
ORDER BY shield_pause.consumer_group, shield_pause.event_type, shield_pause.tx_kind;

-- trip
INSERT INTO shield_pause (consumer_group, event_type, tx_kind, paused_at, paused_by, reason, probe_at)
VALUES ('sample', 'orders.placed', 'COMMIT', strftime('%Y-%m-%d %H:%M:%f000', 'now'), 'breaker', 'sample',
    strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))))
ON CONFLICT DO NOTHING
RETURNING event_type;

-- waiting
SELECT count(*) AS count_1
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.settled_at IS NULL AND shield_inbox.event_type =
    'orders.placed' AND shield_inbox.tx_kind = 'COMMIT';

-- has_succeeded
SELECT EXISTS (SELECT *
  FROM shield_inbox
  WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.event_type = 'orders.placed' AND
      shield_inbox.tx_kind = 'COMMIT' AND shield_inbox.status = :status_1 AND shield_inbox.settled_at >
      strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))) AS anon_1;

-- claim_probe
UPDATE shield_pause
SET probe_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))),
    probes=(shield_pause.probes + 1), probe_token=:probe_token
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
RETURNING probes;

-- settle_probe
UPDATE shield_pause
SET reason='sample', probe_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS
    FLOAT))), probe_token=NULL
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_token = :probe_token_1;

-- close
DELETE FROM shield_pause
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'orders.placed' AND
    shield_pause.tx_kind = 'COMMIT' AND shield_pause.probe_token = :probe_token_1;

-- pause
INSERT INTO shield_pause (consumer_group, event_type, tx_kind, paused_at, paused_by, reason)
VALUES ('sample', 'sample', '*', strftime('%Y-%m-%d %H:%M:%f000', 'now'), 'sample', 'sample')
ON CONFLICT (consumer_group, event_type, tx_kind) DO UPDATE
SET paused_at = strftime('%Y-%m-%d %H:%M:%f000', 'now'), paused_by = 'sample', reason = 'sample';

-- resume
DELETE FROM shield_pause
WHERE shield_pause.consumer_group = 'sample' AND shield_pause.event_type = 'sample'
RETURNING event_type, tx_kind, paused_by, reason;
