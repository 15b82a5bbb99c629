-- insert
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, payload, status,
    attempts, waiting, holds_key, due_at, unconfirmed, created_at)
VALUES (:event_id::UUID, :shard::SMALLINT, :source::VARCHAR, :topic::VARCHAR, :event_type::VARCHAR,
    :tx_kind::VARCHAR, :operation::VARCHAR, :payload::VARCHAR, 'INIT', 0, :waiting, False,
    coalesce(:at::TIMESTAMP WITH TIME ZONE, statement_timestamp() + CAST(:delay_seconds AS FLOAT) * interval
    '1 second'), False, statement_timestamp());

-- insert_unknown
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, payload, status,
    attempts, waiting, holds_key, due_at, unconfirmed, created_at)
VALUES (:event_id::UUID, :shard::SMALLINT, :source::VARCHAR, :topic::VARCHAR, :event_type::VARCHAR,
    :tx_kind::VARCHAR, :operation::VARCHAR, :payload::VARCHAR, 'INIT', 0, :waiting, False,
    coalesce(:at::TIMESTAMP WITH TIME ZONE, statement_timestamp() + CAST(:delay_seconds AS FLOAT) * interval
    '1 second'), False, statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING shield_outbox.event_id;

-- processed
UPDATE shield_outbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=statement_timestamp(), last_error=NULL
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID AND
    shield_outbox.status IN ('PROCESSING');

-- processed_at_addresses
UPDATE shield_outbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=statement_timestamp(), last_error=NULL
WHERE shield_outbox.ctid = ANY (:at_addresses::TID[]) AND shield_outbox.lease_token = :with_token::UUID AND
    shield_outbox.status IN ('PROCESSING');

-- release
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), unconfirmed=True, lease_token=NULL,
    lease_until=NULL, last_error='sample'
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID AND
    shield_outbox.status IN ('PROCESSING');

-- unclaim
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), lease_token=NULL, lease_until=NULL
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID AND
    shield_outbox.status IN ('PROCESSING');

-- withdraw
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), lease_token=NULL, lease_until=NULL
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status IN
    ('PROCESSING') AND shield_outbox.lease_until > statement_timestamp();

-- leased
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > statement_timestamp();

-- lock_leased
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > statement_timestamp()
FOR UPDATE SKIP LOCKED;

-- end_leases
UPDATE shield_outbox
SET lease_until=(statement_timestamp() + :param_1)
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > statement_timestamp();

-- retry
UPDATE shield_outbox
SET status='INIT', waiting=True, holds_key=(NOT shield_outbox.waiting OR shield_outbox.holds_key),
    due_at=(statement_timestamp() + :param_1), lease_token=NULL, lease_until=NULL, last_error='sample'
WHERE shield_outbox.event_id = ANY (:param_2::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID AND
    shield_outbox.status IN ('PROCESSING');

-- lock_row
WITH held AS
(SELECT shield_outbox.event_id AS event_id
  FROM shield_outbox
  WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID
      AND shield_outbox.status IN ('PROCESSING') FOR NO KEY UPDATE)
SELECT count(*) AS count_1, timezone('UTC', statement_timestamp()) AS statement_timestamp_1,
    CAST(pg_current_xact_id() AS TEXT) AS pg_current_xact_id_1
FROM held;

-- failed
UPDATE shield_outbox
SET status='FAILED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at::TIMESTAMP WITH TIME ZONE,
    last_error='sample'
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.lease_token = :lease_token_1::UUID AND
    shield_outbox.status IN ('PROCESSING') AND CAST(pg_current_xact_id_if_assigned() AS TEXT) =
    :in_transaction::VARCHAR
RETURNING
CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
  SELECT FROM pg_catalog.pg_class
  WHERE relnamespace = pg_my_temp_schema()
  AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
  ) END;

-- replay
UPDATE shield_outbox
SET status='INIT', attempts=0, waiting=False, holds_key=False, due_at=statement_timestamp(), settled_at=NULL
WHERE shield_outbox.event_id = :event_id_1::UUID AND shield_outbox.status = 'FAILED'
RETURNING shield_outbox.event_id;
