-- outbox_rows
SELECT shield_outbox.event_id, shield_outbox.status, timezone('UTC', CASE WHEN (shield_outbox.settled_at <
    timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN
    (shield_outbox.settled_at > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31
    00:00:00+00' ELSE shield_outbox.settled_at END) AS settled_at, shield_outbox.attempts,
    shield_outbox.lease_token IS NOT NULL AS leased, shield_outbox.lease_until IS NULL OR
    shield_outbox.lease_until <= statement_timestamp() AS lease_ran_out
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:param_1::UUID[])
ORDER BY shield_outbox.event_id
FOR UPDATE SKIP LOCKED;

-- events_to_hand_over
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, timezone('UTC', CASE WHEN (shield_outbox.created_at < timestamptz '0001-01-02
    00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00' WHEN (shield_outbox.created_at > timestamptz
    '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31 00:00:00+00' ELSE shield_outbox.created_at END) AS
    created_at, shield_outbox.tx_kind, shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key,
    shield_outbox.headers, shield_outbox.causation_id, shield_outbox.causation_source,
    shield_outbox.traceparent, shield_outbox.dataschema, shield_outbox.status, timezone('UTC', CASE WHEN
    (shield_outbox.settled_at < timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02
    00:00:00+00' WHEN (shield_outbox.settled_at > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz
    '9998-12-31 00:00:00+00' ELSE shield_outbox.settled_at END) AS settled_at, shield_outbox.attempts,
    shield_outbox.lease_token IS NOT NULL AS leased, shield_outbox.lease_until IS NULL OR
    shield_outbox.lease_until <= statement_timestamp() AS lease_ran_out
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]);

-- inbox_rows
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic, 'null' AS
    payload, timezone('UTC', CASE WHEN (shield_inbox.event_time < timestamptz '0001-01-02 00:00:00+00') THEN
    timestamptz '0001-01-02 00:00:00+00' WHEN (shield_inbox.event_time > timestamptz '9998-12-31 00:00:00+00')
    THEN timestamptz '9998-12-31 00:00:00+00' ELSE shield_inbox.event_time END) AS event_time,
    shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key, shield_inbox.biz_key,
    shield_inbox.headers, shield_inbox.causation_id, shield_inbox.causation_source, shield_inbox.traceparent,
    shield_inbox.dataschema, shield_inbox.consumer_group, shield_inbox.status, timezone('UTC', CASE WHEN
    (shield_inbox.settled_at < timestamptz '0001-01-02 00:00:00+00') THEN timestamptz '0001-01-02 00:00:00+00'
    WHEN (shield_inbox.settled_at > timestamptz '9998-12-31 00:00:00+00') THEN timestamptz '9998-12-31
    00:00:00+00' ELSE shield_inbox.settled_at END) AS settled_at, shield_inbox.attempts,
    shield_inbox.lease_token IS NOT NULL AS leased, shield_inbox.lease_until IS NULL OR
    shield_inbox.lease_until <= statement_timestamp() AS lease_ran_out, shield_inbox.last_error
FROM shield_inbox
WHERE (shield_inbox.event_id, shield_inbox.consumer_group, shield_inbox.source) IN (:param_2)
ORDER BY shield_inbox.event_id, shield_inbox.consumer_group
FOR UPDATE SKIP LOCKED;

-- received
SELECT shield_inbox.event_id, shield_inbox.consumer_group, shield_inbox.source
FROM shield_inbox
WHERE shield_inbox.consumer_group IN ('stock') AND shield_inbox.event_id = ANY (:param_1::UUID[]);

-- taken_back
SELECT shield_outbox.causation_id, shield_outbox.causation_source
FROM shield_outbox
WHERE shield_outbox.tx_kind = 'ROLLBACK' AND shield_outbox.causation_id = ANY (:param_2::UUID[]);

-- not_discarded_rollbacks
SELECT shield_outbox.causation_id, shield_outbox.causation_source
FROM shield_outbox
WHERE shield_outbox.tx_kind = 'ROLLBACK' AND shield_outbox.causation_id = ANY (:param_2::UUID[]) AND
    shield_outbox.status != 'DISCARDED';

-- received_rollbacks
SELECT shield_inbox.causation_id, shield_inbox.causation_source
FROM shield_inbox
WHERE shield_inbox.tx_kind = 'ROLLBACK' AND shield_inbox.causation_id = ANY (:param_2::UUID[]) AND
    shield_inbox.status != 'DISCARDED';

-- count_shards
SELECT count(*) AS count_1
FROM shield_shard;

-- publish_again
UPDATE shield_outbox
SET status='INIT', attempts=0, waiting=False, holds_key=False, due_at=statement_timestamp(), unconfirmed=True,
    settled_at=NULL
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.status IN ('PROCESSED');

-- release_events
UPDATE shield_outbox
SET status='INIT', unconfirmed=True, lease_token=NULL, lease_until=NULL
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.status IN ('PROCESSING') AND
    (shield_outbox.lease_until IS NULL OR shield_outbox.lease_until <= statement_timestamp());

-- release_attempts
UPDATE shield_inbox
SET due_at=statement_timestamp(), lease_token=NULL, lease_until=NULL
WHERE (shield_inbox.event_id, shield_inbox.consumer_group, shield_inbox.source) IN (:param_1) AND
    shield_inbox.status IN ('PROCESSING') AND (shield_inbox.lease_until IS NULL OR shield_inbox.lease_until <=
    statement_timestamp());
