-- insert_entries
INSERT INTO shield_trace (event_id, consumer_group, attempt, outcome, at, waited, took, record_partition,
    record_offset, reason) SELECT anon_1.event_id, anon_1.consumer_group, anon_1.attempt, anon_1.outcome,
    anon_1.at, anon_1.waited, anon_1.took, anon_1.record_partition, anon_1.record_offset, anon_1.reason
FROM unnest(:all_event_id::UUID[], :all_consumer_group::TEXT[], :all_attempt::INTEGER[],
    :all_outcome::VARCHAR(16)[], :all_at::TIMESTAMP WITH TIME ZONE[], :all_waited::FLOAT[],
    :all_took::FLOAT[], :all_record_partition::INTEGER[], :all_record_offset::BIGINT[], :all_reason::TEXT[])
    AS anon_1(event_id, consumer_group, attempt, outcome, at, waited, took, record_partition, record_offset,
    reason)
ON CONFLICT DO NOTHING;

-- written
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.tx_kind, shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.status, shield_outbox.attempts, timezone('UTC', shield_outbox.due_at) AS due_at,
    timezone('UTC', shield_outbox.lease_until) AS lease_until, timezone('UTC', shield_outbox.settled_at) AS
    settled_at, shield_outbox.last_error, timezone('UTC', shield_outbox.created_at) AS created_at,
    shield_outbox.unconfirmed
FROM shield_outbox
WHERE shield_outbox.event_id = :event_id_1::UUID;

-- open_written
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.tx_kind, shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.status, shield_outbox.attempts, timezone('UTC', shield_outbox.due_at) AS due_at,
    timezone('UTC', shield_outbox.lease_until) AS lease_until, timezone('UTC', shield_outbox.settled_at) AS
    settled_at, shield_outbox.last_error, timezone('UTC', shield_outbox.created_at) AS created_at,
    shield_outbox.unconfirmed
FROM shield_outbox
WHERE shield_outbox.settled_at IS NULL
ORDER BY shield_outbox.seq;

-- received
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic,
    shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key, shield_inbox.biz_key,
    shield_inbox.causation_id, shield_inbox.causation_source, shield_inbox.traceparent, shield_inbox.status,
    shield_inbox.attempts, timezone('UTC', shield_inbox.due_at) AS due_at, timezone('UTC',
    shield_inbox.lease_until) AS lease_until, timezone('UTC', shield_inbox.settled_at) AS settled_at,
    shield_inbox.last_error, shield_inbox.consumer_group, timezone('UTC', shield_inbox.received_at) AS
    received_at, shield_inbox.record_partition, shield_inbox.record_offset, shield_inbox.compensated_id
FROM shield_inbox
WHERE shield_inbox.event_id = :event_id_1::UUID
ORDER BY shield_inbox.received_at, shield_inbox.consumer_group;

-- open_received
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic,
    shield_inbox.tx_kind, shield_inbox.operation, shield_inbox.key, shield_inbox.biz_key,
    shield_inbox.causation_id, shield_inbox.causation_source, shield_inbox.traceparent, shield_inbox.status,
    shield_inbox.attempts, timezone('UTC', shield_inbox.due_at) AS due_at, timezone('UTC',
    shield_inbox.lease_until) AS lease_until, timezone('UTC', shield_inbox.settled_at) AS settled_at,
    shield_inbox.last_error, shield_inbox.consumer_group, timezone('UTC', shield_inbox.received_at) AS
    received_at, shield_inbox.record_partition, shield_inbox.record_offset, shield_inbox.compensated_id
FROM shield_inbox
WHERE shield_inbox.settled_at IS NULL
ORDER BY shield_inbox.seq;

-- entries
SELECT shield_trace.id, shield_trace.event_id, shield_trace.consumer_group, shield_trace.attempt,
    shield_trace.outcome, timezone('UTC', shield_trace.at) AS at, shield_trace.waited, shield_trace.took,
    shield_trace.record_partition, shield_trace.record_offset, shield_trace.reason
FROM shield_trace
WHERE shield_trace.event_id = :event_id_1::UUID
ORDER BY shield_trace.id DESC
LIMIT 100;

-- rollbacks
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.causation_id = :causation_id_1::UUID AND shield_outbox.tx_kind = 'ROLLBACK' UNION SELECT
    shield_inbox.event_id
FROM shield_inbox
WHERE shield_inbox.causation_id = :causation_id_2::UUID AND shield_inbox.tx_kind = 'ROLLBACK';

-- follow_ups
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.event_id >= :event_id_1::UUID AND shield_outbox.event_id < :event_id_2::UUID AND
    shield_outbox.causation_id = :causation_id_1::UUID AND shield_outbox.tx_kind = 'COMMIT'
ORDER BY shield_outbox.event_id
LIMIT 100;

-- purge
DELETE FROM shield_trace
WHERE shield_trace.id IN (SELECT shield_trace.id
  FROM shield_trace
  ORDER BY shield_trace.id
  LIMIT 100
  FOR UPDATE SKIP LOCKED) AND (shield_trace.at < statement_timestamp() + :param_2 OR shield_trace.id <=
      (SELECT max(shield_trace.id) AS max_1
    FROM shield_trace) - 100);
