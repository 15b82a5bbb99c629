-- standing
SELECT shield_outbox.event_id, shield_outbox.event_type, shield_outbox.biz_key, shield_outbox.status,
    shield_outbox.due_at AS due_at, shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0 AS delayed,
    shield_outbox.unconfirmed, shield_outbox.due_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AS due
FROM shield_outbox
WHERE shield_outbox.event_type = 'order.placed' AND shield_outbox.biz_key = '4711' AND shield_outbox.tx_kind =
    'COMMIT';

-- cancel
UPDATE shield_outbox
SET status='DISCARDED', settled_at=strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE shield_outbox.event_id = :event_id_1 AND shield_outbox.status IN ('INIT')
RETURNING due_at AS due_at;

-- reschedule
UPDATE shield_outbox
SET due_at=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_outbox.event_id = :event_id_1 AND shield_outbox.status = 'INIT'
RETURNING due_at AS due_at;

-- waiting
SELECT anon_1.event_id, anon_1.event_type, anon_1.topic, anon_1."key", anon_1.biz_key, anon_1.created_at AS
    created_at, anon_1.due_at AS due_at, anon_1.attempts, anon_1."left"
FROM (SELECT shield_shard.shard AS shard
  FROM shield_shard) AS shards JOIN (SELECT shield_outbox.event_id AS event_id, shield_outbox.event_type AS
      event_type, shield_outbox.topic AS topic, shield_outbox."key" AS "key", shield_outbox.biz_key AS
      biz_key, shield_outbox.created_at AS created_at, shield_outbox.due_at AS due_at, shield_outbox.attempts
      AS attempts, CAST((julianday(shield_outbox.due_at) - julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now')))
      * :param_1 AS FLOAT) AS "left", shield_outbox.shard AS shard
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0 AND
      shield_outbox.status = 'INIT' AND shield_outbox.event_type = 'sample' AND shield_outbox.topic = 'sample'
      AND shield_outbox."key" = 'sample'
  ORDER BY shield_outbox.due_at, shield_outbox.seq) AS anon_1 ON anon_1.shard = shards.shard
ORDER BY anon_1.due_at
LIMIT 100 OFFSET 0;

-- until_due
SELECT CAST((julianday(min(anon_2.due_at)) - julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now'))) * :param_1 AS
    FLOAT) AS anon_1
FROM (SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now'))
      AS mine JOIN (SELECT shield_outbox.due_at AS due_at, shield_outbox.shard AS shard
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 1 AND shield_outbox.status = 'INIT' AND
      shield_outbox.due_at > strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds',
      CAST(:seconds_from_now AS FLOAT))) AND shield_outbox.due_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now',
      printf('%+.3f seconds', CAST(:seconds_ahead AS FLOAT)))
  ORDER BY shield_outbox.due_at) AS anon_2 ON anon_2.shard = mine.shard;
