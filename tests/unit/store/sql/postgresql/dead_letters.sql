-- outbox_letters
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic, '' AS
    payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind, shield_outbox.operation,
    shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers, shield_outbox.causation_id,
    shield_outbox.causation_source, shield_outbox.traceparent, shield_outbox.dataschema, NULL AS
    consumer_group, shield_outbox.status, shield_outbox.attempts, timezone('UTC', shield_outbox.settled_at) AS
    settled_at, shield_outbox.last_error, shield_outbox.unconfirmed
FROM shield_outbox
WHERE shield_outbox.settled_at IS NOT NULL AND shield_outbox.last_error IS NOT NULL AND shield_outbox.status =
    'UNRESOLVED' AND shield_outbox.event_type = 'sample' AND shield_outbox.tx_kind = 'COMMIT' AND
    shield_outbox.key = 'sample' AND shield_outbox.biz_key = 'sample' AND strpos(shield_outbox.last_error,
    'sample') > 0 AND shield_outbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE AND
    shield_outbox.topic = 'sample'
ORDER BY shield_outbox.settled_at DESC
LIMIT 100;

-- outbox_letters (oldest)
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic, '' AS
    payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind, shield_outbox.operation,
    shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers, shield_outbox.causation_id,
    shield_outbox.causation_source, shield_outbox.traceparent, shield_outbox.dataschema, NULL AS
    consumer_group, shield_outbox.status, shield_outbox.attempts, timezone('UTC', shield_outbox.settled_at) AS
    settled_at, shield_outbox.last_error, shield_outbox.unconfirmed
FROM shield_outbox
WHERE shield_outbox.settled_at IS NOT NULL AND shield_outbox.last_error IS NOT NULL AND shield_outbox.status =
    'UNRESOLVED' AND shield_outbox.event_type = 'sample' AND shield_outbox.tx_kind = 'COMMIT' AND
    shield_outbox.key = 'sample' AND shield_outbox.biz_key = 'sample' AND strpos(shield_outbox.last_error,
    'sample') > 0 AND shield_outbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE AND
    shield_outbox.topic = 'sample'
ORDER BY shield_outbox.settled_at
LIMIT 100;

-- inbox_letters
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic, '' AS payload,
    shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key,
    shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id, shield_inbox.causation_source,
    shield_inbox.traceparent, shield_inbox.dataschema, shield_inbox.consumer_group, shield_inbox.status,
    shield_inbox.attempts, timezone('UTC', shield_inbox.settled_at) AS settled_at, shield_inbox.last_error,
    False AS unconfirmed
FROM shield_inbox
WHERE shield_inbox.settled_at IS NOT NULL AND shield_inbox.last_error IS NOT NULL AND (shield_inbox.tx_kind =
    'ROLLBACK' OR shield_inbox.awaits_operator) AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.status = 'DEAD' AND shield_inbox.event_type = 'sample' AND shield_inbox.tx_kind = 'COMMIT'
    AND shield_inbox.key = 'sample' AND shield_inbox.biz_key = 'sample' AND strpos(shield_inbox.last_error,
    'sample') > 0 AND shield_inbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE AND
    shield_inbox.topic = 'sample'
ORDER BY shield_inbox.settled_at DESC
LIMIT 100;

-- inbox_letters (oldest)
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic, '' AS payload,
    shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key,
    shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id, shield_inbox.causation_source,
    shield_inbox.traceparent, shield_inbox.dataschema, shield_inbox.consumer_group, shield_inbox.status,
    shield_inbox.attempts, timezone('UTC', shield_inbox.settled_at) AS settled_at, shield_inbox.last_error,
    False AS unconfirmed
FROM shield_inbox
WHERE shield_inbox.settled_at IS NOT NULL AND shield_inbox.last_error IS NOT NULL AND (shield_inbox.tx_kind =
    'ROLLBACK' OR shield_inbox.awaits_operator) AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.status = 'DEAD' AND shield_inbox.event_type = 'sample' AND shield_inbox.tx_kind = 'COMMIT'
    AND shield_inbox.key = 'sample' AND shield_inbox.biz_key = 'sample' AND strpos(shield_inbox.last_error,
    'sample') > 0 AND shield_inbox.settled_at >= :settled_at_1::TIMESTAMP WITH TIME ZONE AND
    shield_inbox.topic = 'sample'
ORDER BY shield_inbox.settled_at
LIMIT 100;

-- given_up_events
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic, '' AS payload,
    shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key,
    shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id, shield_inbox.causation_source,
    shield_inbox.traceparent, shield_inbox.dataschema, shield_inbox.consumer_group, shield_inbox.status,
    shield_inbox.attempts, timezone('UTC', shield_inbox.settled_at) AS settled_at, shield_inbox.last_error,
    False AS unconfirmed
FROM shield_inbox
WHERE shield_inbox.settled_at IS NOT NULL AND shield_inbox.last_error IS NOT NULL AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.consumer_group = 'sample' AND shield_inbox.event_id = ANY (:param_3::UUID[]) AND
    shield_inbox.status = 'MAX_RECONSUMED' AND shield_inbox.event_type = 'sample' AND shield_inbox.tx_kind =
    'COMMIT' AND shield_inbox.key = 'sample' AND shield_inbox.biz_key = 'sample' AND
    strpos(shield_inbox.last_error, 'sample') > 0 AND shield_inbox.settled_at >= :settled_at_1::TIMESTAMP WITH
    TIME ZONE AND shield_inbox.topic = 'sample'
ORDER BY shield_inbox.settled_at DESC
LIMIT 100;

-- written
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, NULL AS consumer_group, shield_outbox.status, shield_outbox.attempts,
    timezone('UTC', shield_outbox.settled_at) AS settled_at, shield_outbox.last_error,
    shield_outbox.unconfirmed
FROM shield_outbox
WHERE shield_outbox.event_id = :event_id_1::UUID;

-- received
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic,
    shield_inbox.payload, shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation,
    shield_inbox.key, shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id,
    shield_inbox.causation_source, shield_inbox.traceparent, shield_inbox.dataschema,
    shield_inbox.consumer_group, shield_inbox.status, shield_inbox.attempts, timezone('UTC',
    shield_inbox.settled_at) AS settled_at, shield_inbox.last_error, False AS unconfirmed
FROM shield_inbox
WHERE shield_inbox.event_id = :event_id_1::UUID
ORDER BY shield_inbox.consumer_group;

-- outbox_status
SELECT shield_outbox.status
FROM shield_outbox
WHERE shield_outbox.event_id = :event_id_1::UUID;

-- inbox_status
SELECT shield_inbox.status
FROM shield_inbox
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample';

-- parked_records
SELECT shield_parked.consumer_group, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset, shield_parked.reason, shield_parked.record_key, shield_parked.record_headers,
    timezone('UTC', shield_parked.parked_at) AS parked_at, shield_parked.digest, timezone('UTC',
    shield_parked.discarded_at) AS discarded_at, shield_parked.record_value
FROM shield_parked
WHERE shield_parked.discarded_at IS NULL AND strpos(shield_parked.record_headers, '["ce_type", "c2FtcGxl"]') >
    0 AND strpos(shield_parked.record_headers, '["ce_txkind", "Q09NTUlU"]') > 0 AND
    strpos(shield_parked.record_headers, '["ce_bizkey", "c2FtcGxl"]') > 0 AND shield_parked.record_key =
    :record_key_1 AND strpos(shield_parked.reason, 'sample') > 0 AND shield_parked.parked_at >=
    :parked_at_1::TIMESTAMP WITH TIME ZONE AND shield_parked.consumer_group = 'sample' AND shield_parked.topic
    IN ('orders')
ORDER BY shield_parked.parked_at DESC, shield_parked.topic DESC, shield_parked.record_partition DESC,
    shield_parked.record_offset DESC
LIMIT 100;

-- parked_records (oldest)
SELECT shield_parked.consumer_group, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset, shield_parked.reason, shield_parked.record_key, shield_parked.record_headers,
    timezone('UTC', shield_parked.parked_at) AS parked_at, shield_parked.digest, timezone('UTC',
    shield_parked.discarded_at) AS discarded_at, shield_parked.record_value
FROM shield_parked
WHERE shield_parked.discarded_at IS NULL AND strpos(shield_parked.record_headers, '["ce_type", "c2FtcGxl"]') >
    0 AND strpos(shield_parked.record_headers, '["ce_txkind", "Q09NTUlU"]') > 0 AND
    strpos(shield_parked.record_headers, '["ce_bizkey", "c2FtcGxl"]') > 0 AND shield_parked.record_key =
    :record_key_1 AND strpos(shield_parked.reason, 'sample') > 0 AND shield_parked.parked_at >=
    :parked_at_1::TIMESTAMP WITH TIME ZONE AND shield_parked.consumer_group = 'sample' AND shield_parked.topic
    IN ('orders')
ORDER BY shield_parked.parked_at, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset
LIMIT 100;

-- parked_from
SELECT shield_parked.consumer_group, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset, shield_parked.reason, shield_parked.record_key, shield_parked.record_value,
    shield_parked.record_headers, timezone('UTC', shield_parked.parked_at) AS parked_at, shield_parked.digest,
    timezone('UTC', shield_parked.discarded_at) AS discarded_at
FROM shield_parked
WHERE shield_parked.consumer_group = 'sample' AND shield_parked.topic = 'sample' AND
    shield_parked.record_partition = 100 AND shield_parked.record_offset = 100 AND (shield_parked.digest LIKE
    'sample' || '%' ESCAPE '/')
ORDER BY shield_parked.parked_at DESC;
