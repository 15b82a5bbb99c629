-- tokens_of_first_attempts
SELECT DISTINCT shield_inbox.lease_token
FROM shield_inbox
WHERE shield_inbox.consumer_group = :of_group AND shield_inbox.settled_at IS NULL AND shield_inbox.status =
    'PROCESSING' AND shield_inbox.attempts <= 1 AND shield_inbox.lease_until > strftime('%Y-%m-%d
    %H:%M:%f000', 'now');

-- end_first_attempts
UPDATE shield_inbox
SET lease_until=strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE shield_inbox.seq IN (SELECT leased.seq
  FROM shield_inbox AS leased
  WHERE leased.consumer_group = :of_group AND leased.settled_at IS NULL AND leased.status = 'PROCESSING' AND
      leased.attempts <= 1 AND leased.lease_until > strftime('%Y-%m-%d %H:%M:%f000', 'now') AND
      leased.lease_token IN (:with_tokens));
