-- claim
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE),
held AS MATERIALIZED
(SELECT EXISTS (SELECT leased.shard
    FROM leased
    WHERE EXISTS (SELECT *
      FROM shield_outbox AS on_hold
      WHERE on_hold.shard = leased.shard AND on_hold.settled_at IS NULL AND on_hold.holds_key)) AS on_hold),
ready AS MATERIALIZED
(SELECT anon_1.address AS address, anon_1.size AS size
  FROM (SELECT anon_2.address AS address, anon_2.size AS size
    FROM leased JOIN LATERAL (SELECT aside.ctid AS address, octet_length(aside.payload) AS size, aside.shard
        AS shard
      FROM shield_outbox AS aside
      WHERE aside.settled_at IS NULL AND aside.waiting AND aside.due_at <= statement_timestamp() AND
          (aside.status = 'INIT' OR aside.status = 'PROCESSING' AND aside.lease_until <=
          statement_timestamp()) AND NOT ((SELECT held.on_hold
          FROM held) AND coalesce((SELECT first_holder.seq
            FROM shield_outbox AS first_holder
            WHERE first_holder.shard = aside.shard AND first_holder.key = aside.key AND first_holder.source =
                aside.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
            ORDER BY first_holder.seq
            LIMIT 1) < aside.seq, false)) AND aside.shard = leased.shard
      ORDER BY aside.due_at
      LIMIT :at_most_of_each::INTEGER
      FOR UPDATE SKIP LOCKED) AS anon_2 ON true
    LIMIT :at_most::INTEGER) AS anon_1
  UNION ALL SELECT anon_3.address AS address, anon_3.size AS size
  FROM (SELECT line.ctid AS address, octet_length(line.payload) AS size
    FROM shield_outbox AS line LEFT OUTER JOIN LATERAL (SELECT first_holder.seq AS seq
      FROM shield_outbox AS first_holder
      WHERE first_holder.shard = line.shard AND first_holder.key = line.key AND first_holder.source =
          line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key AND (SELECT held.on_hold
        FROM held)
      ORDER BY first_holder.seq
      LIMIT 1) AS anon_4 ON true
    WHERE line.settled_at IS NULL AND NOT line.waiting AND NOT line.holds_key AND line.seq >= (SELECT CASE
        WHEN ((SELECT hashtextextended(string_agg(concat_ws(':', leased.shard, leased.epoch), ','
              ORDER BY leased.shard), 0) AS hashtextextended_1
          FROM leased) = :known_shards::BIGINT AND NOT (SELECT held.on_hold
          FROM held)) THEN :start_at::BIGINT WHEN ((SELECT hashtextextended(string_agg(concat_ws(':',
              leased.shard, leased.epoch), ','
              ORDER BY leased.shard), 0) AS hashtextextended_1
          FROM leased) = :fenced_shards::BIGINT) THEN :fence::BIGINT + 1 ELSE 0 END AS anon_5) AND line.shard
              = ANY (array((SELECT leased.shard
          FROM leased))) AND (line.status = 'INIT' OR line.status = 'PROCESSING' AND line.lease_until <=
              statement_timestamp()) AND coalesce(anon_4.seq >= line.seq, true)
    ORDER BY line.seq
    LIMIT :at_most::INTEGER) AS anon_3
  LIMIT :at_most::INTEGER),
chosen AS MATERIALIZED
(SELECT summed.address AS address
  FROM (SELECT ready.address AS address, sum(ready.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1
      PRECEDING) AS before
    FROM ready) AS summed
  WHERE coalesce(summed.before, 0) < :bytes_at_most::BIGINT)
UPDATE shield_outbox
SET status='PROCESSING', attempts=(shield_outbox.attempts + 1), unconfirmed=(shield_outbox.unconfirmed OR
    shield_outbox.status = 'PROCESSING'), lease_token=:with_token::UUID, lease_until=(SELECT
    min(leased.lease_until) AS min_1
  FROM leased)
WHERE shield_outbox.ctid = ANY (array((SELECT chosen.address
      FROM chosen))) AND (shield_outbox.status = 'INIT' OR shield_outbox.status = 'PROCESSING' AND
          shield_outbox.lease_until <= statement_timestamp())
RETURNING shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.seq, shield_outbox.shard, shield_outbox.attempts,
    shield_outbox.unconfirmed, shield_outbox.waiting, timezone('UTC', CASE WHEN (shield_outbox.waiting AND NOT
    shield_outbox.holds_key) THEN shield_outbox.due_at END) AS anon_6, (SELECT CAST(EXTRACT(epoch FROM
    min(leased.lease_until) - statement_timestamp()) AS FLOAT) AS anon_8
  FROM leased) AS anon_7, shield_outbox.ctid, (SELECT CAST(json_build_object('shards', (SELECT
      hashtextextended(string_agg(concat_ws(':', leased.shard, leased.epoch), ','
            ORDER BY leased.shard), 0) AS hashtextextended_3
        FROM leased), 'has_blocked_keys', (SELECT held.on_hold
        FROM held), 'oldest_running', pg_snapshot_xmin(pg_current_snapshot()), 'next_to_run',
            pg_snapshot_xmax(pg_current_snapshot()), 'chosen', (SELECT count(*) AS count_1
        FROM chosen)) AS TEXT) AS json_build_object_1) AS anon_9;

-- claim (of_source)
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE),
held AS MATERIALIZED
(SELECT EXISTS (SELECT leased.shard
    FROM leased
    WHERE EXISTS (SELECT *
      FROM shield_outbox AS on_hold
      WHERE on_hold.shard = leased.shard AND on_hold.settled_at IS NULL AND on_hold.holds_key)) AS on_hold),
ready AS MATERIALIZED
(SELECT anon_1.address AS address, anon_1.size AS size
  FROM (SELECT anon_2.address AS address, anon_2.size AS size
    FROM leased JOIN LATERAL (SELECT aside.ctid AS address, octet_length(aside.payload) AS size, aside.shard
        AS shard
      FROM shield_outbox AS aside
      WHERE aside.source = :of_source::VARCHAR AND aside.settled_at IS NULL AND aside.waiting AND aside.due_at
          <= statement_timestamp() AND (aside.status = 'INIT' OR aside.status = 'PROCESSING' AND
          aside.lease_until <= statement_timestamp()) AND NOT ((SELECT held.on_hold
          FROM held) AND coalesce((SELECT first_holder.seq
            FROM shield_outbox AS first_holder
            WHERE first_holder.shard = aside.shard AND first_holder.key = aside.key AND first_holder.source =
                aside.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
            ORDER BY first_holder.seq
            LIMIT 1) < aside.seq, false)) AND aside.shard = leased.shard
      ORDER BY aside.due_at
      LIMIT :at_most_of_each::INTEGER
      FOR UPDATE SKIP LOCKED) AS anon_2 ON true
    LIMIT :at_most::INTEGER) AS anon_1
  UNION ALL SELECT anon_3.address AS address, anon_3.size AS size
  FROM (SELECT line.ctid AS address, octet_length(line.payload) AS size
    FROM shield_outbox AS line LEFT OUTER JOIN LATERAL (SELECT first_holder.seq AS seq
      FROM shield_outbox AS first_holder
      WHERE first_holder.shard = line.shard AND first_holder.key = line.key AND first_holder.source =
          line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key AND (SELECT held.on_hold
        FROM held)
      ORDER BY first_holder.seq
      LIMIT 1) AS anon_4 ON true
    WHERE line.source = :of_source::VARCHAR AND line.settled_at IS NULL AND NOT line.waiting AND NOT
        line.holds_key AND line.seq >= (SELECT CASE WHEN ((SELECT hashtextextended(string_agg(concat_ws(':',
        leased.shard, leased.epoch), ','
              ORDER BY leased.shard), 0) AS hashtextextended_1
          FROM leased) = :known_shards::BIGINT AND NOT (SELECT held.on_hold
          FROM held)) THEN :start_at::BIGINT WHEN ((SELECT hashtextextended(string_agg(concat_ws(':',
              leased.shard, leased.epoch), ','
              ORDER BY leased.shard), 0) AS hashtextextended_1
          FROM leased) = :fenced_shards::BIGINT) THEN :fence::BIGINT + 1 ELSE 0 END AS anon_5) AND line.shard
              = ANY (array((SELECT leased.shard
          FROM leased))) AND (line.status = 'INIT' OR line.status = 'PROCESSING' AND line.lease_until <=
              statement_timestamp()) AND coalesce(anon_4.seq >= line.seq, true)
    ORDER BY line.seq
    LIMIT :at_most::INTEGER) AS anon_3
  LIMIT :at_most::INTEGER),
chosen AS MATERIALIZED
(SELECT summed.address AS address
  FROM (SELECT ready.address AS address, sum(ready.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1
      PRECEDING) AS before
    FROM ready) AS summed
  WHERE coalesce(summed.before, 0) < :bytes_at_most::BIGINT)
UPDATE shield_outbox
SET status='PROCESSING', attempts=(shield_outbox.attempts + 1), unconfirmed=(shield_outbox.unconfirmed OR
    shield_outbox.status = 'PROCESSING'), lease_token=:with_token::UUID, lease_until=(SELECT
    min(leased.lease_until) AS min_1
  FROM leased)
WHERE shield_outbox.ctid = ANY (array((SELECT chosen.address
      FROM chosen))) AND (shield_outbox.status = 'INIT' OR shield_outbox.status = 'PROCESSING' AND
          shield_outbox.lease_until <= statement_timestamp())
RETURNING shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.seq, shield_outbox.shard, shield_outbox.attempts,
    shield_outbox.unconfirmed, shield_outbox.waiting, timezone('UTC', CASE WHEN (shield_outbox.waiting AND NOT
    shield_outbox.holds_key) THEN shield_outbox.due_at END) AS anon_6, (SELECT CAST(EXTRACT(epoch FROM
    min(leased.lease_until) - statement_timestamp()) AS FLOAT) AS anon_8
  FROM leased) AS anon_7, shield_outbox.ctid, (SELECT CAST(json_build_object('shards', (SELECT
      hashtextextended(string_agg(concat_ws(':', leased.shard, leased.epoch), ','
            ORDER BY leased.shard), 0) AS hashtextextended_3
        FROM leased), 'has_blocked_keys', (SELECT held.on_hold
        FROM held), 'oldest_running', pg_snapshot_xmin(pg_current_snapshot()), 'next_to_run',
            pg_snapshot_xmax(pg_current_snapshot()), 'chosen', (SELECT count(*) AS count_1
        FROM chosen)) AS TEXT) AS json_build_object_1) AS anon_9;

-- first_holder
SELECT first_holder.seq
FROM shield_outbox AS first_holder, shield_outbox AS o
WHERE first_holder.shard = o.shard AND first_holder.key = o.key AND first_holder.source = o.source AND
    first_holder.settled_at IS NULL AND first_holder.holds_key
ORDER BY first_holder.seq
LIMIT 1;

-- first_holder (is_blocked)
SELECT first_holder.seq
FROM shield_outbox AS first_holder, shield_outbox AS o
WHERE NOT first_holder.waiting AND first_holder.shard = o.shard AND first_holder.key = o.key AND
    first_holder.source = o.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
ORDER BY first_holder.seq
LIMIT 1;
