-- announce
INSERT INTO shield_relay (relay, alive_until, started_at)
VALUES ('sample', strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))),
    strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT (relay) DO UPDATE
SET alive_until = strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_2 AS FLOAT)));

-- forget_dead_relays
DELETE FROM shield_relay
WHERE shield_relay.alive_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now');

-- count_relays
SELECT count(*) AS count_1
FROM shield_relay;

-- count_shards
SELECT count(*) AS count_1
FROM shield_shard;

-- shard_count
SELECT count(*) AS count_1
FROM shield_shard;

-- extend
WITH locked AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = 'sample' AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard)
UPDATE shield_shard
SET lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_shard.shard IN (SELECT locked.shard
  FROM locked)
RETURNING shard;

-- owners
SELECT shield_shard.owner
FROM shield_shard
WHERE shield_shard.owner IS NOT NULL AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
    UNION SELECT shield_relay.relay
FROM shield_relay;

-- take_free
WITH free AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner IS NULL OR shield_shard.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard
  LIMIT 100 OFFSET 0)
UPDATE shield_shard
SET owner='sample', epoch=(shield_shard.epoch + 1), lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now',
    printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
WHERE shield_shard.shard IN (SELECT free.shard
  FROM free)
RETURNING shard;

-- owned
SELECT shield_shard.shard
FROM shield_shard
WHERE shield_shard.owner = 'sample'
ORDER BY shield_shard.shard;

-- count_owned
SELECT count(*) AS count_1
FROM shield_shard
WHERE shield_shard.owner = 'sample';

-- owned_and_idle
SELECT shield_shard.shard
FROM shield_shard
WHERE shield_shard.owner = 'sample'
ORDER BY shield_shard.shard;

-- hand_over
UPDATE shield_shard
SET owner='sample', epoch=(shield_shard.epoch + 1)
WHERE shield_shard.owner = 'sample';

-- release
WITH locked AS
(SELECT shield_shard.shard AS shard
  FROM shield_shard
  WHERE shield_shard.owner = 'sample' AND shield_shard.shard IN (0, 1)
  ORDER BY shield_shard.shard)
UPDATE shield_shard
SET owner=NULL, lease_until=NULL
WHERE shield_shard.shard IN (SELECT locked.shard
  FROM locked);

-- forget
DELETE FROM shield_relay
WHERE shield_relay.relay = 'sample';
