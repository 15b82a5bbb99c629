-- positions
SELECT shield_outbox.event_id, shield_outbox.tx_kind, shield_outbox.event_type, shield_outbox.topic,
    shield_outbox.key, shield_outbox.seq, timezone('UTC', CASE WHEN (shield_outbox.created_at < timestamptz
    '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.created_at >
    timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31 00:00:00+00' ELSE
    shield_outbox.created_at END) AS created_at, timezone('UTC', CASE WHEN (shield_outbox.waiting AND NOT
    shield_outbox.holds_key) THEN CASE WHEN (shield_outbox.due_at < timestamptz '0001-01-02 00:00:00+00') THEN
    timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.due_at > timestamptz '9998-12-31 00:00:00+00')
    THEN timestamptz '9998-12-31 00:00:00+00' ELSE shield_outbox.due_at END END) AS delayed_until,
    shield_outbox.unconfirmed, octet_length(shield_outbox.payload) +
    coalesce(octet_length(shield_outbox.headers), 0) AS size
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]);

-- siblings
SELECT shield_outbox.event_id, shield_outbox.topic, shield_outbox.key, shield_outbox.event_type,
    shield_outbox.status, shield_outbox.unconfirmed, timezone('UTC', CASE WHEN (shield_outbox.settled_at <
    timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN
    (shield_outbox.settled_at > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31
    00:00:00+00' ELSE shield_outbox.settled_at END) AS settled_at, shield_outbox.seq, timezone('UTC', CASE
    WHEN (shield_outbox.created_at < timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02
    00:00:00+00' WHEN (shield_outbox.created_at > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz
    '9998-12-31 00:00:00+00' ELSE shield_outbox.created_at END) AS created_at, timezone('UTC', CASE WHEN
    (shield_outbox.waiting AND NOT shield_outbox.holds_key) THEN CASE WHEN (shield_outbox.due_at < timestamptz
    '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.due_at >
    timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31 00:00:00+00' ELSE shield_outbox.due_at
    END END) AS delayed_until
FROM shield_outbox
WHERE shield_outbox.source = 'sample' AND shield_outbox.tx_kind = 'COMMIT' AND shield_outbox.status IN
    ('INIT', 'PROCESSING', 'PROCESSED') AND shield_outbox.topic = ANY ('orders'[]) AND shield_outbox.key = ANY
    ('k1'[]) AND (shield_outbox.waiting AND NOT shield_outbox.holds_key AND CASE WHEN (shield_outbox.due_at <
    timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.due_at
    > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31 00:00:00+00' ELSE
    shield_outbox.due_at END >= :param_3::TIMESTAMP WITH TIME ZONE OR NOT (shield_outbox.waiting AND NOT
    shield_outbox.holds_key) AND shield_outbox.seq > 7 OR NOT (shield_outbox.waiting AND NOT
    shield_outbox.holds_key) AND CASE WHEN (shield_outbox.created_at < timestamptz '0001-01-02 00:00:00+00')
    THEN timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.created_at > timestamptz '9998-12-31
    00:00:00+00') THEN timestamptz '9998-12-31 00:00:00+00' ELSE shield_outbox.created_at END >
    :param_4::TIMESTAMP WITH TIME ZONE) AND (shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting
    AND NOT shield_outbox.holds_key OR shield_outbox.settled_at IS NULL AND shield_outbox.waiting OR
    shield_outbox.settled_at IS NULL AND shield_outbox.holds_key OR shield_outbox.settled_at >=
    :settled_at_1::TIMESTAMP WITH TIME ZONE);

-- receivers
SELECT DISTINCT shield_inbox.consumer_group, shield_inbox.event_type
FROM shield_inbox
WHERE shield_inbox.source = 'sample' AND shield_inbox.tx_kind = 'COMMIT';

-- latest_received
SELECT shield_inbox.topic, shield_inbox.key, timezone('UTC', CASE WHEN (max(shield_inbox.event_time) <
    timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN
    (max(shield_inbox.event_time) > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31
    00:00:00+00' ELSE max(shield_inbox.event_time) END) AS written_at
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic = ANY ('orders'[]) AND shield_inbox.key = ANY ('k1'[])
GROUP BY shield_inbox.topic, shield_inbox.key;

-- received_after
SELECT shield_inbox.event_id, shield_inbox.topic, shield_inbox.key, timezone('UTC', CASE WHEN
    (shield_inbox.event_time < timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00'
    WHEN (shield_inbox.event_time > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31
    00:00:00+00' ELSE shield_inbox.event_time END) AS event_time
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic = ANY ('orders'[]) AND shield_inbox.key = ANY ('k1'[]) AND
    (shield_inbox.settled_at IS NULL OR shield_inbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE)
    AND CASE WHEN (shield_inbox.event_time < timestamptz '0001-01-02 00:00:00+00') THEN timestamptz
    '0001-01-02 00:00:00+00' WHEN (shield_inbox.event_time > timestamptz '9998-12-31 00:00:00+00') THEN
    timestamptz '9998-12-31 00:00:00+00' ELSE shield_inbox.event_time END >= :param_3::TIMESTAMP WITH TIME
    ZONE;

-- count_received
SELECT shield_inbox.topic, shield_inbox.key, count(*) AS events
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.topic = ANY ('orders'[]) AND shield_inbox.key = ANY ('k1'[]) AND
    (shield_inbox.settled_at IS NULL OR shield_inbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE)
GROUP BY shield_inbox.topic, shield_inbox.key;

-- business_keys
SELECT shield_inbox.event_type, shield_inbox.biz_key
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.biz_key IS NOT NULL AND (shield_inbox.event_type, shield_inbox.biz_key) IN
    (:param_2);
