-- open_keys
SELECT DISTINCT shield_inbox.topic, shield_inbox.key
FROM shield_inbox
WHERE shield_inbox.consumer_group = :of_group::VARCHAR AND shield_inbox.settled_at IS NULL AND
    shield_inbox.topic = ANY (:topics::TEXT[]) AND shield_inbox.key = ANY (:keys::TEXT[]);

-- receive
INSERT INTO shield_inbox (event_id, event_type, source, topic, payload, tx_kind, operation, key, biz_key,
    headers, causation_id, causation_source, traceparent, dataschema, event_time, record_partition,
    record_offset, consumer_group, status, attempts, together, lease_token, lease_until, due_at, received_at)
    SELECT anon_1.event_id, anon_1.event_type, anon_1.source, anon_1.topic, anon_1.payload, anon_1.tx_kind,
    anon_1.operation, anon_1.key, anon_1.biz_key, anon_1.headers, anon_1.causation_id,
    anon_1.causation_source, anon_1.traceparent, anon_1.dataschema, anon_1.event_time,
    anon_1.record_partition, anon_1.record_offset, :of_group::VARCHAR AS anon_2, CASE WHEN
    (anon_1.lease_seconds IS NOT NULL) THEN 'PROCESSING' ELSE 'INIT' END AS anon_3, CASE WHEN
    (anon_1.lease_seconds IS NOT NULL) THEN 1 ELSE 0 END AS anon_4, anon_1.lease_seconds IS NOT NULL AS
    anon_5, CASE WHEN (anon_1.lease_seconds IS NOT NULL) THEN :with_token::UUID END AS anon_6, CASE WHEN
    (anon_1.lease_seconds IS NOT NULL) THEN statement_timestamp() + CAST(anon_1.lease_seconds AS FLOAT) *
    interval '1 second' END AS anon_7, statement_timestamp() AS statement_timestamp_1, statement_timestamp()
    AS statement_timestamp_2
FROM unnest(:all_event_id::UUID[], :all_event_type::TEXT[], :all_source::TEXT[], :all_topic::TEXT[],
    :all_payload::TEXT[], :all_tx_kind::VARCHAR(8)[], :all_operation::VARCHAR(6)[], :all_key::TEXT[],
    :all_biz_key::TEXT[], :all_headers::TEXT[], :all_causation_id::UUID[], :all_causation_source::TEXT[],
    :all_traceparent::TEXT[], :all_dataschema::TEXT[], :all_event_time::TIMESTAMP WITH TIME ZONE[],
    :all_record_partition::INTEGER[], :all_record_offset::BIGINT[], :all_lease_seconds::FLOAT[]) AS
    anon_1(event_id, event_type, source, topic, payload, tx_kind, operation, key, biz_key, headers,
    causation_id, causation_source, traceparent, dataschema, event_time, record_partition, record_offset,
    lease_seconds)
ON CONFLICT DO NOTHING
RETURNING shield_inbox.event_id, shield_inbox.source;

-- known
SELECT shield_inbox.event_id, shield_inbox.source
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.event_id = ANY (:param_1::UUID[]);

-- release_blocked
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), lease_token=NULL, lease_until=NULL,
    together=false
WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
    AND shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') AND (EXISTS
    (SELECT *
    FROM shield_inbox AS earlier
    WHERE earlier.consumer_group = shield_inbox.consumer_group AND earlier.settled_at IS NULL AND
        earlier.topic = shield_inbox.topic AND earlier.key = shield_inbox.key AND earlier.seq <
        shield_inbox.seq AND (earlier.lease_token IS NULL OR earlier.lease_token != :with_token::UUID)))
RETURNING shield_inbox.event_id, shield_inbox.source;

-- park
INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, reason, record_headers,
    parked_at)
VALUES (:consumer_group::VARCHAR, :topic::VARCHAR, :record_partition::INTEGER, :record_offset::BIGINT,
    :reason::VARCHAR, :record_headers::VARCHAR, statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING shield_parked.digest;
