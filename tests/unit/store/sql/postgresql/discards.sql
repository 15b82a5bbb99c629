-- discard_event
UPDATE shield_outbox
SET status='DISCARDED', settled_at=statement_timestamp()
WHERE shield_outbox.event_id = :event_id_1::UUID AND shield_outbox.status IN ('FAILED')
RETURNING shield_outbox.status;

-- discard_received
UPDATE shield_inbox
SET status='DISCARDED', settled_at=statement_timestamp(), awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample' AND shield_inbox.status IN ('DEAD')
RETURNING shield_inbox.status;

-- discard_record
UPDATE shield_parked
SET discarded_at=statement_timestamp()
WHERE shield_parked.consumer_group = 'sample' AND shield_parked.topic = 'orders' AND
    shield_parked.record_partition = 0 AND shield_parked.record_offset = 1 AND shield_parked.digest = 'sample'
    AND shield_parked.discarded_at IS NULL
RETURNING shield_parked.consumer_group;

-- parked_status
SELECT CASE WHEN (shield_parked.discarded_at IS NULL) THEN 'PARKED' ELSE 'DISCARDED' END AS anon_1
FROM shield_parked
WHERE shield_parked.consumer_group = 'sample' AND shield_parked.topic = 'orders' AND
    shield_parked.record_partition = 0 AND shield_parked.record_offset = 1 AND shield_parked.digest = 'sample';

-- discarded_records
SELECT shield_parked.record_headers
FROM shield_parked
WHERE shield_parked.discarded_at IS NOT NULL AND substr(shield_parked.record_headers,
    strpos(shield_parked.record_headers, '["ce_id", "') + 11, 48) = ANY
    ('MDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAx'[]) AND shield_parked.consumer_group = 'sample';

-- purge_parked
DELETE FROM shield_parked
WHERE (shield_parked.consumer_group, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset, shield_parked.digest) IN (SELECT shield_parked.consumer_group,
    shield_parked.topic, shield_parked.record_partition, shield_parked.record_offset, shield_parked.digest
  FROM shield_parked
  WHERE shield_parked.discarded_at < statement_timestamp() + :param_1 OR shield_parked.parked_at <
      statement_timestamp() + :param_2
  LIMIT 100
  FOR UPDATE SKIP LOCKED);
