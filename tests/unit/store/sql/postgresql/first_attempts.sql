-- tokens_of_first_attempts
SELECT DISTINCT shield_inbox.lease_token
FROM shield_inbox
WHERE shield_inbox.consumer_group = :of_group::VARCHAR AND shield_inbox.settled_at IS NULL AND
    shield_inbox.status = 'PROCESSING' AND shield_inbox.attempts <= 1 AND shield_inbox.lease_until >
    statement_timestamp();

-- end_first_attempts
UPDATE shield_inbox
SET lease_until=statement_timestamp()
WHERE shield_inbox.seq IN (SELECT leased.seq
  FROM shield_inbox AS leased
  WHERE leased.consumer_group = :of_group::VARCHAR AND leased.settled_at IS NULL AND leased.status =
      'PROCESSING' AND leased.attempts <= 1 AND leased.lease_until > statement_timestamp() AND
      leased.lease_token = ANY (:with_tokens::UUID[])
  FOR UPDATE SKIP LOCKED);
