-- refuse
UPDATE shield_inbox
SET status='MAX_RECONSUMED', settled_at=statement_timestamp(), last_error='sample', awaits_operator=False
WHERE shield_inbox.event_id = :event_id_1::UUID AND shield_inbox.consumer_group = 'sample' AND
    shield_inbox.source = 'sample' AND shield_inbox.status IN ('DEAD') AND shield_inbox.tx_kind = 'COMMIT'
RETURNING shield_inbox.status;
