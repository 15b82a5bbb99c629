-- claim
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard),
held AS MATERIALIZED
(SELECT EXISTS (SELECT leased.shard
    FROM leased
    WHERE EXISTS (SELECT *
      FROM shield_outbox AS on_hold
      WHERE on_hold.shard = leased.shard AND on_hold.settled_at IS NULL AND on_hold.holds_key = 1)) AS
          on_hold),
ready AS MATERIALIZED
(SELECT anon_1.address AS address, anon_1.size AS size
  FROM (SELECT anon_2.address AS address, anon_2.size AS size
    FROM leased JOIN (SELECT aside.event_id AS address, length(CAST(aside.payload AS BLOB)) AS size,
        aside.shard AS shard
      FROM shield_outbox AS aside
      WHERE aside.settled_at IS NULL AND aside.waiting = 1 AND aside.due_at <= strftime('%Y-%m-%d
          %H:%M:%f000', 'now') AND (aside.status = 'INIT' OR aside.status = 'PROCESSING' AND aside.lease_until
          <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND NOT ((SELECT held.on_hold
          FROM held) AND coalesce((SELECT first_holder.seq
            FROM shield_outbox AS first_holder
            WHERE first_holder.shard = aside.shard AND first_holder."key" = aside."key" AND
                first_holder.source = aside.source AND first_holder.settled_at IS NULL AND
                first_holder.holds_key = 1
            ORDER BY first_holder.seq
            LIMIT 1 OFFSET 0) < aside.seq, 0) = 1)
      ORDER BY aside.due_at) AS anon_2 ON anon_2.shard = leased.shard
    LIMIT :at_most OFFSET 0) AS anon_1
  UNION ALL SELECT anon_3.address AS address, anon_3.size AS size
  FROM (SELECT line.event_id AS address, length(CAST(line.payload AS BLOB)) AS size
    FROM shield_outbox AS line
    WHERE line.settled_at IS NULL AND line.waiting = 0 AND line.holds_key = 0 AND line.seq >= (SELECT CASE
        WHEN (0 = :known_shards AND (SELECT held.on_hold
          FROM held) = 0) THEN :start_at WHEN (0 = :fenced_shards) THEN :fence + 1 ELSE 0 END AS anon_4) AND
              line.shard IN (SELECT leased.shard
      FROM leased) AND (line.status = 'INIT' OR line.status = 'PROCESSING' AND line.lease_until <=
          strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND coalesce((SELECT first_holder.seq
        FROM shield_outbox AS first_holder
        WHERE first_holder.shard = line.shard AND first_holder."key" = line."key" AND first_holder.source =
            line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1 AND (SELECT
            held.on_hold
          FROM held)
        ORDER BY first_holder.seq
        LIMIT 1 OFFSET 0) >= line.seq, 1) = 1
    ORDER BY line.seq
    LIMIT :at_most OFFSET 0) AS anon_3
  LIMIT :at_most OFFSET 0),
chosen AS MATERIALIZED
(SELECT summed.address AS address
  FROM (SELECT ready.address AS address, sum(ready.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1
      PRECEDING) AS "before"
    FROM ready) AS summed
  WHERE coalesce(summed."before", 0) < :bytes_at_most)
UPDATE shield_outbox
SET status='PROCESSING', attempts=(shield_outbox.attempts + 1), unconfirmed=(shield_outbox.unconfirmed = 1 OR
    shield_outbox.status = 'PROCESSING'), lease_token=:with_token, lease_until=(SELECT min(leased.lease_until)
    AS min_1
  FROM leased)
WHERE shield_outbox.event_id IN (SELECT chosen.address
  FROM chosen) AND (shield_outbox.status = 'INIT' OR shield_outbox.status = 'PROCESSING' AND
      shield_outbox.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'))
RETURNING event_id, event_type, source, topic, payload, created_at AS created_at, tx_kind, operation, "key",
    biz_key, headers, causation_id, causation_source, traceparent, dataschema, seq, shard, attempts,
    unconfirmed, waiting, CASE WHEN (waiting = 1 AND holds_key = 0) THEN due_at END AS anon_5, (SELECT
    CAST((julianday(min(leased.lease_until)) - julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now'))) * :param_12
    AS FLOAT) AS anon_7
  FROM leased) AS anon_6, event_id AS event_id__1, NULL AS anon_8;

-- claim (of_source)
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard),
held AS MATERIALIZED
(SELECT EXISTS (SELECT leased.shard
    FROM leased
    WHERE EXISTS (SELECT *
      FROM shield_outbox AS on_hold
      WHERE on_hold.shard = leased.shard AND on_hold.settled_at IS NULL AND on_hold.holds_key = 1)) AS
          on_hold),
ready AS MATERIALIZED
(SELECT anon_1.address AS address, anon_1.size AS size
  FROM (SELECT anon_2.address AS address, anon_2.size AS size
    FROM leased JOIN (SELECT aside.event_id AS address, length(CAST(aside.payload AS BLOB)) AS size,
        aside.shard AS shard
      FROM shield_outbox AS aside
      WHERE aside.source = :of_source AND aside.settled_at IS NULL AND aside.waiting = 1 AND aside.due_at <=
          strftime('%Y-%m-%d %H:%M:%f000', 'now') AND (aside.status = 'INIT' OR aside.status = 'PROCESSING'
          AND aside.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND NOT ((SELECT held.on_hold
          FROM held) AND coalesce((SELECT first_holder.seq
            FROM shield_outbox AS first_holder
            WHERE first_holder.shard = aside.shard AND first_holder."key" = aside."key" AND
                first_holder.source = aside.source AND first_holder.settled_at IS NULL AND
                first_holder.holds_key = 1
            ORDER BY first_holder.seq
            LIMIT 1 OFFSET 0) < aside.seq, 0) = 1)
      ORDER BY aside.due_at) AS anon_2 ON anon_2.shard = leased.shard
    LIMIT :at_most OFFSET 0) AS anon_1
  UNION ALL SELECT anon_3.address AS address, anon_3.size AS size
  FROM (SELECT line.event_id AS address, length(CAST(line.payload AS BLOB)) AS size
    FROM shield_outbox AS line
    WHERE line.source = :of_source AND line.settled_at IS NULL AND line.waiting = 0 AND line.holds_key = 0 AND
        line.seq >= (SELECT CASE WHEN (0 = :known_shards AND (SELECT held.on_hold
          FROM held) = 0) THEN :start_at WHEN (0 = :fenced_shards) THEN :fence + 1 ELSE 0 END AS anon_4) AND
              line.shard IN (SELECT leased.shard
      FROM leased) AND (line.status = 'INIT' OR line.status = 'PROCESSING' AND line.lease_until <=
          strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND coalesce((SELECT first_holder.seq
        FROM shield_outbox AS first_holder
        WHERE first_holder.shard = line.shard AND first_holder."key" = line."key" AND first_holder.source =
            line.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1 AND (SELECT
            held.on_hold
          FROM held)
        ORDER BY first_holder.seq
        LIMIT 1 OFFSET 0) >= line.seq, 1) = 1
    ORDER BY line.seq
    LIMIT :at_most OFFSET 0) AS anon_3
  LIMIT :at_most OFFSET 0),
chosen AS MATERIALIZED
(SELECT summed.address AS address
  FROM (SELECT ready.address AS address, sum(ready.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1
      PRECEDING) AS "before"
    FROM ready) AS summed
  WHERE coalesce(summed."before", 0) < :bytes_at_most)
UPDATE shield_outbox
SET status='PROCESSING', attempts=(shield_outbox.attempts + 1), unconfirmed=(shield_outbox.unconfirmed = 1 OR
    shield_outbox.status = 'PROCESSING'), lease_token=:with_token, lease_until=(SELECT min(leased.lease_until)
    AS min_1
  FROM leased)
WHERE shield_outbox.event_id IN (SELECT chosen.address
  FROM chosen) AND (shield_outbox.status = 'INIT' OR shield_outbox.status = 'PROCESSING' AND
      shield_outbox.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'))
RETURNING event_id, event_type, source, topic, payload, created_at AS created_at, tx_kind, operation, "key",
    biz_key, headers, causation_id, causation_source, traceparent, dataschema, seq, shard, attempts,
    unconfirmed, waiting, CASE WHEN (waiting = 1 AND holds_key = 0) THEN due_at END AS anon_5, (SELECT
    CAST((julianday(min(leased.lease_until)) - julianday(strftime('%Y-%m-%d %H:%M:%f000', 'now'))) * :param_12
    AS FLOAT) AS anon_7
  FROM leased) AS anon_6, event_id AS event_id__1, NULL AS anon_8;

-- first_holder
SELECT first_holder.seq
FROM shield_outbox AS first_holder, shield_outbox AS o
WHERE first_holder.shard = o.shard AND first_holder."key" = o."key" AND first_holder.source = o.source AND
    first_holder.settled_at IS NULL AND first_holder.holds_key = 1
ORDER BY first_holder.seq
LIMIT 1 OFFSET 0;

-- first_holder (is_blocked)
SELECT first_holder.seq
FROM shield_outbox AS first_holder, shield_outbox AS o
WHERE first_holder.waiting = 0 AND first_holder.shard = o.shard AND first_holder."key" = o."key" AND
    first_holder.source = o.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1
ORDER BY first_holder.seq
LIMIT 1 OFFSET 0;
