-- lock_record
UPDATE shield_parked
SET reason=shield_parked.reason
WHERE shield_parked.consumer_group = :of_group AND shield_parked.topic = :of_topic AND
    shield_parked.record_partition = :of_partition AND shield_parked.record_offset = :of_offset AND
    shield_parked.digest = :of_digest AND shield_parked.discarded_at IS NULL
RETURNING consumer_group, topic, record_partition, record_offset, reason, record_key, record_value,
    record_headers, parked_at AS parked_at, digest, discarded_at AS discarded_at;

-- note_reason
UPDATE shield_parked
SET reason=:new_reason
WHERE shield_parked.consumer_group = :of_group AND shield_parked.topic = :of_topic AND
    shield_parked.record_partition = :of_partition AND shield_parked.record_offset = :of_offset AND
    shield_parked.digest = :of_digest;

-- remove_record
DELETE FROM shield_parked
WHERE shield_parked.consumer_group = :of_group AND shield_parked.topic = :of_topic AND
    shield_parked.record_partition = :of_partition AND shield_parked.record_offset = :of_offset AND
    shield_parked.digest = :of_digest;

-- inbox_purged_until
SELECT shield_purged.purged_until AS purged_until
FROM shield_purged
WHERE shield_purged.purged_table = 'inbox';
