-- written
SELECT shield_outbox.event_id
FROM shield_outbox
WHERE shield_outbox.event_type = 'sample' AND shield_outbox.biz_key = 'sample' AND shield_outbox.biz_key IS
    NOT NULL AND shield_outbox.tx_kind = 'COMMIT';

-- next_written_type
SELECT shield_outbox.event_type
FROM shield_outbox
WHERE shield_outbox.event_type > 'sample' AND shield_outbox.biz_key IS NOT NULL AND shield_outbox.tx_kind =
    'COMMIT'
ORDER BY shield_outbox.event_type
LIMIT 1 OFFSET 0;

-- received
SELECT shield_inbox.event_id
FROM shield_inbox
WHERE shield_inbox.consumer_group = 'sample' AND shield_inbox.source = 'sample' AND shield_inbox.event_type =
    'sample' AND shield_inbox.biz_key = 'sample' AND shield_inbox.biz_key IS NOT NULL AND shield_inbox.tx_kind
    = 'COMMIT';

-- next_received_type
SELECT shield_inbox.consumer_group, shield_inbox.source, shield_inbox.event_type
FROM shield_inbox
WHERE (shield_inbox.consumer_group, shield_inbox.source, shield_inbox.event_type) > ('sample', 'sample',
    'sample') AND shield_inbox.biz_key IS NOT NULL AND shield_inbox.tx_kind = 'COMMIT'
ORDER BY shield_inbox.consumer_group, shield_inbox.source, shield_inbox.event_type
LIMIT 1 OFFSET 0;
