-- end_of_batch
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.event_id > :event_id_1 AND shield_outbox.event_id <= :event_id_2
ORDER BY shield_outbox.event_id
LIMIT 1 OFFSET 99;

-- purge
DELETE FROM shield_outbox
WHERE (shield_outbox.event_id) IN (SELECT shield_outbox.event_id
  FROM shield_outbox
  WHERE shield_outbox.event_id > :event_id_1 AND shield_outbox.event_id <= :event_id_2 AND
      shield_outbox.status IN ('PROCESSED') AND shield_outbox.settled_at < strftime('%Y-%m-%d %H:%M:%f000',
      'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT))) AND NOT (EXISTS (SELECT 1
      FROM shield_inbox AS awaited
      WHERE awaited.tx_kind = 'ROLLBACK' AND awaited.causation_id = shield_outbox.event_id AND
          (awaited.settled_at IS NULL OR awaited.status = 'DEAD') AND awaited.consumer_group =
          awaited.consumer_group
      LIMIT -1 OFFSET 0))
  ORDER BY shield_outbox.event_id
  LIMIT 100 OFFSET 0);
