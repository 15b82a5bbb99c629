-- is_compensated
SELECT EXISTS (SELECT *
  FROM shield_inbox
  WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.compensated_id = :compensated_id_1::UUID AND
      (shield_inbox.causation_source = 'sample' OR shield_inbox.causation_source IS NULL)) AS anon_1;

-- own_original
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema
FROM shield_outbox
WHERE shield_outbox.event_id = :event_id_1::UUID AND shield_outbox.tx_kind = 'COMMIT' AND shield_outbox.source
    = 'sample' FOR KEY SHARE;

-- received_original
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic,
    shield_inbox.payload, shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation,
    shield_inbox.key, shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id,
    shield_inbox.causation_source, shield_inbox.traceparent, shield_inbox.dataschema, shield_inbox.status
FROM shield_inbox
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample' AND shield_inbox.tx_kind = 'COMMIT'
FOR UPDATE;

-- received_by_any_group
SELECT shield_inbox.event_id, shield_inbox.event_type, shield_inbox.source, shield_inbox.topic,
    shield_inbox.payload, shield_inbox.event_time AS event_time, shield_inbox.tx_kind, shield_inbox.operation,
    shield_inbox.key, shield_inbox.biz_key, shield_inbox.headers, shield_inbox.causation_id,
    shield_inbox.causation_source, shield_inbox.traceparent, shield_inbox.dataschema
FROM shield_inbox
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.source = 'sample'
LIMIT 1;

-- fence
INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind, operation, payload,
    event_time, status, attempts, due_at, received_at, settled_at)
VALUES (:event_id::UUID, :consumer_group::VARCHAR, :source::VARCHAR, :topic::VARCHAR, :event_type::VARCHAR,
    :tx_kind::VARCHAR, :operation::VARCHAR, :payload::VARCHAR, :event_time::TIMESTAMP WITH TIME ZONE,
    'FENCED', 0, statement_timestamp(), statement_timestamp(), statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING shield_inbox.event_id;

-- fence_parked
UPDATE shield_inbox
SET status='FENCED', settled_at=statement_timestamp(), awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample' AND shield_inbox.status IN ('DEAD') AND shield_inbox.tx_kind = 'COMMIT'
RETURNING shield_inbox.event_id;
