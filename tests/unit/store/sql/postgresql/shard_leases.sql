-- announce
INSERT INTO shield_relay (relay, alive_until, started_at)
VALUES ('sample', (statement_timestamp() + :param_1), statement_timestamp())
ON CONFLICT (relay) DO UPDATE
SET alive_until = (statement_timestamp() + :param_2);

-- forget_dead_relays
DELETE FROM shield_relay
WHERE shield_relay.alive_until <= statement_timestamp();

-- count_relays
SELECT count(*) AS count_1
FROM shield_relay;

-- count_shards
SELECT count(*) AS count_1
FROM shield_shard;

-- shard_count
SELECT substring(pg_get_constraintdef(oid) FROM 'shard < ([0-9]+)')::integer
FROM pg_constraint
WHERE conrelid = to_regclass(:table) AND conname = 'shield_outbox_shard_check';

-- extend
WITH locked AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = 'sample' AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR UPDATE)
UPDATE shield_shard
SET lease_until=(statement_timestamp() + :param_1)
WHERE shield_shard.shard IN (SELECT locked.shard
  FROM locked)
RETURNING shield_shard.shard;

-- owners
SELECT shield_shard.owner
FROM shield_shard
WHERE shield_shard.owner IS NOT NULL AND shield_shard.lease_until > statement_timestamp() UNION SELECT
    shield_relay.relay
FROM shield_relay;

-- take_free
WITH free AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner IS NULL OR shield_shard.lease_until <= statement_timestamp()
  ORDER BY shield_shard.shard
  LIMIT 100
  FOR UPDATE SKIP LOCKED)
UPDATE shield_shard
SET owner='sample', epoch=(shield_shard.epoch + 1), lease_until=(statement_timestamp() + :param_1)
WHERE shield_shard.shard IN (SELECT free.shard
  FROM free)
RETURNING shield_shard.shard;

-- owned
SELECT shield_shard.shard
FROM shield_shard
WHERE shield_shard.owner = 'sample'
ORDER BY shield_shard.shard
FOR UPDATE;

-- count_owned
SELECT count(*) AS count_1
FROM shield_shard
WHERE shield_shard.owner = 'sample';

-- owned_and_idle
SELECT shield_shard.shard
FROM shield_shard
WHERE shield_shard.owner = 'sample'
ORDER BY shield_shard.shard
FOR UPDATE SKIP LOCKED;

-- hand_over
UPDATE shield_shard
SET owner='sample', epoch=(shield_shard.epoch + 1)
WHERE shield_shard.owner = 'sample';

-- release
WITH locked AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = 'sample' AND shield_shard.shard IN (0, 1)
  ORDER BY shield_shard.shard
  FOR UPDATE)
UPDATE shield_shard
SET owner=NULL, lease_until=NULL
WHERE shield_shard.shard IN (SELECT locked.shard
  FROM locked);

-- forget
DELETE FROM shield_relay
WHERE shield_relay.relay = 'sample';
