-- open_keys
SELECT DISTINCT shield_inbox.topic, shield_inbox."key"
FROM shield_inbox
WHERE shield_inbox.consumer_group = :of_group AND shield_inbox.settled_at IS NULL AND shield_inbox.topic IN
    (:topics) AND shield_inbox."key" IN (:keys);

-- receive
INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind, operation, payload,
    event_time, status, attempts, due_at, lease_token, lease_until, received_at, together)
VALUES (:event_id, :of_group, :source, :topic, :event_type, :tx_kind, :operation, :payload, :event_time, CASE
    WHEN (:lease_seconds IS NOT NULL) THEN 'PROCESSING' ELSE 'INIT' END, CASE WHEN (:lease_seconds IS NOT
    NULL) THEN 1 ELSE 0 END, strftime('%Y-%m-%d %H:%M:%f000', 'now'), CASE WHEN (:lease_seconds IS NOT NULL)
    THEN :with_token END, CASE WHEN (:lease_seconds IS NOT NULL) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now',
    printf('%+.3f seconds', CAST(:lease_seconds AS FLOAT))) END, strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    (:lease_seconds IS NOT NULL))
ON CONFLICT DO NOTHING
RETURNING event_id, source;

-- known
SELECT shield_inbox.event_id, shield_inbox.source
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.event_id IN (:event_id_1);

-- release_blocked
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), lease_token=NULL, lease_until=NULL, together=0
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING') AND (EXISTS (SELECT *
    FROM shield_inbox AS earlier
    WHERE earlier.consumer_group = shield_inbox.consumer_group AND earlier.settled_at IS NULL AND
        earlier.topic = shield_inbox.topic AND earlier."key" = shield_inbox."key" AND earlier.seq <
        shield_inbox.seq AND (earlier.lease_token IS NULL OR earlier.lease_token != :with_token)))
RETURNING event_id, source;

-- park
INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, reason, record_headers,
    parked_at)
VALUES (:consumer_group, :topic, :record_partition, :record_offset, :reason, :record_headers,
    strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT DO NOTHING
RETURNING digest;
