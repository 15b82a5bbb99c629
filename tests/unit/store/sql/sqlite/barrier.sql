-- enter
INSERT INTO shield_barrier (event_id, committed, entered_at)
VALUES (:event_id, 1, strftime('%Y-%m-%d %H:%M:%f000', 'now'));

-- entered
SELECT shield_barrier.event_id
FROM shield_barrier
WHERE shield_barrier.event_id IN (:event_id_1) AND shield_barrier.committed = 1;

-- close
INSERT INTO shield_barrier (event_id, committed, entered_at)
VALUES (:event_id, False, strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT DO NOTHING
RETURNING event_id;

-- found
SELECT shield_barrier.committed
FROM shield_barrier
WHERE shield_barrier.event_id = :event_id_1;

-- purge
DELETE FROM shield_barrier
WHERE shield_barrier.event_id IN (SELECT shield_barrier.event_id
  FROM shield_barrier
  WHERE shield_barrier.event_id <= :event_id_1 AND shield_barrier.entered_at < strftime('%Y-%m-%d
      %H:%M:%f000', 'now', printf('%+.3f seconds', CAST(:param_1 AS FLOAT)))
  ORDER BY shield_barrier.event_id
  LIMIT 100 OFFSET 0);
