-- leased
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE)
SELECT leased.shard
FROM leased;

-- shards_with_blocked_keys
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE)
SELECT leased.shard
FROM leased
WHERE EXISTS (SELECT *
  FROM shield_outbox
  WHERE shield_outbox.shard = leased.shard AND shield_outbox.settled_at IS NULL AND shield_outbox.holds_key);

-- block
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE),
chosen AS MATERIALIZED
(SELECT line.ctid AS ctid
  FROM shield_outbox AS line LEFT OUTER JOIN LATERAL (SELECT first_holder.seq AS seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = line.shard AND first_holder.key = line.key AND first_holder.source =
        line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
    ORDER BY first_holder.seq
    LIMIT 1) AS anon_1 ON true
  WHERE line.settled_at IS NULL AND NOT line.waiting AND NOT line.holds_key AND line.seq > :after_seq::BIGINT
      AND line.seq <= :upto_seq::BIGINT AND line.shard = ANY (array((SELECT leased.shard
        FROM leased))) AND line.status = 'INIT' AND anon_1.seq < line.seq)
UPDATE shield_outbox
SET holds_key=True
WHERE shield_outbox.ctid = ANY (array((SELECT chosen.ctid
      FROM chosen))) AND shield_outbox.status = 'INIT' AND NOT shield_outbox.waiting AND
          shield_outbox.settled_at IS NULL;

-- block_these
UPDATE shield_outbox
SET holds_key=True
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND shield_outbox.status = 'INIT' AND NOT
    shield_outbox.waiting;

-- holders
SELECT shield_outbox.event_id, shield_outbox.key, shield_outbox.seq, shield_outbox.source,
    shield_outbox.waiting
FROM shield_outbox
WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key AND shield_outbox.shard =
    :of_shard::SMALLINT AND (shield_outbox.key, shield_outbox.seq) > (:after_key::VARCHAR, :after_seq::BIGINT)
ORDER BY shield_outbox.key, shield_outbox.seq
LIMIT :at_most::INTEGER;

-- holders_of_key
SELECT shield_outbox.event_id, shield_outbox.key, shield_outbox.seq, shield_outbox.source,
    shield_outbox.waiting
FROM shield_outbox
WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key AND shield_outbox.shard =
    :of_shard::SMALLINT AND shield_outbox.key = :after_key::VARCHAR AND shield_outbox.seq > :after_seq::BIGINT
ORDER BY shield_outbox.key, shield_outbox.seq
LIMIT :at_most::INTEGER;

-- unblock
UPDATE shield_outbox
SET holds_key=False
WHERE shield_outbox.event_id = ANY (:param_1::UUID[]) AND NOT shield_outbox.waiting;
