-- standing
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.biz_key, shield_outbox.status,
    timezone('UTC', shield_outbox.due_at) AS due_at, shield_outbox.waiting AND NOT shield_outbox.holds_key AS
    delayed, shield_outbox.unconfirmed, shield_outbox.due_at <= statement_timestamp() AS due
FROM shield_outbox
WHERE shield_outbox.event_type = 'order.placed' AND shield_outbox.biz_key = '4711' AND shield_outbox.tx_kind =
    'COMMIT'
FOR UPDATE;

-- cancel
UPDATE shield_outbox
SET status='DISCARDED', settled_at=statement_timestamp()
WHERE shield_outbox.event_id = :event_id_1::UUID AND shield_outbox.status IN ('INIT')
RETURNING timezone('UTC', shield_outbox.due_at) AS due_at;

-- reschedule
UPDATE shield_outbox
SET due_at=(statement_timestamp() + :param_1)
WHERE shield_outbox.event_id = :event_id_1::UUID AND shield_outbox.status = 'INIT'
RETURNING timezone('UTC', shield_outbox.due_at) AS due_at;

-- waiting
SELECT anon_1.event_id, anon_1.event_type, anon_1.topic, anon_1.key, anon_1.biz_key, timezone('UTC',
    anon_1.created_at) AS created_at, timezone('UTC', anon_1.due_at) AS due_at, anon_1.attempts, anon_1."left"
FROM (SELECT shield_shard.shard AS shard
  FROM shield_shard) AS shards JOIN LATERAL (SELECT shield_outbox.event_id AS event_id,
      shield_outbox.event_type AS event_type, shield_outbox.topic AS topic, shield_outbox.key AS key,
      shield_outbox.biz_key AS biz_key, shield_outbox.created_at AS created_at, shield_outbox.due_at AS
      due_at, shield_outbox.attempts AS attempts, CAST(EXTRACT(epoch FROM shield_outbox.due_at -
      statement_timestamp()) AS FLOAT) AS "left", shield_outbox.shard AS shard
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting AND NOT shield_outbox.holds_key AND
      shield_outbox.status = 'INIT' AND shield_outbox.event_type = 'sample' AND shield_outbox.topic = 'sample'
      AND shield_outbox.key = 'sample' AND shield_outbox.shard = shards.shard
  ORDER BY shield_outbox.due_at, shield_outbox.seq
  LIMIT 100) AS anon_1 ON true
ORDER BY anon_1.due_at
LIMIT 100;

-- until_due
SELECT CAST(EXTRACT(epoch FROM min(anon_2.due_at) - statement_timestamp()) AS FLOAT) AS anon_1
FROM (SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()) AS mine
      JOIN LATERAL (SELECT shield_outbox.due_at AS due_at, shield_outbox.shard AS shard
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting AND shield_outbox.status = 'INIT' AND
      shield_outbox.due_at > statement_timestamp() + CAST(:seconds_from_now AS FLOAT) * interval '1 second'
      AND shield_outbox.due_at <= statement_timestamp() + CAST(:seconds_ahead AS FLOAT) * interval '1 second'
      AND shield_outbox.shard = mine.shard
  ORDER BY shield_outbox.due_at
  LIMIT 1) AS anon_2 ON true;
