-- ahead
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE)
SELECT CASE WHEN (EXISTS (SELECT leased.shard
    FROM leased)) THEN (SELECT CAST(json_build_object('shards', (SELECT
        hashtextextended(string_agg(concat_ws(':', leased.shard, leased.epoch), ','
            ORDER BY leased.shard), 0) AS hashtextextended_1
        FROM leased), 'has_blocked_keys', True, 'oldest_running', pg_snapshot_xmin(pg_current_snapshot()),
            'next_to_run', pg_snapshot_xmax(pg_current_snapshot()), 'chosen', (SELECT count(*) AS count_1
        FROM leased)) AS TEXT) AS json_build_object_1) END AS anon_1, coalesce((SELECT shield_outbox.seq
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key
    ORDER BY shield_outbox.seq DESC
    LIMIT 1), 0) AS coalesce_1;

-- digest
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE)
SELECT (SELECT hashtextextended(string_agg(concat_ws(':', leased.shard, leased.epoch), ','
      ORDER BY leased.shard), 0) AS hashtextextended_1
  FROM leased) AS anon_1;

-- bounds
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE)
SELECT coalesce(max(looked_at.seq), 0) AS coalesce_1, count(*) AS count_1
FROM (SELECT shield_outbox.seq AS seq
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key AND
      shield_outbox.seq > :after_seq::BIGINT AND shield_outbox.seq <= :upto_seq::BIGINT AND
      shield_outbox.shard = ANY (array((SELECT leased.shard
        FROM leased)))
  ORDER BY shield_outbox.seq
  LIMIT :at_most::INTEGER) AS looked_at;

-- unfenced
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE),
each AS MATERIALIZED
(SELECT line.shard AS shard, line.key AS key, line.source AS source, min(line.seq) AS seq
  FROM shield_outbox AS line
  WHERE line.settled_at IS NULL AND NOT line.waiting AND NOT line.holds_key AND line.seq > :after_seq::BIGINT
      AND line.seq <= :upto_seq::BIGINT AND line.shard = ANY (array((SELECT leased.shard
        FROM leased))) AND (line.status = 'INIT' OR line.lease_until <= statement_timestamp())
  GROUP BY line.shard, line.key, line.source),
probed AS MATERIALIZED
(SELECT each.shard AS shard, each.key AS key, each.source AS source, each.seq AS seq, (SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE NOT first_holder.waiting AND first_holder.shard = each.shard AND first_holder.key = each.key AND
        first_holder.source = each.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
    ORDER BY first_holder.seq
    LIMIT 1) AS blocked
  FROM each)
SELECT row.event_id, row.seq, row.status = 'INIT' AND coalesce((SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = probed.shard AND first_holder.key = probed.key AND first_holder.source =
        probed.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
    ORDER BY first_holder.seq
    LIMIT 1) < row.seq, false) AS anon_1
FROM probed JOIN shield_outbox AS row ON row.seq = probed.seq AND row.shard = probed.shard
WHERE row.settled_at IS NULL AND NOT row.waiting AND NOT row.holds_key AND coalesce(probed.blocked >=
    probed.seq, true);

-- unfenced (only_source)
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay::VARCHAR AND shield_shard.lease_until > statement_timestamp()
  ORDER BY shield_shard.shard
  FOR SHARE),
each AS MATERIALIZED
(SELECT line.shard AS shard, line.key AS key, line.source AS source, min(line.seq) AS seq
  FROM shield_outbox AS line
  WHERE line.settled_at IS NULL AND NOT line.waiting AND NOT line.holds_key AND line.seq > :after_seq::BIGINT
      AND line.seq <= :upto_seq::BIGINT AND line.shard = ANY (array((SELECT leased.shard
        FROM leased))) AND (line.status = 'INIT' OR line.lease_until <= statement_timestamp()) AND line.source
            = :of_source::VARCHAR
  GROUP BY line.shard, line.key, line.source),
probed AS MATERIALIZED
(SELECT each.shard AS shard, each.key AS key, each.source AS source, each.seq AS seq, (SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE NOT first_holder.waiting AND first_holder.shard = each.shard AND first_holder.key = each.key AND
        first_holder.source = each.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
    ORDER BY first_holder.seq
    LIMIT 1) AS blocked
  FROM each)
SELECT row.event_id, row.seq, row.status = 'INIT' AND coalesce((SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = probed.shard AND first_holder.key = probed.key AND first_holder.source =
        probed.source AND first_holder.settled_at IS NULL AND first_holder.holds_key
    ORDER BY first_holder.seq
    LIMIT 1) < row.seq, false) AS anon_1
FROM probed JOIN shield_outbox AS row ON row.seq = probed.seq AND row.shard = probed.shard
WHERE row.settled_at IS NULL AND NOT row.waiting AND NOT row.holds_key AND coalesce(probed.blocked >=
    probed.seq, true);
