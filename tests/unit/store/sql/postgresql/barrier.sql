-- enter
INSERT INTO shield_barrier (event_id, committed, entered_at)
VALUES (:event_id::UUID, set_config('shieldtx.entered', coalesce(current_setting('shieldtx.entered', true),
    '') || :mark::VARCHAR, true) IS NOT NULL, statement_timestamp());

-- entered
SELECT shield_barrier.event_id
FROM shield_barrier
WHERE shield_barrier.event_id IN (:event_id_1) AND shield_barrier.committed;

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
