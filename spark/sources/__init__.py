"""What a run reads: outboxes, inboxes and topics, and which of their rows."""
