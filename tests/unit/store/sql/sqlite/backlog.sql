-- events
SELECT count(*) AS count_1
FROM (SELECT anon_2.topic AS topic
  FROM (SELECT anon_3.topic AS topic, anon_3.tx_kind AS tx_kind, anon_3.status AS status
    FROM (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS
        status
      FROM shield_outbox
      WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 0 AND shield_outbox.holds_key = 0
      ORDER BY shield_outbox.seq DESC
      LIMIT :scanned OFFSET 0) AS anon_3
    UNION ALL SELECT anon_4.topic AS topic, anon_4.tx_kind AS tx_kind, anon_4.status AS status
    FROM (SELECT anon_5.topic AS topic, anon_5.tx_kind AS tx_kind, anon_5.status AS status
      FROM (SELECT shield_shard.shard AS shard
        FROM shield_shard) AS shards JOIN (SELECT shield_outbox.topic AS topic, shield_outbox.tx_kind AS
            tx_kind, shield_outbox.status AS status, shield_outbox.shard AS shard
        FROM shield_outbox
        WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0
            AND shield_outbox.due_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
        ORDER BY shield_outbox.due_at) AS anon_5 ON anon_5.shard = shards.shard
      LIMIT :scanned OFFSET 0) AS anon_4
    UNION ALL SELECT anon_6.topic AS topic, anon_6.tx_kind AS tx_kind, anon_6.status AS status
    FROM (SELECT anon_7.event_id AS event_id, anon_7.topic AS topic, anon_7.tx_kind AS tx_kind, anon_7.status
        AS status
      FROM (SELECT shield_outbox.event_id AS event_id, shield_outbox.topic AS topic, shield_outbox.tx_kind AS
          tx_kind, shield_outbox.status AS status
        FROM shield_outbox
        WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1
        ORDER BY shield_outbox.shard, shield_outbox."key", shield_outbox.seq
        LIMIT :scanned OFFSET 0) AS anon_7 UNION SELECT anon_8.event_id AS event_id, anon_8.topic AS topic,
            anon_8.tx_kind AS tx_kind, anon_8.status AS status
      FROM (SELECT shield_shard.shard AS shard
        FROM shield_shard) AS shards JOIN (SELECT shield_outbox.event_id AS event_id, shield_outbox.topic AS
            topic, shield_outbox.tx_kind AS tx_kind, shield_outbox.status AS status, shield_outbox.shard AS
            shard
        FROM shield_outbox
        WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1
        ORDER BY shield_outbox."key", shield_outbox.seq) AS anon_8 ON anon_8.shard = shards.shard) AS anon_6)
            AS anon_2
  WHERE anon_2.topic = :of_topic AND anon_2.tx_kind = 'COMMIT' AND anon_2.status != 'HALF'
  LIMIT :at_most OFFSET 0) AS anon_1;

-- other_sources
SELECT anon_1.source, count(*) AS rows
FROM (SELECT anon_2.source AS source
  FROM (SELECT shield_outbox.source AS source
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 0 AND shield_outbox.holds_key = 0
    ORDER BY shield_outbox.seq
    LIMIT 100000 OFFSET 0) AS anon_2
  UNION ALL SELECT anon_3.source AS source
  FROM (SELECT shield_outbox.source AS source
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key = 1
    ORDER BY shield_outbox.shard, shield_outbox."key", shield_outbox.seq
    LIMIT 100000 OFFSET 0) AS anon_3
  UNION ALL SELECT anon_4.source AS source
  FROM (SELECT shield_outbox.source AS source
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 1 AND shield_outbox.holds_key = 0
    ORDER BY shield_outbox.shard, shield_outbox.due_at
    LIMIT 100000 OFFSET 0) AS anon_4) AS anon_1
WHERE anon_1.source != 'sample'
GROUP BY anon_1.source
ORDER BY anon_1.source;
