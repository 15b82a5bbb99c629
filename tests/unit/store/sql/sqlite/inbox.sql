-- start_attempt
UPDATE shield_inbox
SET status='PROCESSING', attempts=CASE WHEN shield_inbox.together THEN shield_inbox.attempts ELSE
    shield_inbox.attempts + 1 END, due_at=CASE WHEN :is_probe THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ELSE shield_inbox.due_at END, lease_token=:with_token, lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now',
    printf('%+.3f seconds', CAST(:lease_seconds AS FLOAT))), together=:is_probe
WHERE shield_inbox.event_id = :of_event AND shield_inbox.consumer_group = :of_group AND shield_inbox.source =
    :of_source AND shield_inbox.status IN ('INIT', 'PROCESSING') AND shield_inbox.event_id IN (SELECT
    waiting.event_id
  FROM shield_inbox AS waiting
  WHERE waiting.event_id = :of_event AND waiting.consumer_group = :of_group AND waiting.source = :of_source
      AND waiting.settled_at IS NULL AND waiting.due_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AND
      (waiting.lease_until IS NULL OR waiting.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND NOT
      ((EXISTS (SELECT *
        FROM shield_inbox AS earlier
        WHERE earlier.consumer_group = waiting.consumer_group AND earlier.settled_at IS NULL AND earlier.topic
            = waiting.topic AND earlier."key" = waiting."key" AND earlier.seq < waiting.seq AND NOT (EXISTS
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
            waiting.causation_source)))))
RETURNING attempts, record_partition, record_offset;

-- lock_row
UPDATE shield_inbox
SET lease_token=shield_inbox.lease_token
WHERE shield_inbox.event_id = :of_event AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING')
RETURNING 1 AS anon_1, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS strftime_1, '' AS anon_2;

-- lock_batch
UPDATE shield_inbox
SET lease_token=shield_inbox.lease_token
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING')
RETURNING 1 AS anon_1, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS strftime_1, '' AS anon_2;

-- processed
UPDATE shield_inbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at, last_error=NULL, together=0
WHERE shield_inbox.event_id = :of_event AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING') AND :in_transaction = '';

-- compensated
UPDATE shield_inbox
SET compensated_id=:compensated, status='PROCESSED', lease_token=NULL, lease_until=NULL,
    settled_at=:locked_at, last_error=NULL, together=0
WHERE shield_inbox.event_id = :of_event AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING') AND :in_transaction = '';

-- all_processed
UPDATE shield_inbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at, last_error=NULL, together=0
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING') AND :in_transaction = '';

-- all_refused
UPDATE shield_inbox
SET status='MAX_RECONSUMED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at,
    last_error=json_extract(:reasons, '$."' || replace(CAST(shield_inbox.event_id AS TEXT), '-', '') || '"'),
    together=0
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING') AND :in_transaction = '';

-- release
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), lease_token=NULL, lease_until=NULL, together=0
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token AND shield_inbox.status IN ('PROCESSING');

-- note
UPDATE shield_inbox
SET last_error='sample'
WHERE shield_inbox.event_id IN (:of_events) AND shield_inbox.consumer_group = :of_group AND
    shield_inbox.lease_token = :with_token;

-- postpone
UPDATE shield_inbox
SET status='PROCESSING', due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1
    AS FLOAT))), lease_token=NULL, lease_until=NULL, last_error='sample', together=0
WHERE shield_inbox.event_id = :event_id_1 AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1 AND shield_inbox.status IN ('PROCESSING');

-- defer
UPDATE shield_inbox
SET status='PROCESSING', attempts=(shield_inbox.attempts - 1), due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now',
    printf('%+.3f seconds', CAST(:param_1 AS FLOAT))), lease_token=NULL, lease_until=NULL,
    last_error='sample', together=0
WHERE shield_inbox.event_id = :event_id_1 AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1 AND shield_inbox.status IN ('PROCESSING');

-- give_up
UPDATE shield_inbox
SET status='MAX_RECONSUMED', attempts=100, lease_token=NULL, lease_until=NULL, settled_at=strftime('%Y-%m-%d
    %H:%M:%f000', 'now'), last_error='sample', together=0, awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1 AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.lease_token = :lease_token_1 AND shield_inbox.status IN ('PROCESSING');

-- replay
UPDATE shield_inbox
SET status='PROCESSING', attempts=0, due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), settled_at=NULL,
    awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1 AND shield_inbox.consumer_group = 'sample' AND shield_inbox.source =
    'sample' AND shield_inbox.status = 'DEAD'
RETURNING event_id;
