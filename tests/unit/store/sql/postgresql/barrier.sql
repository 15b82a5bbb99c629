-- enter
INSERT INTO shield_barrier (event_id, committed, entered_at)
VALUES (:event_id::UUID, True, statement_timestamp());

-- close
INSERT INTO shield_barrier (event_id, committed, entered_at)
VALUES (:event_id::UUID, False, statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING shield_barrier.event_id;

-- found
SELECT shield_barrier.committed
FROM shield_barrier
WHERE shield_barrier.event_id = :event_id_1::UUID;

-- purge
DELETE FROM shield_barrier
WHERE shield_barrier.event_id IN (SELECT shield_barrier.event_id
  FROM shield_barrier
  WHERE shield_barrier.event_id <= :event_id_1::UUID AND shield_barrier.entered_at < statement_timestamp() +
      :param_1
  ORDER BY shield_barrier.event_id
  LIMIT 100
  FOR UPDATE SKIP LOCKED);
