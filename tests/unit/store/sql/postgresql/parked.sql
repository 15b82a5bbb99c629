-- lock_record
UPDATE shield_parked
SET reason=shield_parked.reason
WHERE shield_parked.consumer_group = :of_group::VARCHAR AND shield_parked.topic = :of_topic::VARCHAR AND
    shield_parked.record_partition = :of_partition::INTEGER AND shield_parked.record_offset =
    :of_offset::BIGINT AND shield_parked.digest = :of_digest::VARCHAR AND shield_parked.discarded_at IS NULL
RETURNING shield_parked.consumer_group, shield_parked.topic, shield_parked.record_partition,
    shield_parked.record_offset, shield_parked.reason, shield_parked.record_key, shield_parked.record_value,
    shield_parked.record_headers, timezone('UTC', shield_parked.parked_at) AS parked_at, shield_parked.digest,
    timezone('UTC', shield_parked.discarded_at) AS discarded_at;

-- note_reason
UPDATE shield_parked
SET reason=:new_reason::VARCHAR
WHERE shield_parked.consumer_group = :of_group::VARCHAR AND shield_parked.topic = :of_topic::VARCHAR AND
    shield_parked.record_partition = :of_partition::INTEGER AND shield_parked.record_offset =
    :of_offset::BIGINT AND shield_parked.digest = :of_digest::VARCHAR;

-- remove_record
DELETE FROM shield_parked
WHERE shield_parked.consumer_group = :of_group::VARCHAR AND shield_parked.topic = :of_topic::VARCHAR AND
    shield_parked.record_partition = :of_partition::INTEGER AND shield_parked.record_offset =
    :of_offset::BIGINT AND shield_parked.digest = :of_digest::VARCHAR;

-- inbox_purged_until
SELECT timezone('UTC', shield_purged.purged_until) AS purged_until
FROM shield_purged
WHERE shield_purged.purged_table = 'inbox';
