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

-- note_purged
INSERT INTO shield_purged (purged_table, purged_until) SELECT 'sample' AS purged_table, strftime('%Y-%m-%d
    %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_2 AS FLOAT))) AS purged_until
WHERE NOT (EXISTS (SELECT *
    FROM shield_purged
    WHERE shield_purged.purged_table = 'sample' AND shield_purged.purged_until >= strftime('%Y-%m-%d
        %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_3 AS FLOAT)))))
ON CONFLICT (purged_table) DO UPDATE
SET purged_until = excluded.purged_until
WHERE shield_purged.purged_until < excluded.purged_until;

-- purged_until
SELECT max(shield_purged.purged_until) AS max_1
FROM shield_purged;
