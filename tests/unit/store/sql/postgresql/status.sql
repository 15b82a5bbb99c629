-- now
SELECT timezone('UTC', statement_timestamp()) AS statement_timestamp_1;

-- open_events
SELECT anon_1.topic, anon_1.tx_kind, anon_1.status, anon_1.place, count(*) AS rows, timezone('UTC',
    min(anon_1.since)) AS since
FROM (SELECT anon_2.topic AS topic, anon_2.tx_kind AS tx_kind, anon_2.status AS status, anon_2.place AS place,
    anon_2.since AS since
  FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status,
      'main queue' AS place, shield_outbox.created_at AS since
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key
    ORDER BY shield_outbox.shard, shield_outbox.seq
    LIMIT 100) AS anon_2
  UNION ALL SELECT anon_3.topic AS topic, anon_3.tx_kind AS tx_kind, anon_3.status AS status, anon_3.place AS
      place, anon_3.since AS since
  FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status,
      CASE WHEN shield_outbox.waiting THEN 'retrying' ELSE 'blocked' END AS place, shield_outbox.created_at AS
      since
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key
    ORDER BY shield_outbox.shard, shield_outbox.key, shield_outbox.seq
    LIMIT 100) AS anon_3
  UNION ALL SELECT anon_4.topic AS topic, anon_4.tx_kind AS tx_kind, anon_4.status AS status, anon_4.place AS
      place, anon_4.since AS since
  FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status,
      'delayed' AS place, CASE WHEN (shield_outbox.due_at <= statement_timestamp()) THEN shield_outbox.due_at
      ELSE NULL END AS since
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting AND NOT shield_outbox.holds_key AND
        shield_outbox.check_at IS NULL
    ORDER BY shield_outbox.shard, shield_outbox.due_at
    LIMIT 100) AS anon_4
  UNION ALL SELECT anon_5.topic AS topic, anon_5.tx_kind AS tx_kind, anon_5.status AS status, anon_5.place AS
      place, anon_5.since AS since
  FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status,
      'half' AS place, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM shield_outbox
    WHERE shield_outbox.check_at IS NOT NULL
    ORDER BY shield_outbox.event_type, shield_outbox.check_at
    LIMIT 100) AS anon_5) AS anon_1
GROUP BY anon_1.topic, anon_1.tx_kind, anon_1.status, anon_1.place;

-- due_events
SELECT count(*) AS count_1
FROM (SELECT anon_2.seq AS seq
  FROM (SELECT shield_outbox.seq AS seq
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key
    ORDER BY shield_outbox.seq
    LIMIT 100) AS anon_2
  UNION ALL SELECT anon_3.seq AS seq
  FROM (SELECT shield_outbox.seq AS seq
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key
    ORDER BY shield_outbox.shard, shield_outbox.key, shield_outbox.seq
    LIMIT 100) AS anon_3
  UNION ALL SELECT anon_4.seq AS seq
  FROM (SELECT shield_outbox.seq AS seq
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting AND NOT shield_outbox.holds_key AND
        shield_outbox.check_at IS NULL AND shield_outbox.due_at <= statement_timestamp()
    ORDER BY shield_outbox.shard, shield_outbox.due_at
    LIMIT 100) AS anon_4) AS anon_1;

-- oldest_events
SELECT anon_1.topic, anon_1.tx_kind, timezone('UTC', min(anon_1.since)) AS since
FROM (SELECT anon_2.topic AS topic, anon_2.tx_kind AS tx_kind, anon_2.since AS since
  FROM (SELECT shield_shard.shard AS shard
    FROM shield_shard) AS shards JOIN LATERAL (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS
        tx_kind, shield_outbox.status AS status, 'main queue' AS place, shield_outbox.created_at AS since,
        shield_outbox.shard AS shard
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key AND
        shield_outbox.shard = shards.shard
    ORDER BY shield_outbox.seq
    LIMIT 100) AS anon_2 ON true
  UNION ALL SELECT anon_3.topic AS topic, anon_3.tx_kind AS tx_kind, anon_3.since AS since
  FROM (SELECT shield_shard.shard AS shard
    FROM shield_shard) AS shards JOIN LATERAL (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS
        tx_kind, shield_outbox.status AS status, 'main queue' AS place, shield_outbox.created_at AS since,
        shield_outbox.shard AS shard
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key AND shield_outbox.shard = shards.shard
    ORDER BY shield_outbox.key, shield_outbox.seq
    LIMIT 100) AS anon_3 ON true) AS anon_1
GROUP BY anon_1.topic, anon_1.tx_kind;

-- oldest_half
SELECT timezone('UTC', min(anon_1.created_at)) AS min_1
FROM (SELECT shield_outbox.created_at AS created_at
  FROM shield_outbox
  WHERE shield_outbox.check_at IS NOT NULL AND shield_outbox.status = 'HALF'
  ORDER BY shield_outbox.event_type, shield_outbox.check_at
  LIMIT 100) AS anon_1;

-- oldest_unresolved
SELECT timezone('UTC', min(anon_1.created_at)) AS min_1
FROM (SELECT shield_outbox.created_at AS created_at
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NOT NULL AND shield_outbox.last_error IS NOT NULL AND shield_outbox.status
      = 'UNRESOLVED'
  LIMIT 100) AS anon_1;

-- open_arrivals
WITH RECURSIVE found(consumer_group) AS
(SELECT (SELECT min(shield_inbox.consumer_group) AS min_1
    FROM shield_inbox
    WHERE shield_inbox.settled_at IS NULL) AS consumer_group
  UNION ALL SELECT (SELECT min(shield_inbox.consumer_group) AS min_1
    FROM shield_inbox
    WHERE shield_inbox.settled_at IS NULL AND shield_inbox.consumer_group > found.consumer_group) AS anon_4
  FROM found
  WHERE found.consumer_group IS NOT NULL)
SELECT anon_1.consumer_group, anon_1.status, anon_1.place, count(*) AS rows, timezone('UTC',
    min(anon_1.since)) AS since
FROM (SELECT anon_2.consumer_group AS consumer_group, anon_2.status AS status, anon_2.place AS place,
    anon_2.since AS since
  FROM (SELECT found.consumer_group AS consumer_group
    FROM found
    WHERE found.consumer_group IS NOT NULL) AS anon_3 JOIN LATERAL (SELECT shield_inbox.consumer_group AS
        consumer_group, shield_inbox.status AS status, CASE WHEN (shield_inbox.attempts > 0 AND
        (shield_inbox.lease_until IS NULL OR shield_inbox.lease_until <= statement_timestamp())) THEN
        'retrying' ELSE 'main queue' END AS place, shield_inbox.received_at AS since
    FROM shield_inbox
    WHERE shield_inbox.settled_at IS NULL AND shield_inbox.consumer_group = anon_3.consumer_group
    ORDER BY shield_inbox.seq
    LIMIT 100) AS anon_2 ON true) AS anon_1
GROUP BY anon_1.consumer_group, anon_1.status, anon_1.place;

-- waiting_for_operator
SELECT anon_1.topic, anon_1.tx_kind, anon_1.status, count(*) AS rows
FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NOT NULL AND shield_outbox.last_error IS NOT NULL AND shield_outbox.status
      = 'FAILED') AS anon_1
GROUP BY anon_1.topic, anon_1.tx_kind, anon_1.status;

-- settled_by
SELECT anon_1.topic, anon_1.tx_kind, anon_1.status, count(*) AS rows
FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NOT NULL
  LIMIT 100) AS anon_1
GROUP BY anon_1.topic, anon_1.tx_kind, anon_1.status;

-- parked_by_group
WITH RECURSIVE found(consumer_group) AS
(SELECT (SELECT min(shield_parked.consumer_group) AS min_1
    FROM shield_parked) AS consumer_group
  UNION ALL SELECT (SELECT min(shield_parked.consumer_group) AS min_1
    FROM shield_parked
    WHERE shield_parked.consumer_group > found.consumer_group) AS anon_4
  FROM found
  WHERE found.consumer_group IS NOT NULL)
SELECT anon_1.consumer_group, count(*) AS rows
FROM (SELECT anon_2.consumer_group AS consumer_group
  FROM (SELECT found.consumer_group AS consumer_group
    FROM found
    WHERE found.consumer_group IS NOT NULL) AS anon_3 JOIN LATERAL (SELECT shield_parked.consumer_group AS
        consumer_group
    FROM shield_parked
    WHERE shield_parked.discarded_at IS NULL AND shield_parked.consumer_group = anon_3.consumer_group
    LIMIT 100) AS anon_2 ON true) AS anon_1
GROUP BY anon_1.consumer_group;

-- living_relays
SELECT shield_relay.relay, timezone('UTC', shield_relay.started_at) AS started_at, count(shield_shard.shard)
    AS shards
FROM shield_relay LEFT OUTER JOIN shield_shard ON shield_shard.owner = shield_relay.relay AND
    shield_shard.lease_until > statement_timestamp()
WHERE shield_relay.alive_until > statement_timestamp()
GROUP BY shield_relay.relay, shield_relay.started_at
ORDER BY shield_relay.started_at, shield_relay.relay;

-- shards
SELECT count(*) AS "all", coalesce(sum(CASE WHEN (shield_shard.lease_until > statement_timestamp()) THEN 1
    ELSE 0 END), 0) AS held
FROM shield_shard;
