-- start_attempt
UPDATE shield_inbox
SET status='PROCESSING', attempts=CASE WHEN shield_inbox.together THEN shield_inbox.attempts ELSE
    shield_inbox.attempts + 1 END, due_at=CASE WHEN :is_probe THEN statement_timestamp() ELSE
    shield_inbox.due_at END, lease_token=:with_token::UUID, lease_until=(statement_timestamp() +
    CAST(:lease_seconds AS FLOAT) * interval '1 second'), together=:is_probe
WHERE shield_inbox.event_id = :of_event::UUID AND shield_inbox.consumer_group = :of_group::VARCHAR AND
    shield_inbox.source = :of_source::VARCHAR AND shield_inbox.status IN ('INIT', 'PROCESSING') AND
    shield_inbox.event_id IN (SELECT waiting.event_id
  FROM shield_inbox AS waiting
  WHERE waiting.event_id = :of_event::UUID AND waiting.consumer_group = :of_group::VARCHAR AND waiting.source
      = :of_source::VARCHAR AND waiting.settled_at IS NULL AND waiting.due_at <= statement_timestamp() AND
      (waiting.lease_until IS NULL OR waiting.lease_until <= statement_timestamp()) AND NOT ((EXISTS (SELECT *
        FROM shield_inbox AS earlier
        WHERE earlier.consumer_group = waiting.consumer_group AND earlier.settled_at IS NULL AND earlier.topic
            = waiting.topic AND earlier.key = waiting.key AND earlier.seq < waiting.seq AND NOT (EXISTS
            (SELECT *
            FROM shield_inbox AS shield_inbox_1
            WHERE shield_inbox_1.consumer_group = earlier.consumer_group AND shield_inbox_1.settled_at IS NULL
                AND earlier.tx_kind = 'ROLLBACK' AND shield_inbox_1.tx_kind = 'COMMIT' AND
                shield_inbox_1.event_id = earlier.causation_id AND (earlier.causation_source IS NULL OR
                shield_inbox_1.source = earlier.causation_source))))) OR (EXISTS (SELECT *
        FROM shield_inbox AS shield_inbox_2
        WHERE shield_inbox_2.consumer_group = waiting.consumer_group AND shield_inbox_2.settled_at IS NULL AND
            waiting.tx_kind = 'ROLLBACK' AND shield_inbox_2.tx_kind = 'COMMIT' AND shield_inbox_2.event_id =
            waiting.causation_id AND (waiting.causation_source IS NULL OR shield_inbox_2.source =
            waiting.causation_source))))
  FOR UPDATE SKIP LOCKED)
RETURNING shield_inbox.attempts, shield_inbox.record_partition, shield_inbox.record_offset;

-- lock_row
WITH held AS
(SELECT shield_inbox.event_id AS event_id
  FROM shield_inbox
  WHERE shield_inbox.event_id = :of_event::UUID AND shield_inbox.consumer_group = :of_group::VARCHAR AND
      shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') FOR NO KEY
      UPDATE)
SELECT count(*) AS count_1, timezone('UTC', statement_timestamp()) AS statement_timestamp_1,
    CAST(pg_current_xact_id() AS TEXT) AS pg_current_xact_id_1
FROM held;

-- lock_batch
WITH held AS
(SELECT shield_inbox.event_id AS event_id
  FROM shield_inbox
  WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
      AND shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') FOR NO KEY
      UPDATE)
SELECT count(*) AS count_1, timezone('UTC', statement_timestamp()) AS statement_timestamp_1,
    CAST(pg_current_xact_id() AS TEXT) AS pg_current_xact_id_1
FROM held;

-- processed
UPDATE shield_inbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at::TIMESTAMP WITH TIME ZONE,
    last_error=NULL, together=false
WHERE shield_inbox.event_id = :of_event::UUID AND shield_inbox.consumer_group = :of_group::VARCHAR AND
    shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') AND
    CAST(pg_current_xact_id_if_assigned() AS TEXT) = :in_transaction::VARCHAR
RETURNING
CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
  SELECT FROM pg_catalog.pg_class
  WHERE relnamespace = pg_my_temp_schema()
  AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
  ) END;

-- compensated
UPDATE shield_inbox
SET compensated_id=:compensated::UUID, status='PROCESSED', lease_token=NULL, lease_until=NULL,
    settled_at=:locked_at::TIMESTAMP WITH TIME ZONE, last_error=NULL, together=false
WHERE shield_inbox.event_id = :of_event::UUID AND shield_inbox.consumer_group = :of_group::VARCHAR AND
    shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') AND
    CAST(pg_current_xact_id_if_assigned() AS TEXT) = :in_transaction::VARCHAR
RETURNING
CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
  SELECT FROM pg_catalog.pg_class
  WHERE relnamespace = pg_my_temp_schema()
  AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
  ) END;

-- all_processed
UPDATE shield_inbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at::TIMESTAMP WITH TIME ZONE,
    last_error=NULL, together=false
WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
    AND shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') AND
    CAST(pg_current_xact_id_if_assigned() AS TEXT) = :in_transaction::VARCHAR
RETURNING
CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
  SELECT FROM pg_catalog.pg_class
  WHERE relnamespace = pg_my_temp_schema()
  AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
  ) END;

-- all_refused
UPDATE shield_inbox
SET status='MAX_RECONSUMED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at::TIMESTAMP WITH TIME
    ZONE, last_error=jsonb_extract_path_text(:reasons::JSONB, replace(CAST(shield_inbox.event_id AS TEXT),
    '-', '')), together=false
WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
    AND shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING') AND
    CAST(pg_current_xact_id_if_assigned() AS TEXT) = :in_transaction::VARCHAR
RETURNING
CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
  SELECT FROM pg_catalog.pg_class
  WHERE relnamespace = pg_my_temp_schema()
  AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
  ) END;

-- release
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), lease_token=NULL, lease_until=NULL,
    together=false
WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
    AND shield_inbox.lease_token = :with_token::UUID AND shield_inbox.status IN ('PROCESSING');

-- note
UPDATE shield_inbox
SET last_error='sample'
WHERE shield_inbox.event_id = ANY (:of_events::UUID[]) AND shield_inbox.consumer_group = :of_group::VARCHAR
    AND shield_inbox.lease_token = :with_token::UUID;

-- postpone
UPDATE shield_inbox
SET status='PROCESSING', due_at=(statement_timestamp() + :param_1), lease_token=NULL, lease_until=NULL,
    last_error='sample', together=false
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1::UUID AND shield_inbox.status IN ('PROCESSING');

-- defer
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), due_at=(statement_timestamp() + :param_1),
    lease_token=NULL, lease_until=NULL, last_error='sample', together=false
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1::UUID AND shield_inbox.status IN ('PROCESSING');

-- give_up
UPDATE shield_inbox
SET status='MAX_RECONSUMED', attempts=100, lease_token=NULL, lease_until=NULL,
    settled_at=statement_timestamp(), last_error='sample', together=false, awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1::UUID AND shield_inbox.status IN ('PROCESSING');

-- replay
UPDATE shield_inbox
SET status='PROCESSING', attempts=0, due_at=statement_timestamp(), settled_at=NULL, awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample' AND shield_inbox.status = 'DEAD'
RETURNING shield_inbox.event_id;
