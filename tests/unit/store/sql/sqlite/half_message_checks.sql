-- types_due
SELECT DISTINCT anon_1.value
FROM json_each(:of_types) AS anon_1 JOIN (SELECT shield_outbox.event_type AS value
  FROM shield_outbox
  WHERE shield_outbox.check_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') AND shield_outbox.status = 'HALF'
      AND shield_outbox.checks < 15 AND shield_outbox.due_at > strftime('%Y-%m-%d %H:%M:%f000', 'now')) AS
      anon_2 ON anon_2.value = anon_1.value;

-- due
SELECT shield_outbox.event_id, shield_outbox.lease_token IS NOT NULL AS anon_1
FROM shield_outbox
WHERE shield_outbox.event_type = :of_type AND shield_outbox.check_at <= strftime('%Y-%m-%d %H:%M:%f000',
    'now') AND shield_outbox.status = 'HALF' AND shield_outbox.checks < 15 AND shield_outbox.due_at >
    strftime('%Y-%m-%d %H:%M:%f000', 'now')
ORDER BY shield_outbox.check_at, shield_outbox.event_id
LIMIT :at_most OFFSET 0;

-- begin
UPDATE shield_outbox
SET lease_token=:with_token, checks=(shield_outbox.checks + 1), check_at=strftime('%Y-%m-%d %H:%M:%f000',
    'now', printf('%+.3f seconds', CAST(CASE shield_outbox.checks WHEN 0 THEN :param_2 WHEN 1 THEN :param_4
    WHEN 2 THEN :param_6 WHEN 3 THEN :param_8 WHEN 4 THEN :param_10 WHEN 5 THEN :param_12 WHEN 6 THEN
    :param_14 WHEN 7 THEN :param_16 WHEN 8 THEN :param_18 WHEN 9 THEN :param_20 WHEN 10 THEN :param_22 WHEN 11
    THEN :param_24 WHEN 12 THEN :param_26 WHEN 13 THEN :param_28 WHEN 14 THEN :param_30 ELSE :param_31 END AS
    FLOAT)))
WHERE shield_outbox.event_id IN (:of_events) AND shield_outbox.check_at <= strftime('%Y-%m-%d %H:%M:%f000',
    'now') AND shield_outbox.status = 'HALF' AND shield_outbox.checks < 15 AND shield_outbox.due_at >
    strftime('%Y-%m-%d %H:%M:%f000', 'now')
RETURNING event_id, event_type, source, topic, payload, created_at AS created_at, tx_kind, operation, "key",
    biz_key, headers, causation_id, causation_source, traceparent, dataschema, checks;

-- lock_checks
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.event_id IN (:of_events) AND shield_outbox.status = 'HALF' AND shield_outbox.lease_token =
    :with_token
ORDER BY shield_outbox.event_id;

-- release
UPDATE shield_outbox
SET lease_token=NULL, checks=(shield_outbox.checks - 1), check_at=strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE shield_outbox.event_id IN (:of_events) AND shield_outbox.status = 'HALF' AND shield_outbox.lease_token =
    :with_token;

-- note
UPDATE shield_outbox
SET lease_token=NULL, last_error=:why
WHERE shield_outbox.event_id = :of_event AND shield_outbox.status = 'HALF' AND shield_outbox.lease_token =
    :with_token;
