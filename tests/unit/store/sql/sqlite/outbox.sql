-- insert
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, payload, status,
    attempts, waiting, holds_key, due_at, unconfirmed, created_at)
VALUES (:event_id, :shard, :source, :topic, :event_type, :tx_kind, :operation, :payload, 'INIT', 0, :waiting,
    False, coalesce(:at, strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:delay_seconds
    AS FLOAT)))), False, strftime('%Y-%m-%d %H:%M:%f000', 'now'));

-- insert_unknown
INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, payload, status,
    attempts, waiting, holds_key, due_at, unconfirmed, created_at)
VALUES (:event_id, :shard, :source, :topic, :event_type, :tx_kind, :operation, :payload, 'INIT', 0, :waiting,
    False, coalesce(:at, strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:delay_seconds
    AS FLOAT)))), False, strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT DO NOTHING
RETURNING event_id;

-- processed
UPDATE shield_outbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=strftime('%Y-%m-%d %H:%M:%f000',
    'now'), last_error=NULL
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING');

-- processed_at_addresses
UPDATE shield_outbox
SET status='PROCESSED', lease_token=NULL, lease_until=NULL, settled_at=strftime('%Y-%m-%d %H:%M:%f000',
    'now'), last_error=NULL
WHERE 0 = 1 AND shield_outbox.lease_token = :with_token AND shield_outbox.status IN ('PROCESSING');

-- release
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), unconfirmed=True, lease_token=NULL,
    lease_until=NULL, last_error='sample'
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING');

-- unclaim
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), lease_token=NULL, lease_until=NULL
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING');

-- withdraw
UPDATE shield_outbox
SET status='INIT', attempts=(shield_outbox.attempts - 1), lease_token=NULL, lease_until=NULL
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status IN
    ('PROCESSING') AND shield_outbox.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- leased
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- lock_leased
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- end_leases
UPDATE shield_outbox
SET lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_outbox.shard IN (0, 1) AND shield_outbox.settled_at IS NULL AND shield_outbox.status =
    'PROCESSING' AND shield_outbox.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- retry
UPDATE shield_outbox
SET status='INIT', waiting=True, holds_key=(shield_outbox.waiting = 0 OR shield_outbox.holds_key = 1),
    due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))),
    lease_token=NULL, lease_until=NULL, last_error='sample'
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING');

-- lock_row
UPDATE shield_outbox
SET lease_token=shield_outbox.lease_token
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING')
RETURNING 1 AS anon_1, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS strftime_1, '' AS anon_2;

-- failed
UPDATE shield_outbox
SET status='FAILED', lease_token=NULL, lease_until=NULL, settled_at=:locked_at, last_error='sample'
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.lease_token = :lease_token_1 AND
    shield_outbox.status IN ('PROCESSING') AND :in_transaction = '';

-- replay
UPDATE shield_outbox
SET status='INIT', attempts=0, waiting=False, holds_key=False, due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    settled_at=NULL
WHERE shield_outbox.event_id = :event_id_1 AND shield_outbox.status = 'FAILED'
RETURNING event_id;
