-- types_due
SELECT DISTINCT anon_1.value
FROM unnest(:of_types::TEXT[]) AS anon_1(value) JOIN LATERAL (SELECT shield_outbox.event_type AS value
  FROM shield_outbox
  WHERE shield_outbox.check_at <= statement_timestamp() AND shield_outbox.status = 'HALF' AND
      shield_outbox.checks < 15 AND shield_outbox.due_at > statement_timestamp() AND shield_outbox.event_type
      = anon_1.value
  LIMIT 1) AS anon_2 ON true;

-- due
SELECT shield_outbox.event_id, shield_outbox.lease_token IS NOT NULL AS anon_1
FROM shield_outbox
WHERE shield_outbox.event_type = :of_type::VARCHAR AND shield_outbox.check_at <= statement_timestamp() AND
    shield_outbox.status = 'HALF' AND shield_outbox.checks < 15 AND shield_outbox.due_at >
    statement_timestamp()
ORDER BY shield_outbox.check_at, shield_outbox.event_id
LIMIT :at_most::INTEGER
FOR UPDATE SKIP LOCKED;

-- begin
UPDATE shield_outbox
SET lease_token=:with_token::UUID, checks=(shield_outbox.checks + 1), check_at=(statement_timestamp() +
    CAST(CASE shield_outbox.checks WHEN 0 THEN :param_2 WHEN 1 THEN :param_4 WHEN 2 THEN :param_6 WHEN 3 THEN
    :param_8 WHEN 4 THEN :param_10 WHEN 5 THEN :param_12 WHEN 6 THEN :param_14 WHEN 7 THEN :param_16 WHEN 8
    THEN :param_18 WHEN 9 THEN :param_20 WHEN 10 THEN :param_22 WHEN 11 THEN :param_24 WHEN 12 THEN :param_26
    WHEN 13 THEN :param_28 WHEN 14 THEN :param_30 ELSE :param_31 END AS FLOAT) * interval '1 second')
WHERE shield_outbox.event_id = ANY (:of_events::UUID[]) AND shield_outbox.check_at <= statement_timestamp()
    AND shield_outbox.status = 'HALF' AND shield_outbox.checks < 15 AND shield_outbox.due_at >
    statement_timestamp()
RETURNING shield_outbox.event_id, shield_outbox.event_type, shield_outbox.source, shield_outbox.topic,
    shield_outbox.payload, shield_outbox.created_at AS created_at, shield_outbox.tx_kind,
    shield_outbox.operation, shield_outbox.key, shield_outbox.biz_key, shield_outbox.headers,
    shield_outbox.causation_id, shield_outbox.causation_source, shield_outbox.traceparent,
    shield_outbox.dataschema, shield_outbox.checks;

-- lock_checks
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.event_id = ANY (:of_events::UUID[]) AND shield_outbox.status = 'HALF' AND
    shield_outbox.lease_token = :with_token::UUID
ORDER BY shield_outbox.event_id
FOR UPDATE;

-- release
UPDATE shield_outbox
SET lease_token=NULL, checks=(shield_outbox.checks - 1), check_at=statement_timestamp()
WHERE shield_outbox.event_id = ANY (:of_events::UUID[]) AND shield_outbox.status = 'HALF' AND
    shield_outbox.lease_token = :with_token::UUID;

-- note
UPDATE shield_outbox
SET lease_token=NULL, last_error=:why::VARCHAR
WHERE shield_outbox.event_id = :of_event::UUID AND shield_outbox.status = 'HALF' AND shield_outbox.lease_token
    = :with_token::UUID;
