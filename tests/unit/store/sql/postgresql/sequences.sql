-- highest
SELECT max(anon_1.seq) AS max_1
FROM (SELECT max(shield_outbox.seq) AS seq
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND NOT shield_outbox.waiting AND NOT shield_outbox.holds_key
  UNION ALL SELECT max(shield_outbox.seq) AS seq
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.waiting
  UNION ALL SELECT max(shield_outbox.seq) AS seq
  FROM shield_outbox
  WHERE shield_outbox.settled_at IS NULL AND shield_outbox.holds_key
  UNION ALL SELECT anon_2.seq AS seq
  FROM (SELECT shield_outbox.seq AS seq
    FROM shield_outbox
    ORDER BY shield_outbox.event_id DESC
    LIMIT 1000) AS anon_2) AS anon_1;

-- sequence_of
SELECT CASE WHEN has_sequence_privilege(name, 'SELECT') THEN name END
FROM pg_get_serial_sequence(:table, 'seq') AS name;

-- next_value
SELECT last_value + is_called::int FROM sample;
