-- leased
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard)
SELECT leased.shard
FROM leased;

-- shards_with_blocked_keys
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard)
SELECT leased.shard
FROM leased
WHERE EXISTS (SELECT *
  FROM shield_outbox
  WHERE shield_outbox.shard = leased.shard AND shield_outbox.settled_at IS NULL AND shield_outbox.holds_key =
      1);

-- block
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard),
chosen AS MATERIALIZED
(SELECT line.event_id AS event_id
  FROM shield_outbox AS line
  WHERE line.settled_at IS NULL AND line.waiting = 0 AND line.holds_key = 0 AND line.seq > :after_seq AND
      line.seq <= :upto_seq AND line.shard IN (SELECT leased.shard
    FROM leased) AND line.status = 'INIT' AND (SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = line.shard AND first_holder."key" = line."key" AND first_holder.source =
        line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1
    ORDER BY first_holder.seq
    LIMIT 1 OFFSET 0) < line.seq)
UPDATE shield_outbox
SET holds_key=True
WHERE shield_outbox.event_id IN (SELECT chosen.event_id
  FROM chosen) AND shield_outbox.status = 'INIT' AND shield_outbox.waiting = 0 AND shield_outbox.settled_at IS
      NULL;

-- block_these
UPDATE shield_outbox
SET holds_key=True
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.status = 'INIT' AND shield_outbox.waiting = 0;

-- holders
SELECT shield_outbox.event_id, shield_outbox."key", shield_outbox.seq, shield_outbox.source,
    shield_outbox.waiting
FROM shield_outbox
WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1 AND shield_outbox.shard = :of_shard AND
    (shield_outbox."key", shield_outbox.seq) > (:after_key, :after_seq)
ORDER BY shield_outbox."key", shield_outbox.seq
LIMIT :at_most OFFSET 0;

-- holders_of_key
SELECT shield_outbox.event_id, shield_outbox."key", shield_outbox.seq, shield_outbox.source,
    shield_outbox.waiting
FROM shield_outbox
WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1 AND shield_outbox.shard = :of_shard AND
    shield_outbox."key" = :after_key AND shield_outbox.seq > :after_seq
ORDER BY shield_outbox."key", shield_outbox.seq
LIMIT :at_most OFFSET 0;

-- unblock
UPDATE shield_outbox
SET holds_key=False
WHERE shield_outbox.event_id IN (:event_id_1) AND shield_outbox.waiting = 0;
