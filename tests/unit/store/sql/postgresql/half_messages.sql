-- insert
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, payload, status,
    attempts, waiting, holds_key, due_at, unconfirmed, created_at, checks, check_at)
VALUES (:event_id::UUID, :shard::SMALLINT, :source::VARCHAR, :topic::VARCHAR, :event_type::VARCHAR,
    :tx_kind::VARCHAR, :operation::VARCHAR, :payload::VARCHAR, 'HALF', 0, True, False, (statement_timestamp()
    + :param_1), False, statement_timestamp(), 0, (statement_timestamp() + CAST(:immunity_seconds AS FLOAT) *
    interval '1 second'));

-- locked
SELECT shield_outbox.event_id, shield_outbox.status
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND (shield_outbox.checks IS NOT NULL OR
    shield_outbox.status = 'HALF')
ORDER BY shield_outbox.event_id
FOR UPDATE;

-- half_types
SELECT shield_outbox.event_id, shield_outbox.event_type
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.status = 'HALF';

-- commit
UPDATE shield_outbox
SET seq=DEFAULT, status='INIT', waiting=(shield_outbox.send_delay IS NOT NULL OR shield_outbox.send_at IS NOT
    NULL), due_at=coalesce(shield_outbox.send_at, statement_timestamp() +
    CAST(coalesce(shield_outbox.send_delay, :coalesce_1) AS FLOAT) * interval '1 second'), lease_token=NULL,
    created_at=statement_timestamp(), settled_at=NULL, last_error=NULL, check_at=NULL
WHERE shield_outbox.event_id = :of_event::UUID AND shield_outbox.status = 'HALF';

-- commit_alone
UPDATE shield_outbox
SET seq=DEFAULT, status='INIT', waiting=(shield_outbox.send_delay IS NOT NULL OR shield_outbox.send_at IS NOT
    NULL), due_at=coalesce(shield_outbox.send_at, statement_timestamp() +
    CAST(coalesce(shield_outbox.send_delay, :coalesce_1) AS FLOAT) * interval '1 second'), lease_token=NULL,
    created_at=statement_timestamp(), settled_at=NULL, last_error=NULL, check_at=NULL
WHERE shield_outbox.event_id = (SELECT half.event_id
  FROM shield_outbox AS half
  WHERE half.event_id = :of_event::UUID AND half.status = 'HALF'
  FOR UPDATE) AND shield_outbox.status = 'HALF';

-- discard
UPDATE shield_outbox
SET biz_key=NULL, status='DISCARDED', lease_token=NULL, settled_at=statement_timestamp(), last_error=NULL,
    check_at=NULL
WHERE shield_outbox.event_id = :of_event::UUID AND shield_outbox.status = 'HALF';

-- used_up
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.checks, shield_outbox.last_error
FROM shield_outbox
WHERE shield_outbox.check_at IS NOT NULL AND shield_outbox.status = 'HALF' AND (shield_outbox.due_at <=
    statement_timestamp() OR shield_outbox.checks >= 15 AND shield_outbox.check_at <= statement_timestamp())
ORDER BY shield_outbox.event_type, shield_outbox.check_at
LIMIT 100
FOR UPDATE SKIP LOCKED;

-- park
UPDATE shield_outbox
SET status='UNRESOLVED', lease_token=NULL, settled_at=statement_timestamp(), last_error=:why::VARCHAR,
    check_at=NULL
WHERE shield_outbox.event_id = :of_event::UUID AND shield_outbox.status = 'HALF';

-- latest
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.status, shield_outbox.checks, timezone('UTC',
    shield_outbox.check_at) AS check_at, shield_outbox.send_delay, timezone('UTC', shield_outbox.send_at) AS
    send_at, timezone('UTC', shield_outbox.settled_at) AS settled_at, shield_outbox.last_error
FROM shield_outbox
WHERE shield_outbox.settled_at IS NOT NULL AND shield_outbox.last_error IS NOT NULL AND shield_outbox.status =
    'UNRESOLVED' AND shield_outbox.topic = 'sample' AND shield_outbox.event_type = 'sample' AND
    shield_outbox.key = 'sample' AND shield_outbox.biz_key = 'sample'
ORDER BY shield_outbox.settled_at DESC
LIMIT 100;

-- one
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.status, shield_outbox.checks, timezone('UTC',
    shield_outbox.check_at) AS check_at, shield_outbox.send_delay, timezone('UTC', shield_outbox.send_at) AS
    send_at, timezone('UTC', shield_outbox.settled_at) AS settled_at, shield_outbox.last_error
FROM shield_outbox
WHERE shield_outbox.event_id = :event_id_1::UUID AND (shield_outbox.checks IS NOT NULL OR shield_outbox.status
    = 'HALF');
