-- ahead
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard)
SELECT CASE WHEN (EXISTS (SELECT leased.shard
    FROM leased)) THEN NULL END AS anon_1, coalesce((SELECT shield_outbox.seq
    FROM shield_outbox
    WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 0 AND shield_outbox.holds_key = 0
    ORDER BY shield_outbox.seq DESC
    LIMIT 1 OFFSET 0), 0) AS coalesce_1;

-- digest
SELECT 0 AS anon_1;

-- bounds
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard)
SELECT coalesce(max(looked_at.seq), 0) AS coalesce_1, count(*) AS count_1
FROM (SELECT shield_outbox.seq AS seq
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting = 0 AND shield_outbox.holds_key = 0 AND
      shield_outbox.seq > :after_seq AND shield_outbox.seq <= :upto_seq AND shield_outbox.shard IN (SELECT
      leased.shard
    FROM leased)
  ORDER BY shield_outbox.seq
  LIMIT :at_most OFFSET 0) AS looked_at;

-- unfenced
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard),
"each" AS MATERIALIZED
(SELECT line.shard AS shard, line."key" AS "key", line.source AS source, min(line.seq) AS seq
  FROM shield_outbox AS line
  WHERE line.settled_at IS NULL AND line.waiting = 0 AND line.holds_key = 0 AND line.seq > :after_seq AND
      line.seq <= :upto_seq AND line.shard IN (SELECT leased.shard
    FROM leased) AND (line.status = 'INIT' OR line.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now'))
  GROUP BY line.shard, line."key", line.source),
probed AS MATERIALIZED
(SELECT "each".shard AS shard, "each"."key" AS "key", "each".source AS source, "each".seq AS seq, (SELECT
    first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.waiting = 0 AND first_holder.shard = "each".shard AND first_holder."key" = "each"."key"
        AND first_holder.source = "each".source AND first_holder.settled_at IS NULL AND first_holder.holds_key
        = 1
    ORDER BY first_holder.seq
    LIMIT 1 OFFSET 0) AS blocked
  FROM "each")
SELECT "row".event_id, "row".seq, "row".status = 'INIT' AND coalesce((SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = probed.shard AND first_holder."key" = probed."key" AND first_holder.source =
        probed.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1
    ORDER BY first_holder.seq
    LIMIT 1 OFFSET 0) < "row".seq, 0) = 1 AS anon_1
FROM probed JOIN shield_outbox AS "row" ON "row".seq = probed.seq AND "row".shard = probed.shard
WHERE "row".settled_at IS NULL AND "row".waiting = 0 AND "row".holds_key = 0 AND coalesce(probed.blocked >=
    probed.seq, 1) = 1;

-- unfenced (only_source)
WITH leased AS
(SELECT shield_shard.shard AS shard, shield_shard.epoch AS epoch, shield_shard.lease_until AS lease_until
  FROM shield_shard
  WHERE shield_shard.owner = :of_relay AND shield_shard.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now')
  ORDER BY shield_shard.shard),
"each" AS MATERIALIZED
(SELECT line.shard AS shard, line."key" AS "key", line.source AS source, min(line.seq) AS seq
  FROM shield_outbox AS line
  WHERE line.settled_at IS NULL AND line.waiting = 0 AND line.holds_key = 0 AND line.seq > :after_seq AND
      line.seq <= :upto_seq AND line.shard IN (SELECT leased.shard
    FROM leased) AND (line.status = 'INIT' OR line.lease_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) AND
        line.source = :of_source
  GROUP BY line.shard, line."key", line.source),
probed AS MATERIALIZED
(SELECT "each".shard AS shard, "each"."key" AS "key", "each".source AS source, "each".seq AS seq, (SELECT
    first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.waiting = 0 AND first_holder.shard = "each".shard AND first_holder."key" = "each"."key"
        AND first_holder.source = "each".source AND first_holder.settled_at IS NULL AND first_holder.holds_key
        = 1
    ORDER BY first_holder.seq
    LIMIT 1 OFFSET 0) AS blocked
  FROM "each")
SELECT "row".event_id, "row".seq, "row".status = 'INIT' AND coalesce((SELECT first_holder.seq
    FROM shield_outbox AS first_holder
    WHERE first_holder.shard = probed.shard AND first_holder."key" = probed."key" AND first_holder.source =
        probed.source AND first_holder.settled_at IS NULL AND first_holder.holds_key = 1
    ORDER BY first_holder.seq
    LIMIT 1 OFFSET 0) < "row".seq, 0) = 1 AS anon_1
FROM probed JOIN shield_outbox AS "row" ON "row".seq = probed.seq AND "row".shard = probed.shard
WHERE "row".settled_at IS NULL AND "row".waiting = 0 AND "row".holds_key = 0 AND coalesce(probed.blocked >=
    probed.seq, 1) = 1;
