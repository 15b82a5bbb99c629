-- positions
SELECT shield_outbox.event_id, shield_outbox.tx_kind, shield_outbox.event_type, shield_outbox.topic,
    shield_outbox."key", shield_outbox.seq, shield_outbox.created_at AS created_at, CASE WHEN
    (shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0) THEN shield_outbox.due_at END AS
    delayed_until, shield_outbox.unconfirmed, length(CAST(shield_outbox.payload AS BLOB)) +
    coalesce(length(CAST(shield_outbox.headers AS BLOB)), 0) AS size
FROM shield_outbox
WHERE shield_outbox.event_id IN (:event_id_1);

-- siblings
SELECT shield_outbox.event_id, shield_outbox.topic, shield_outbox."key", shield_outbox.event_type,
    shield_outbox.status, shield_outbox.unconfirmed, shield_outbox.settled_at AS settled_at,
    shield_outbox.seq, shield_outbox.created_at AS created_at, CASE WHEN (shield_outbox.waiting = 1 AND
    shield_outbox.holds_key = 0) THEN shield_outbox.due_at END AS delayed_until
FROM shield_outbox
WHERE shield_outbox.source = 'sample' AND shield_outbox.tx_kind = 'COMMIT' AND shield_outbox.status IN
    ('INIT', 'PROCESSING', 'PROCESSED') AND shield_outbox.topic IN ('orders') AND shield_outbox."key" IN
    ('k1') AND (shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0 AND shield_outbox.due_at >=
    :due_at_1 OR NOT (shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0) AND shield_outbox.seq > 7 OR
    NOT (shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0) AND shield_outbox.created_at >
    :created_at_1) AND (shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 0 AND
    shield_outbox.holds_key = 0 OR shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 1 OR
    shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1 OR shield_outbox.settled_at >=
    :settled_at_1);

-- receivers
SELECT DISTINCT shield_inbox.consumer_group, shield_inbox.event_type
FROM shield_inbox
WHERE shield_inbox.source = 'sample' AND shield_inbox.tx_kind = 'COMMIT';

-- latest_received
SELECT shield_inbox.topic, shield_inbox."key", max(shield_inbox.event_time) AS written_at
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic IN ('orders') AND shield_inbox."key" IN ('k1')
GROUP BY shield_inbox.topic, shield_inbox."key";

-- received_after
SELECT shield_inbox.event_id, shield_inbox.topic, shield_inbox."key", shield_inbox.event_time AS event_time
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic IN ('orders') AND shield_inbox."key" IN ('k1') AND
    (shield_inbox.settled_at IS NULL OR shield_inbox.settled_at >= :settled_at_1) AND shield_inbox.event_time
    >= :event_time_1;

-- count_received
SELECT shield_inbox.topic, shield_inbox."key", count(*) AS events
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic IN ('orders') AND shield_inbox."key" IN ('k1') AND
    (shield_inbox.settled_at IS NULL OR shield_inbox.settled_at >= :settled_at_1)
GROUP BY shield_inbox.topic, shield_inbox."key";

-- business_keys
SELECT shield_inbox.event_type, shield_inbox.biz_key
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.biz_key IS NOT NULL AND (shield_inbox.event_type, shield_inbox.biz_key) IN
    (:param_2);
